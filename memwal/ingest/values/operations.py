"""Rows with deletes among them -> the puts and deletes for a shard's writer. Pure.

A writer puts rows or deletes keys, but not both in one call. The operations on one key must keep
their order, because a row-merge policy tells `5, delete, 7` from `5, 7, delete`; the order of
different keys does not matter. So rows are grouped by how often their key was deleted before: first
all puts of keys not deleted yet, then their first deletes, then the puts after those, and so on.

The result depends on the rows alone, so a run that starts again makes the same calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Refused

Codes = npt.NDArray[np.int64]


class Kind(Enum):
    """What a call of the writer does."""

    PUT = "put"
    DELETE = "delete"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Operation:
    """One call of a shard's writer, and one WAL entry. A delete has the key's columns only."""

    kind: Kind
    rows: pa.Table

    def __len__(self) -> int:
        return int(self.rows.num_rows)


def make_operations(
    rows: pa.Table, deleted: pa.Array | None, key: Sequence[str], *, rows_max: int
) -> list[Operation]:
    """The calls for `rows`, in order, each of `rows_max` rows at most.

    `deleted` tells for each row whether it deletes its key. Raises Refused for a delete without a
    primary key, or of a NULL key.
    """
    if deleted is None or not pc.any(deleted).as_py():
        return list(_cut_rows(Kind.PUT, rows, rows_max))
    if not key:
        raise Refused("MW-I10", "the table has no primary key to delete by: write without deletes")
    gone = np.asarray(deleted, dtype=bool)
    rank = _count_deletes_before(_encode_keys(rows, key), gone)
    found: list[Operation] = []
    for turn in range(int(rank.max()) + 1):
        found += _cut_rows(Kind.PUT, _filter_rows(rows, (rank == turn) & ~gone), rows_max)
        keys = _filter_rows(rows.select(list(key)), (rank == turn) & gone)
        found += _cut_rows(Kind.DELETE, keys, rows_max)
    return found


def join_operations(before: Operation, after: Operation, *, rows_max: int) -> Operation | None:
    """Both operations as one, if they are of one kind and not over `rows_max`; else None."""
    if before.kind is not after.kind or len(before) + len(after) > rows_max:
        return None
    return Operation(kind=before.kind, rows=pa.concat_tables([before.rows, after.rows]))


def _cut_rows(kind: Kind, rows: pa.Table, rows_max: int) -> Iterator[Operation]:
    for start in range(0, rows.num_rows, rows_max):
        yield Operation(kind=kind, rows=rows.slice(start, rows_max))


def _filter_rows(rows: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Table:
    return rows.filter(pa.array(wanted))


def _encode_keys(rows: pa.Table, key: Sequence[str]) -> Codes:
    """A number for each row, equal for equal keys. Raises Refused for a NULL key."""
    columns = [rows[name] for name in key]
    if any(column.null_count for column in columns):
        raise Refused("MW-I11", f"a row's primary key ({', '.join(key)}) is NULL")
    return encode_columns(columns)


def encode_columns(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Codes:
    """A number for each row: equal where all columns are equal, with NULL equal to NULL.

    Numbers start at 0, in the order of their first rows.
    """
    codes, _ = _encode(columns[0])
    for column in columns[1:]:
        indices, size = _encode(column)
        # Renumbered after each column, so that products stay small.
        codes, _ = _encode(pa.array(codes * size + indices))
    return codes


def _encode(column: pa.ChunkedArray | pa.Array) -> tuple[Codes, int]:
    """A number for each value, and how many different values there are."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = whole.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices, dtype=np.int64), len(encoded.dictionary)


def _count_deletes_before(codes: Codes, gone: npt.NDArray[np.bool_]) -> Codes:
    """For each row, how many rows above it delete its key."""
    order = np.argsort(codes, kind="stable")
    counted: Codes = np.cumsum(gone[order]) - gone[order]
    first = np.r_[True, codes[order][1:] != codes[order][:-1]]
    # The count at the start of each key's run, carried along the run.
    starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = counted - counted[starts]
    return rank
