"""Chunks that carry the numbers of their rows in the file, and the rows left out of them. Pure.

A reader that goes on after a bad row leaves it out, and reports it separately.
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
    """What a chunk carries.

    `first` is the number of its first row, counting those left out; `text` says whether its columns
    are still text (`csv_text`).
    """

    first: int = 1
    left_out: tuple[Finding, ...] = ()
    text: bool = False

    def number_rows(self, rows: int) -> list[int]:
        """The row numbers, in the file, of the `rows` rows in the chunk."""
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
    """Chunks that carry what was left out before their last row.

    A last chunk that is not full also carries what was left out after its last row; if the last one
    is full, an empty chunk follows with that. So a chunk has the same rows, and carries the same,
    wherever reading began to leave rows out. `left_out` grows while batches are read, and by then
    has what comes before their rows; findings are removed from it when a chunk carries them.
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
    """Raise ValueError when more rows were left out between two chunks than may be held."""
    if len(left_out) >= LEFT_OUT_MAX:
        first = min(left_out, key=_get_row)
        raise ValueError(
            f"more than {LEFT_OUT_MAX:,} rows close together are none; row {first.row} "
            f"{first.reason}"
        )


def _get_row(finding: Finding) -> int:
    return finding.row or 0


def _take_over(left_out: list[Finding], into: list[Finding]) -> None:
    """Move all findings, sorted by row; a reader's thread may add more meanwhile."""
    count = len(left_out)
    into += left_out[:count]
    del left_out[:count]
    into.sort(key=_get_row)


def _count_before(last: int, left_out: list[Finding]) -> int:
    """How many are left out before the row that would have the number `last` without any."""
    count = 0
    while count < len(left_out) and _get_row(left_out[count]) <= last + count:
        count += 1
    return count


def _mark(chunk: pa.Table, first: int, left_out: list[Finding], *, text: bool) -> pa.Table:
    marks = {"first": first, "left_out": [asdict(f) for f in left_out], "text": text}
    # Stored with each field: renaming a table's columns drops the schema's own metadata.
    text_of = json.dumps(marks, default=str, ensure_ascii=False)
    known = {_MARK: text_of.encode(errors="replace")}  # lone surrogates are not valid UTF-8
    return chunk.cast(pa.schema([field.with_metadata(known) for field in chunk.schema]))


def is_marked(chunk: pa.Table) -> bool:
    """Whether a chunk carries marks."""
    return any(_read(field) for field in chunk.schema)


def is_text_column(field: pa.Field) -> bool:
    """Whether a column is still text that has to be converted."""
    return bool(_read(field).get("text"))


def find_marks(chunk: pa.Table) -> Marks:
    """The marks of a chunk; the default ones if it has none."""
    for field in chunk.schema:
        if found := _read(field):
            left_out = tuple(Finding(**finding) for finding in found["left_out"])
            return Marks(first=found["first"], left_out=left_out, text=found["text"])
    return Marks()


def _read(field: pa.Field) -> dict[str, Any]:
    return dict(json.loads((field.metadata or {}).get(_MARK, b"{}")))
