"""Finds the values that can't be written in a chunk that does not fit the table. Pure.

Chunks that fit don't come here. In one that does not, a column is cast in ever smaller parts, down
to the rows that can't be cast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from memwal.ingest.values.shape import Shape, explain_invalid
from memwal.rows.json_values import to_json


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
            for place, why in find_failing(column, partial(pc.cast, target_type=field.type), most):
                yield Finding(
                    place=place,
                    column=field.name,
                    value=show_value(column.slice(place, 1)),
                    reason=f"is {column.type}, the table's {field.type}: {why}",
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
