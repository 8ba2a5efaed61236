"""JSON lines: an object a line, its values as `memwal read --json` shows them.

Rows need not have the same columns, so what a table needs is asked of every row.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.columns import SourceColumns
from memwal.ingest.shape import guess_name
from memwal.rows.json_values import from_json, to_json

_LINE_BYTES_MAX = 64 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 16 * 1024
_Lines = list[tuple[int, dict[str, Any]]]


def read_json_lines(
    stream: Any, columns: SourceColumns, where: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The wanted columns and those that the first rows have besides; and the rows' batches.

    Raises Usage that names the line, the column and the value.
    """
    types = columns.source_types
    batches = _read_lines(stream, columns, where)
    first = next(batches, [])
    unknown = {name: pa.null() for _, row in first for name in row if name not in types}
    schema = pa.schema([*types.items(), *unknown.items()])
    for name in columns.list_named() & types.keys():
        if not any(name in row for _, row in first):  # a slip of the pen, perhaps
            schema = schema.remove(schema.get_field_index(name))

    def convert() -> Iterator[pa.RecordBatch]:
        for lines in chain([first], batches):
            if not columns.skips_unknown:
                _check_known(lines, schema.names, where)
            yield _convert(lines, types, columns, where)

    return schema, convert()


def _read_lines(stream: Any, columns: SourceColumns, where: str) -> Iterator[_Lines]:
    has_decimals = any("decimal" in str(kind) for kind in columns.types.values())
    decode = json.JSONDecoder(parse_float=Decimal if has_decimals else None).decode
    needed = {columns.get_source_name(name) for name in columns.needed}
    file = io.BufferedReader(stream, _BATCH_BYTES)
    lines: _Lines = []
    number = size_bytes = 0
    while line := file.readline(_LINE_BYTES_MAX + 1):
        number += 1
        size_bytes += len(line)
        if len(line) > _LINE_BYTES_MAX:
            raise Usage(f"{where}: line {number} has more than {_LINE_BYTES_MAX} bytes")
        if line.isspace():
            continue
        try:
            row = decode(str(line, "utf-8-sig" if number == 1 else "utf-8"))
        except ValueError as error:
            raise Usage(f"{where}: line {number} is no JSON: {_explain(line, error)}") from None
        if type(row) is not dict:
            raise Usage(f"{where}: line {number}: expected an object, of one row")
        if not row.keys() >= needed:
            _check_missing(row, needed, columns, f"{where}: line {number}")
        lines.append((number, row))
        if len(lines) == _BATCH_ROWS or size_bytes >= _BATCH_BYTES:
            yield lines
            lines, size_bytes = [], 0
    if lines:
        yield lines


def _explain(line: bytes, error: ValueError) -> str:
    hint = "; one object a line is expected" if line.lstrip()[:1] in (b"[", b"{") else ""
    return str(error).split("\n", 1)[0] + hint


def _check_missing(
    row: Mapping[str, Any], needed: Collection[str], columns: SourceColumns, where: str
) -> None:
    """Raise Usage for a row that lacks what would become NULL, over what the table has."""
    deleted_by = columns.deleted_by
    if deleted_by is not None and row.get(columns.get_source_name(deleted_by)) is True:
        return
    near = {name: guess_name(name, sorted(row.keys() - needed)) for name in needed - row.keys()}
    names = (repr(n) + (f" (there is {near[n]!r})" if near[n] else "") for n in sorted(near))
    raise Usage(
        f"{where}: column {', '.join(names)} is missing, and NULL would be written over "
        "what the table has there; --missing-as-null does that, but for the key"
    )


def _check_known(lines: _Lines, names: Sequence[str], where: str) -> None:
    known = set(names)
    for number, row in lines:
        if not row.keys() <= known:
            name = min(row.keys() - known)
            raise Usage(
                f"{where}: line {number}: the table has no column {name!r}; "
                "--skip-unknown-columns leaves it out"
            )


def _convert(
    lines: _Lines, types: Mapping[str, pa.DataType], columns: SourceColumns, where: str
) -> pa.RecordBatch:
    arrays, lenience = [], columns.lenience
    for name, kind in types.items():
        default = columns.defaults.get(columns.rename(name))
        filler = None if default is None else to_json(pa.array([default]))[0]
        values = [row.get(name, filler) for _, row in lines]
        try:
            arrays.append(from_json(values, kind, lenience))
        except (ValueError, pa.ArrowException):
            for (number, _), value in zip(lines, values, strict=True):
                try:
                    from_json([value], kind, lenience)
                except (ValueError, pa.ArrowException) as error:
                    raise Usage(f"{where}: line {number}: column {name!r}: {error}") from None
            raise
    return pa.RecordBatch.from_arrays(arrays, names=list(types))
