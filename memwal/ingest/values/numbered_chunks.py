"""Chunks that carry the numbers of their rows in the file, and what in them can't be written. Pure.

Only chunks that don't fit the table are searched. In one that does not, a column is cast in ever
smaller parts, down to the rows that can't be cast.

A reader that goes on after a bad row leaves it out, and reports it separately.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from memwal.ingest.values.exact import convert
from memwal.ingest.values.shape import Shape, explain_invalid, explain_type
from memwal.rows.json_values import to_json

_MARK = b"memwal.marks"
LEFT_OUT_MAX = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A value that can't be written, or a whole row where `column` is None.

    `place` is the row's place in its chunk; None for a row that was left out of the chunks. `row`
    is its number in the file, from 1.
    """

    place: int | None
    reason: str
    column: str | None = None
    value: Any = None
    """As a JSON value."""
    row: int | None = None
    data: dict[str, Any] | None = None
    """The row as JSON values, if it was left out of the chunks."""


def find_bad(shape: Shape, chunk: pa.Table, most: int) -> Iterator[Finding]:
    """The values that the table can't take, column by column, about `most` of each.

    Raises Usage when the column to delete by is not usable.
    """
    deleted = shape.read_deleted(chunk, "the source")
    for field in shape.schema:
        if field.name not in chunk.column_names:
            continue
        column = chunk[field.name].combine_chunks()
        if column.type != field.type:
            change = partial(convert, kind=field.type, lenience=shape.lenience)
            for place, why in find_failing(column, change, most):
                yield Finding(
                    place=place,
                    column=field.name,
                    value=show_value(column.slice(place, 1)),
                    reason=explain_type(column.type, field.type, ValueError(why)),
                )
        for place, why in find_failing(column, _validate, most):
            value = show_value(column.slice(place, 1))
            yield Finding(place=place, column=field.name, value=value, reason=why)
        if column.null_count and not field.nullable:
            nulls = column.is_null()
            if deleted is not None and field.name not in shape.key:
                nulls = pc.and_not(nulls, deleted)
            for place in pc.indices_nonzero(nulls).to_pylist()[:most]:
                yield Finding(place=place, column=field.name, reason="may not be NULL, but is")


def _validate(part: pa.Array) -> None:
    try:
        part.validate(full=True)
    except pa.ArrowException as error:
        raise ValueError(explain_invalid(error)) from None


def show_value(one: pa.Array) -> Any:
    """The only value of an array as a JSON value; None if it can't be shown."""
    try:
        return to_json(one)[0]
    except UnicodeDecodeError:
        is_text = pa.types.is_string(one.type) or pa.types.is_large_string(one.type)
        [value] = one.cast(pa.large_binary()).to_pylist() if is_text else [None]
        return value and value.decode(errors="replace")


def find_failing(
    column: pa.Array, convert: Callable[[pa.Array], object], most: int
) -> list[tuple[int, str]]:
    """The first `most` places where `convert` raises, in order, with its errors' texts."""
    found: list[tuple[int, str]] = []
    parts = [(0, len(column))]
    while parts and len(found) < most:
        start, rows = parts.pop()
        try:
            convert(column.slice(start, rows))
        except (pa.ArrowException, ValueError) as error:
            if rows == 1:
                found.append((start, str(error).split("\n", 1)[0]))
            else:
                half = rows // 2
                parts += [(start + half, rows - half), (start, half)]
    return found


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """What a chunk carries.

    `first` is the number of its first row, counting those left out; `text` says whether its columns
    are still text (`text_files`).
    """

    first: int = 1
    left_out: tuple[Finding, ...] = ()
    text: bool = False

    def number_rows(self, rows: int) -> Sequence[int]:
        """The row numbers, in the file, of the `rows` rows in the chunk."""
        if not self.left_out:
            return range(self.first, self.first + rows)
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


def count_rows(chunk: pa.Table) -> int:
    """The rows of the source that a chunk stands for: those left out, too."""
    return len(chunk) + len(find_marks(chunk).left_out)


def _read(field: pa.Field) -> dict[str, Any]:
    return dict(json.loads((field.metadata or {}).get(_MARK, b"{}")))
