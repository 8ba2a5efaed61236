"""Batches of a source -> chunks of a fixed number of rows, wherever reading starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq


def find_groups(metadata: pq.FileMetaData, first_row: int) -> tuple[list[int], int]:
    """The row groups from the one that holds `first_row` on, and the rows in those before."""
    sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    ends = list(accumulate(sizes))
    groups = [i for i, end in enumerate(ends) if end > first_row]
    return groups, (ends[groups[0]] - sizes[groups[0]] if groups else sum(sizes))


def skip_rows(
    batches: Iterator[pa.RecordBatch], rows: int, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """The `columns` (None: all) of all but the first `rows` rows."""
    for batch in batches:
        if rows >= batch.num_rows:
            rows -= batch.num_rows
            continue
        left, rows = batch.slice(rows), 0
        yield left if columns is None else left.select(columns)


def cut_batches(batches: Iterator[pa.RecordBatch], chunk_rows: int) -> Iterator[pa.Table]:
    """Batches of any size as tables of `chunk_rows` rows; the last one may be smaller."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            taken = batch.slice(start, chunk_rows - rows)
            start += taken.num_rows
            rows += taken.num_rows
            held.append(taken)
            if rows == chunk_rows:
                yield pa.Table.from_batches(held)
                held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held)
