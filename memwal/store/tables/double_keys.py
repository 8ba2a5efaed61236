"""Keys that the base table holds more than once: Lance enforces no primary key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from memwal.rows.keyset import KeySet, find_repeated, key_predicate
from memwal.rows.memory import UNLIMITED, Memory

KEYS_COMPARED_MAX = 10_000_000
"""The most keys that are held in memory at once to find one that is there twice."""

# Up to so many values are looked up by a filter, which a key index answers; more by a scan, which
# takes less memory, and at 20,000 keys in 10 million rows twice the time.
_NAMED_VALUES_MAX = 10_000


def scan_keys(base: Any, keys: pa.Table, memory: Memory = UNLIMITED) -> Iterator[pa.RecordBatch]:
    """The key columns of one version's rows with these keys, which are of the base's types."""
    names = keys.column_names
    if not len(keys):
        return iter(())
    if len(keys) * len(names) <= min(_NAMED_VALUES_MAX, memory.predicate_keys_max):
        found: Iterator[pa.RecordBatch] = base.scanner(
            columns=names, filter=key_predicate(keys)
        ).to_batches()
        return found
    return KeySet(keys.columns).inside(base.scanner(columns=names).to_batches(), names)


def find_double_keys(base: Any, keys: pa.Table, memory: Memory = UNLIMITED) -> pa.Table:
    """Those of the keys that several rows of one version have."""
    found = list(scan_keys(base, keys, memory))
    return find_repeated(pa.Table.from_batches(found) if found else keys, keys.column_names)


def find_all_double_keys(base: Any, names: Sequence[str]) -> tuple[pa.Table | None, int]:
    """All keys that several rows of one version have, and among how many rows.

    None where there are more rows than KEYS_COMPARED_MAX.
    """
    rows = int(base.count_rows())
    if rows > KEYS_COMPARED_MAX:
        return None, rows
    return find_repeated(base.scanner(columns=list(names)).to_table(), names), rows
