"""A set of primary keys, and which rows of a table are in it. Pure (Arrow in, out).

Exact for every type that a MemWAL key may have. A set is asked for many batches, so what can be
prepared is: integers are kept sorted, and several key columns become one number a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.model import ShardId, SharedKey
from memwal.rows.keys import keys_in

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

# Arrow builds its hash table anew at each call, so rows are asked for many at a time.
GROUP_ROWS = 65_536
GROUP_BYTES_MAX = 32 * 1024 * 1024
_SHOWN_MAX = 80


class KeySet:
    """Keys of one or more columns. A NULL is never in it."""

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        """`columns` are the key's columns, one row a key; keys may repeat."""
        self._columns = [_Values(column) for column in columns]
        self._pairs: list[Places] = []
        if len(columns) > 1:
            self._pair(columns)
        self.count = len(self._pairs[-1]) if self._pairs else self._columns[0].count

    def _pair(self, columns: Sequence[pa.ChunkedArray]) -> None:
        codes = self._columns[0].codes(columns[0])
        for values, column in zip(self._columns[1:], columns[1:], strict=True):
            paired = _pair_codes(codes, values.codes(column), values.count)
            self._pairs.append(_sort_distinct(paired[paired >= 0]))
            codes = _find_places(self._pairs[-1], paired)

    def contains(self, columns: Sequence[pa.ChunkedArray]) -> Mask:
        """For each row whether its key is in the set. The columns' types are the set's."""
        found: Mask = self.number(columns) >= 0
        return found

    def number(self, columns: Sequence[pa.ChunkedArray]) -> Places:
        """Each row's key as its number in the set, from 0 on; -1 for one that is not in it."""
        if not self.count:
            return np.full(len(columns[0]), -1, dtype=np.int64)
        codes = self._columns[0].codes(columns[0])
        for known, values, column in zip(self._pairs, self._columns[1:], columns[1:], strict=True):
            codes = _find_places(known, _pair_codes(codes, values.codes(column), values.count))
        return codes

    def sort_rows(self, columns: Sequence[pa.ChunkedArray]) -> Places:
        """The rows that the set was made of, each key once, in the order of their numbers."""
        sorts = not self._pairs and self._columns[0].sorts
        return np.argsort(columns[0].to_numpy() if sorts else self.number(columns))

    def outside(
        self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows whose key, in columns of these names, is not in the set."""
        return self._filter(batches, keys, inside=False)

    def inside(
        self, batches: Iterable[pa.RecordBatch], keys: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The rows whose key is in the set."""
        return self._filter(batches, keys, inside=True)

    def _filter(
        self, batches: Iterable[pa.RecordBatch], keys: Sequence[str], *, inside: bool
    ) -> Iterator[pa.RecordBatch]:
        for group in group_batches(batches):
            columns = [pa.chunked_array([b.column(key) for b in group]) for key in keys]
            found = self.contains(columns) == inside
            start = 0
            for batch in group:
                mask = found[start : start + batch.num_rows]
                start += batch.num_rows
                kept = batch if mask.all() else batch.filter(pa.array(mask))
                if kept.num_rows:
                    yield kept


class _Values:
    """Distinct values of one column, and the number of each."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        # One of the two, since a set may be sent to many tasks.
        self._sorted = self._hashed = None
        if pa.types.is_integer(column.type):
            self._sorted = _sort_distinct(column.drop_null().to_numpy())
            self.count = len(self._sorted)
        else:
            self._hashed = pc.unique(column).drop_null()
            self.count = len(self._hashed)

    @property
    def sorts(self) -> bool:
        """Whether values are numbered in their own order."""
        return self._sorted is not None

    def codes(self, column: pa.ChunkedArray) -> Places:
        """Each row's number, -1 for a value that is not among them, and for NULL."""
        if not self.count:
            return np.full(len(column), -1, dtype=np.int64)
        if self._sorted is not None and not column.null_count:
            return _find_places(self._sorted, column.to_numpy())
        values = self._hashed if self._sorted is None else pa.array(self._sorted)
        found = pc.index_in(column, value_set=values, skip_nulls=True)
        return np.asarray(pc.fill_null(found, -1).to_numpy(), dtype=np.int64)


def _sort_distinct(values: np.ndarray) -> np.ndarray:
    """Sorted, each once. `np.unique` does the same by hashing, and takes 50 times as long."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def _find_places(known: np.ndarray, values: np.ndarray) -> Places:
    """Where each value stands in the sorted `known`, -1 when it is not there."""
    if not len(known):
        return np.full(len(values), -1, dtype=np.int64)
    places = np.searchsorted(known, values)
    places[places == len(known)] = 0
    return np.where(known[places] == values, places, -1)


def _pair_codes(left: Places, right: Places, count: int) -> Places:
    """Two numbers as one. Numbers stay below the count of rows, so that nothing overflows."""
    return np.where((left >= 0) & (right >= 0), left * count + right, -1)


def group_batches(
    batches: Iterable[pa.RecordBatch], bytes_max: int = GROUP_BYTES_MAX
) -> Iterator[list[pa.RecordBatch]]:
    """Consecutive batches, so many that asking a set for them at once pays."""
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= GROUP_ROWS or size >= bytes_max:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def alias_keys(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The key columns by names of our own: a key column may be called anything.

    Without the table's schema: in one keys may be NULL, in another they may not.
    """
    return pa.table([table[key] for key in keys], names=[f"key{n}" for n in range(len(keys))])


def find_shared_key(
    tables: Mapping[ShardId, Sequence[pa.Table]], keys: Sequence[str]
) -> SharedKey | None:
    """A key that is in the tables of two shards; None when each is in one shard's only."""
    shards = [shard for shard, parts in tables.items() if any(len(part) for part in parts)]
    if len(shards) < 2 or not keys:
        return None
    stacked = pa.concat_tables(
        [
            alias_keys(part, keys).append_column(
                "shard", [np.full(len(part), place, dtype=np.int32)]
            )
            for place, shard in enumerate(shards)
            for part in tables[shard]
        ],
        promote_options="permissive",
    )
    *names, _ = stacked.column_names
    held = stacked.group_by(names).aggregate([("shard", "min"), ("shard", "max")])
    held = held.filter(pc.less(held["shard_min"], held["shard_max"])).slice(0, 1)
    for row in held.to_pylist():
        (shown,) = show_keys(held.select(names).rename_columns(list(keys)))
        return SharedKey(key=shown, shards=(shards[row["shard_min"]], shards[row["shard_max"]]))
    return None


def find_repeated(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The keys that several of the table's rows have, each once."""
    columns = alias_keys(table, keys)
    counted = columns.group_by(columns.column_names).aggregate([([], "count_all")])
    repeated = counted.filter(pc.greater(counted["count_all"], 1))
    return repeated.select(columns.column_names).rename_columns(list(keys))


def show_keys(keys: pa.Table) -> list[str]:
    """Keys for people."""
    return [
        ", ".join(f"{name}={value!r}"[:_SHOWN_MAX] for name, value in row.items())
        for row in keys.to_pylist()
    ]


def key_predicate(keys: pa.Table) -> str:
    """SQL that is true of the rows with these keys. Raises ValueError when there is none."""
    return keys_in(keys.column_names, zip(*(c.to_pylist() for c in keys.columns), strict=True))
