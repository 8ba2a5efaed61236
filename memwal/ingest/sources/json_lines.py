"""Reads JSON lines: one object per line, with values as `memwal read --json` shows them.

Rows need not have the same columns, so every row is checked for those that the table needs.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.sources.columns import SourceColumns
from memwal.ingest.values.findings import Finding
from memwal.ingest.values.numbered_chunks import check_left_out, mark_chunks
from memwal.ingest.values.shape import guess_name
from memwal.rows.json_values import from_json, to_json
from memwal.text import name_columns

_LINE_BYTES_MAX = 64 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 16 * 1024
_Lines = list[tuple[int, int, dict[str, Any]]]
"""(line number, row number, object); numbers start at 1, and an empty line is not a row."""


class BadLine(ValueError):
    """A line that can't be a row. `column` and `value` are those at fault, if it is an object."""

    column: str | None = None
    value: Any = None
    reason: str = ""
    data: dict[str, Any] | None = None


OnBad = Callable[[int, BadLine], None]
"""Called with the number of a row that is left out, and the reason."""


def read_json_lines(
    stream: Any, columns: SourceColumns, where: str, on_bad: OnBad | None = None
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of rows.

    The schema has the wanted columns, and further ones of the first rows. Raises BadLine, which
    names the line, the column and the value, unless `on_bad` takes it.
    """
    types = columns.source_types
    batches = _read_lines(stream, columns, where, on_bad)
    first = next(batches, [])
    unknown = {name: pa.null() for *_, row in first for name in row if name not in types}
    schema = pa.schema([*types.items(), *unknown.items()])
    for name in columns.list_named() & types.keys():
        if first and not any(name in row for *_, row in first):  # perhaps a typo
            schema = schema.remove(schema.get_field_index(name))

    def convert() -> Iterator[pa.RecordBatch]:
        for lines in chain([first], batches):
            if on_bad is not None:
                lines = _leave_out(lines, convert_some, on_bad)
            yield convert_some(lines)

    def convert_some(lines: _Lines) -> pa.RecordBatch:
        if not columns.skips_unknown:
            _check_known(lines, schema.names, where)
        return _convert(lines, types, columns, where)

    return schema, convert()


def read_past_bad(
    stream: Any,
    columns: SourceColumns,
    where: str,
    chunk_rows: int,
    wanted: list[str] | None,
) -> Iterator[pa.Table]:
    """Chunks of the good rows; the bad lines are recorded with the chunks (`mark_chunks`)."""
    left_out: list[Finding] = []

    def leave_out(row: int, bad: BadLine) -> None:
        check_left_out(left_out)
        left_out.append(
            Finding(
                place=None,
                row=row,
                column=bad.column,
                value=bad.value,
                reason=bad.reason,
                data=bad.data,
            )
        )

    _, batches = read_json_lines(stream, columns, where, leave_out)
    names = wanted or list(columns.source_types)
    schema = pa.schema([(name, columns.source_types[name]) for name in names])
    chosen = (batch.select(names) for batch in batches)
    yield from mark_chunks(chosen, chunk_rows, schema.empty_table(), left_out, text=False)


def _leave_out(lines: _Lines, convert: Callable[[_Lines], pa.RecordBatch], on_bad: OnBad) -> _Lines:
    """The lines that can be converted; the others go to `on_bad`."""
    with suppress(BadLine):
        convert(lines)
        return lines
    kept: _Lines = []
    for line in lines:
        try:
            convert([line])
            kept.append(line)
        except BadLine as error:
            error.data = line[2]
            on_bad(line[1], error)
    return kept


def _read_lines(
    stream: Any, columns: SourceColumns, where: str, on_bad: OnBad | None
) -> Iterator[_Lines]:
    has_decimals = any("decimal" in str(kind) for kind in columns.types.values())
    decode = json.JSONDecoder(parse_float=Decimal if has_decimals else None).decode
    needed = {columns.get_source_name(name) for name in columns.needed}
    file = io.BufferedReader(stream, _BATCH_BYTES)
    lines: _Lines = []
    number = rows = size_bytes = 0
    while line := file.readline(_LINE_BYTES_MAX + 1):
        number += 1
        size_bytes += len(line)
        if len(line) > _LINE_BYTES_MAX:
            raise Usage(f"{where}: line {number} has more than {_LINE_BYTES_MAX} bytes")
        if line.isspace():
            continue
        rows += 1
        try:
            row = _parse_line(decode, line, number, f"{where}: line {number}:")
            if not row.keys() >= needed:
                _check_missing(row, needed, columns, f"{where}: line {number}")
        except BadLine as error:
            if on_bad is None:
                raise
            error.data = error.data or {"line": line.decode(errors="replace").rstrip()}
            on_bad(rows, error)
            continue
        lines.append((number, rows, row))
        if len(lines) == _BATCH_ROWS or size_bytes >= _BATCH_BYTES:
            yield lines
            lines, size_bytes = [], 0
    if lines:
        yield lines


def _parse_line(
    decode: Callable[[str], Any], line: bytes, number: int, where: str
) -> dict[str, Any]:
    try:
        row = decode(str(line, "utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:
        text = str(error).split("\n", 1)[0]
        hint = "; one object a line is expected" if line.lstrip()[:1] in (b"[", b"{") else ""
        raise _bad(where, f"is no JSON: {text}{hint}") from None
    if type(row) is not dict:
        raise _bad(where, "expected an object, of one row")
    return row


def _check_missing(
    row: Mapping[str, Any], needed: Collection[str], columns: SourceColumns, where: str
) -> None:
    """Raise BadLine for a row that lacks columns, which NULL would overwrite in the table."""
    deleted_by = columns.deleted_by
    if deleted_by is not None and row.get(columns.get_source_name(deleted_by)) is True:
        return
    near = {name: guess_name(name, sorted(row.keys() - needed)) for name in needed - row.keys()}
    names = (repr(n) + (f" (there is {near[n]!r})" if near[n] else "") for n in sorted(near))
    error = _bad(
        f"{where}:",
        f"without {name_columns(names)}, NULL would be written over what the table has there. "
        "--missing-as-null allows that, save for the key",
    )
    error.data = dict(row)
    raise error


def _check_known(lines: _Lines, names: Sequence[str], where: str) -> None:
    known = set(names)
    for number, _, row in lines:
        if not row.keys() <= known:
            name = min(row.keys() - known)
            text = f"the table has no column {name!r}; --skip-unknown-columns leaves it out"
            raise _bad(f"{where}: line {number}:", text)


def _bad(where: str, reason: str) -> BadLine:
    error = BadLine(f"{where} {reason}")
    error.reason = reason
    return error


def _convert(
    lines: _Lines, types: Mapping[str, pa.DataType], columns: SourceColumns, where: str
) -> pa.RecordBatch:
    arrays, lenience = [], columns.lenience
    for name, kind in types.items():
        default = columns.defaults.get(columns.rename(name))
        filler = None if default is None else to_json(pa.array([default]))[0]
        values = [row.get(name, filler) for *_, row in lines]
        try:
            arrays.append(from_json(values, kind, lenience))
        except (ValueError, pa.ArrowException):
            for (number, *_), value in zip(lines, values, strict=True):
                try:
                    from_json([value], kind, lenience)
                except (ValueError, pa.ArrowException) as error:
                    bad = _bad(f"{where}: line {number}: column {name!r}:", str(error))
                    why = str(error).removesuffix(f" is no {kind}")
                    bad.column, bad.value, bad.reason = name, value, f"is no {kind}: {why}"
                    raise bad from None
            raise
    return pa.RecordBatch.from_arrays(arrays, names=list(types))
