"""Lance tables as sources: one version, or what was appended since an earlier version.

Fragments have ascending ids, and don't change while rows are only appended. So appended rows are in
the fragments with higher ids, provided that the earlier fragments are still the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from memwal.store.records.ingests import SourceFile

# What decides which rows a fragment has, and their values.
_TOLD = ("id", "physical_rows", "deletion_file", "overlays")
_TOLD_OF_FILES = ("path", "fields", "column_indices", "base_id")


@dataclass(frozen=True, kw_only=True)
class Fragments:
    """The id of the last fragment (-1 without any), and a digest of all of them."""

    last: int
    digest: str


def describe_fragments(dataset: Any, last: int | None = None) -> Fragments:
    """The fragments with ids up to `last` (None: all)."""
    found = sorted(dataset.get_fragments(), key=lambda fragment: fragment.fragment_id)
    kept = [f for f in found if last is None or f.fragment_id <= last]
    told = []
    for fragment in kept:
        metadata = fragment.metadata.to_json()
        files = [{name: file.get(name) for name in _TOLD_OF_FILES} for file in metadata["files"]]
        told.append([{name: metadata.get(name) for name in _TOLD}, files])
    text = json.dumps(told, sort_keys=True, default=str)
    return Fragments(
        last=kept[-1].fragment_id if kept else -1,
        digest=f"fragments:{hashlib.sha256(text.encode()).hexdigest()}",
    )


def count_rows(dataset: Any, file: SourceFile) -> int:
    """How many rows of the source are read."""
    chosen = _choose_fragments(dataset, file)
    if chosen is None:
        return int(dataset.count_rows())
    return sum(fragment.count_rows() for fragment in chosen)


def read_rows(
    dataset: Any, file: SourceFile, columns: list[str] | None, first_row: int
) -> Iterator[pa.RecordBatch]:
    """The rows from `first_row` on, in the table's order."""
    chosen = _choose_fragments(dataset, file)
    if chosen == []:
        return
    scan = dataset.scanner(columns=columns, fragments=chosen, offset=first_row, scan_in_order=True)
    yield from scan.to_batches()


def _choose_fragments(dataset: Any, file: SourceFile) -> list[Any] | None:
    after = file.fragments_after
    if after is None:
        return None
    return [f for f in dataset.get_fragments() if f.fragment_id > after]
