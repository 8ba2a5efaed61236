"""Chunks that know of rows that are not in them, and which of the file's rows theirs are. Pure.

A reader that can't give up at what is no row leaves it out, and tells of it beside.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import pyarrow as pa

from memwal.ingest.findings import Finding

_MARK = b"memwal.marks"


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
    chunks: Iterator[pa.Table], empty: pa.Table, left_out: Sequence[Finding], *, text: bool
) -> Iterator[pa.Table]:
    """Chunks that know of what was left out from their first row to the next one's.

    `left_out` grows while chunks are read, and has what comes before a chunk's rows by then.
    """
    held, first, told = None, 0, 0
    for chunk in chunks:
        if held is not None:
            known = _sort(left_out)
            before, told = told, _count_before(first + len(held), known)
            yield _mark(held, first + before + 1, known[before:told], text=text)
            first += len(held)
        held = chunk
    rest = _sort(left_out)[told:]
    yield _mark(empty if held is None else held, first + told + 1, rest, text=text)


def _sort(left_out: Sequence[Finding]) -> list[Finding]:
    found: list[Finding] = []
    for finding in left_out:
        insort(found, finding, key=attrgetter("row"))
    return found


def _count_before(row: int, left_out: list[Finding]) -> int:
    """How many are left out before the one that is number `row` (from 0) of those that are not."""
    count = 0
    while count < len(left_out) and (left_out[count].row or 0) <= row + 1 + count:
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
