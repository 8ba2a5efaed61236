"""A table's row-merge policy, and the rows that a fold by it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Refused, StoreUnavailable, Unsupported
from memwal.format import layout
from memwal.model import FlushedGeneration, TableView
from memwal.rows.keys import new_keys_are_compared
from memwal.rows.keyset import KeySet, key_predicate
from memwal.rows.policy import RowPolicy, parse_policy
from memwal.rows.policy_fold import check_policy
from memwal.store.tables.generations import Source, as_base_rows

# Up to so many keys are looked up by a filter, which a key index answers; more by a scan.
_NAMED_KEYS_MAX = 1000
# A larger part of the base is scanned rather than taken row by row.
_TAKEN_PART_MAX = 1 / 8


def read_policy(view: TableView, opened: Callable[[int], Any]) -> RowPolicy | None:
    """The table's policy, if it has one. `opened` opens a version of the base.

    Raises Refused, Unsupported for one that can't be kept, and what `opened` raises.
    """
    if view.policy_text is None:
        return None
    policy = parse_policy(view.policy_text)
    check_fits(policy, view, opened(view.version).schema)
    return policy


def check_fits(policy: RowPolicy, view: TableView, schema: pa.Schema) -> None:
    """Raise Refused or Unsupported when the table can't have the policy."""
    check_policy(policy, schema, view.primary_key)
    types = key_types(view)
    if not new_keys_are_compared(types):
        raise Unsupported(
            "MW-P05",
            f"{view.uri}: a key of type {', '.join(types)} can't go with a row-merge policy: Lance "
            "would not notice that a key is inserted twice at a time",
        )


def key_types(view: TableView) -> tuple[str, ...]:
    """The key columns' types, by name."""
    by_name = {column.name: column.type_text for column in view.columns}
    return tuple(by_name[key] for key in view.primary_key)


def read_all_rows(source: Source, generation: FlushedGeneration, schema: pa.Schema) -> pa.Table:
    """Every row that was written, in order: columns of the base, and `_tombstone`.

    pylance's writer hides superseded rows of a key by a deletion vector, which is passed over here.
    Raises Refused when rows are missing of which the manifest knows: operands may be lost.
    """
    names = source.alignment.stored(schema.names)
    if source.deletes:
        names.append(layout.TOMBSTONE)
    scanner = source.dataset.scanner(
        columns=names,
        with_row_id=True,
        include_deleted_rows=True,
        batch_size=source.batch_rows,
        scan_in_order=True,
    )
    # A deleted row has no values, whatever the base demands of its columns.
    loose = pa.schema([pa.field(field.name, field.type) for field in schema])
    wanted = loose.append(pa.field(layout.TOMBSTONE, pa.bool_()))
    batches = []
    for batch in scanner.to_batches():
        columns = as_base_rows(source, batch, loose).columns
        batches.append(
            pa.RecordBatch.from_arrays([*columns, _tombstones(source, batch)], schema=wanted)
        )
    table = pa.Table.from_batches(batches, schema=wanted)
    if generation.physical_rows is not None and len(table) != generation.physical_rows:
        raise Refused(
            "MW-P10",
            f"generation {generation.generation} has {len(table)} rows, but its writer counted "
            f"{generation.physical_rows}: without all of them its operands can't be folded",
        )
    return table


def _tombstones(source: Source, batch: pa.RecordBatch) -> pa.Array:
    if not source.deletes:  # its writer knew no deletes
        return pa.array(np.zeros(batch.num_rows, dtype=bool))
    return batch.column(layout.TOMBSTONE).cast(pa.bool_())


def read_base_rows(base: Any, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The rows of one version whose key is among `keys`, with these columns, the key's included."""
    names = keys.column_names
    columns = list(columns)
    if len(keys) <= _NAMED_KEYS_MAX:
        if not len(keys):
            return _empty(base, columns)
        return base.scanner(columns=columns, filter=key_predicate(keys)).to_table()
    wanted = KeySet([pa.chunked_array(column.chunks, column.type) for column in keys.columns])
    places = _places(base, wanted, names)
    if len(places) > _TAKEN_PART_MAX * base.count_rows():
        batches = wanted.inside(base.scanner(columns=columns).to_batches(), names)
        return pa.Table.from_batches(batches, schema=_empty(base, columns).schema)
    found = base.take(places, columns=columns)
    if not wanted.contains(found.select(names).columns).all():
        raise StoreUnavailable(f"{base.uri}: rows of the base were not found by their places again")
    return found


def _places(base: Any, wanted: KeySet, names: Sequence[str]) -> list[int]:
    """The offsets, in scan order, of the rows with these keys."""
    found, start = [], 0
    for batch in base.scanner(columns=list(names), scan_in_order=True).to_batches():
        mask = wanted.contains([pa.chunked_array([batch.column(name)]) for name in names])
        found.append(np.flatnonzero(mask) + start)
        start += batch.num_rows
    places: list[int] = np.concatenate([np.empty(0, dtype=np.int64), *found]).tolist()
    return places


def _empty(base: Any, columns: Sequence[str]) -> pa.Table:
    return base.scanner(columns=list(columns)).projected_schema.empty_table()
