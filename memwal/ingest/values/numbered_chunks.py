"""Chunks that know of rows that are not in them, and which of the file's rows theirs are. Pure.

A reader that can't give up at what is no row leaves it out, and tells of it beside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from memwal.ingest.sources.chunks import cut_batches
from memwal.ingest.values.findings import Finding

_MARK = b"memwal.marks"
LEFT_OUT_MAX = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """`first` is the number of a chunk's first row, if it is not left out; `text` see csv_text."""

    first: int = 1
    left_out: tuple[Finding, ...] = ()
    text: bool = False

    def number_rows(self, rows: int) -> list[int]:
        """The numbers of the rows that are in the chunk."""
        gone = {finding.row for finding in self.left_out}
        numbers: list[int] = []
        number = self.first
        while len(numbers) < rows:
            if number not in gone:
                numbers.append(number)
            number += 1
        return numbers


def mark_chunks(
    batches: Iterator[pa.RecordBatch],
    chunk_rows: int,
    empty: pa.Table,
    left_out: list[Finding],
    *,
    text: bool,
) -> Iterator[pa.Table]:
    """Chunks that know of what was left out before their last row, and behind it in a small one.

    So a chunk has the same rows, and knows the same, wherever reading began to leave rows out. Of
    what is behind a last chunk that is full, an empty one knows. `left_out` grows while batches are
    read, and has what comes before their rows by then; what is told is taken out of it.
    """
    waiting, number = list[Finding](), 1
    for chunk in cut_batches(batches, chunk_rows):
        _take_over(left_out, waiting)
        is_last = len(chunk) < chunk_rows
        count = len(waiting) if is_last else _count_before(number + len(chunk) - 1, waiting)
        yield _mark(chunk, number, waiting[:count], text=text)
        del waiting[:count]
        number += len(chunk) + count
    _take_over(left_out, waiting)
    if waiting:
        yield _mark(empty, number, waiting, text=text)


def check_left_out(left_out: list[Finding]) -> None:
    """Raise ValueError where there are too many between two chunks' ends to hold in memory."""
    if len(left_out) >= LEFT_OUT_MAX:
        first = min(left_out, key=_get_row)
        raise ValueError(
            f"more than {LEFT_OUT_MAX:,} rows close together are none; row {first.row} "
            f"{first.reason}"
        )


def _get_row(finding: Finding) -> int:
    return finding.row or 0


def _take_over(left_out: list[Finding], into: list[Finding]) -> None:
    """Move all of them, in their order, while a reader's thread may add some."""
    count = len(left_out)
    into += left_out[:count]
    del left_out[:count]
    into.sort(key=_get_row)


def _count_before(last: int, left_out: list[Finding]) -> int:
    """How many are left out before a row that has this number, if none is."""
    count = 0
    while count < len(left_out) and _get_row(left_out[count]) <= last + count:
        count += 1
    return count


def _mark(chunk: pa.Table, first: int, left_out: list[Finding], *, text: bool) -> pa.Table:
    marks = {"first": first, "left_out": [asdict(f) for f in left_out], "text": text}
    # With each field: renaming a table's columns loses what stands with its schema.
    text_of = json.dumps(marks, default=str, ensure_ascii=False)
    known = {_MARK: text_of.encode(errors="replace")}  # half a character is none in UTF-8
    return chunk.cast(pa.schema([field.with_metadata(known) for field in chunk.schema]))


def is_marked(chunk: pa.Table) -> bool:
    """Whether there is something to know of a chunk."""
    return any(_read(field) for field in chunk.schema)


def is_text_column(field: pa.Field) -> bool:
    """Whether a column's values are still to be made of its text."""
    return bool(_read(field).get("text"))


def find_marks(chunk: pa.Table) -> Marks:
    """What a chunk knows."""
    for field in chunk.schema:
        if found := _read(field):
            left_out = tuple(Finding(**finding) for finding in found["left_out"])
            return Marks(first=found["first"], left_out=left_out, text=found["text"])
    return Marks()


def _read(field: pa.Field) -> dict[str, Any]:
    return dict(json.loads((field.metadata or {}).get(_MARK, b"{}")))
