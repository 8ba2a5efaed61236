"""Rows out of text: CSV, and JSON lines.

CSV is read as text, since pyarrow's reader gives up at the first value that does not have its
column's type. The values of a chunk are converted later, one column at a time; a column with bad
values is converted in ever smaller parts.

JSON lines have one object each, with values as `memwal read --json` shows them. Rows need not have
the same columns, so every row is checked for those that the table needs.

Rows that can't be read are left out, and recorded with the chunks (`mark_chunks`).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from memwal.errors import Usage
from memwal.ingest.sources.columns import SourceColumns
from memwal.ingest.values.exact import parse_texts
from memwal.ingest.values.numbered_chunks import (
    LEFT_OUT_MAX,
    Finding,
    check_left_out,
    find_failing,
    find_marks,
    is_text_column,
    mark_chunks,
    show_value,
)
from memwal.ingest.values.shape import guess_name
from memwal.rows.floats import read_number
from memwal.rows.json_values import from_json, to_json
from memwal.rows.pairs import Lenience
from memwal.text import name_columns

_BLOCK_BYTES = 4 * 1024 * 1024


def _open_csv(
    source: Any, columns: Sequence[str], invalid: Callable[[pacsv.InvalidRow], str]
) -> pacsv.CSVStreamingReader:
    """A reader of bytes, which calls `invalid` for rows with more or fewer fields than the header.

    An empty field is NULL, and "" an empty text, as Arrow and pandas write them. Words such as NA
    or nan are ordinary values.
    """
    return pacsv.open_csv(
        _Ended(source),
        # Row numbers are only known when reading in one thread.
        read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=invalid),
        convert_options=pacsv.ConvertOptions(
            column_types=dict.fromkeys(columns, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


class _Ended(io.RawIOBase):
    """A stream with an empty line at its end.

    Without a line break there, Arrow reads an empty last field after one in quotes as a text.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self._rest = stream, b"\n"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        found = bytes(self._stream.read(size))
        while found and len(found) < size and (more := self._stream.read(size - len(found))):
            found += bytes(more)
        if len(found) < size:
            found, self._rest = found + self._rest, b""
        return found


def read_names(source: Any) -> list[str]:
    """The names of the columns, whatever the values are."""
    return list(_open_csv(source, (), lambda row: "skip").schema.names)


def check_separator(names: Sequence[str], wanted: Collection[str], uri: str) -> None:
    """Raise Usage for a separator other than a comma, when the header looks like one long name."""
    for sign in ";\t|":
        if len(names) == 1 and sign in names[0] and set(names[0].split(sign)) & set(wanted):
            raise Usage(
                f"{uri}: its columns are separated by {sign!r}, and memwal reads commas: convert "
                "it, or read it with Spark and write the DataFrame (format 'memwal')"
            )


def read_csv(
    open_source: Callable[[], Any], chunk_rows: int, columns: list[str] | None
) -> Iterator[pa.Table]:
    """Every chunk of a file as text, for `convert_text`. Rows have as many fields as the header."""
    left_out: list[Finding] = []

    def skip(row: pacsv.InvalidRow) -> str:
        reason = f"has {row.actual_columns} fields, and not {row.expected_columns}: {row.text}"
        left_out.append(Finding(place=None, row=row.number - 1, reason=reason))
        return "skip" if len(left_out) < LEFT_OUT_MAX else "error"

    def read() -> Iterator[pa.RecordBatch]:
        try:
            for batch in _open_csv(open_source(), names, skip):
                yield batch if columns is None else batch.select(columns)
        except ValueError:
            check_left_out(left_out)
            raise

    names = read_names(open_source())
    empty = pa.schema([(n, pa.binary()) for n in columns or names]).empty_table()
    yield from mark_chunks(read(), chunk_rows, empty, left_out, text=True)


def show_row(row: pa.Table) -> dict[str, Any]:
    """A row of a chunk as JSON values; columns that are still text, as that text."""
    shown = {}
    for field, column in zip(row.schema, row.columns, strict=True):
        value = column[0].as_py() if is_text_column(field) else show_value(column.chunk(0))
        shown[field.name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return shown


def convert_text(
    chunk: pa.Table, types: Mapping[str, pa.DataType], lenience: Lenience, most: int
) -> tuple[pa.Table, list[Finding], Sequence[int]]:
    """The chunk's values, findings for text without one (NULL there), and row numbers in the file.

    Raises ValueError when a column can't be converted though no single value is at fault.
    """
    marks = find_marks(chunk)
    found, arrays = list(marks.left_out), []
    for name in chunk.column_names:
        text, kind = chunk[name].combine_chunks(), types.get(name, pa.string())
        if not is_text_column(chunk.schema.field(name)):
            arrays.append(text)  # it is typed already
            continue
        convert = partial(parse_texts, kind=kind, lenience=lenience)
        try:
            arrays.append(convert(text))
            continue
        except ValueError:
            bad = find_failing(text, convert, most)
            if not bad:
                raise
        for place, why in bad:
            value = text[place].as_py().decode(errors="replace")
            found.append(Finding(place=place, column=name, value=value, reason=_explain(kind, why)))
        # With more than `most` bad values, rows after the last one found are not converted.
        known = text[: bad[-1][0]] if len(bad) >= most else text
        values = convert(_blank(known, bad))
        arrays.append(pa.concat_arrays([values, pa.nulls(len(text) - len(values), values.type)]))
    return pa.table(arrays, names=chunk.column_names), found, marks.number_rows(len(chunk))


def _explain(kind: pa.DataType, why: str) -> str:
    """Why a text is no value, in fewer words than Arrow's."""
    why = why.rpartition(f"error to {kind}: ")[2].removesuffix(f" is no {kind}")
    found = re.fullmatch("Failed to parse string: (.*) as a scalar of type .*", why, re.DOTALL)
    hint = ": --convert=utc takes it" if "zone offset" in why else ""
    return f"is no {kind}: {found[1] if found else why}{hint}"


def _blank(text: pa.Array, bad: list[tuple[int, str]]) -> pa.Array:
    places = pc.is_in(pa.array(range(len(text))), pa.array([place for place, _ in bad]))
    return pc.if_else(places, pa.scalar(None, text.type), text)


_LINE_BYTES_MAX = 64 * 1024 * 1024
_BATCH_BYTES = 4 * 1024 * 1024
_BATCH_ROWS = 16 * 1024
_Lines = list[tuple[int, dict[str, Any]]]
"""(row number, object); numbers start at 1, and an empty line is not a row."""


class BadLine(ValueError):
    """A line that can't be a row. `column` and `value` are those at fault, if it is an object."""

    def __init__(
        self,
        reason: str,
        column: str | None = None,
        value: Any = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(reason)
        self.column, self.value, self.data = column, value, data


OnBad = Callable[[int, BadLine], None]
"""Called with the number of a row that is left out, and the reason."""


def read_json_schema(stream: Any, columns: SourceColumns) -> pa.Schema:
    """The wanted columns. Those that options name, and that no first row has, are perhaps typos."""
    first = next(_read_lines(stream, columns, lambda row, bad: None), [])
    schema = pa.schema(list(columns.source_types.items()))
    for name in columns.list_named() & columns.source_types.keys():
        if first and not any(name in row for _, row in first):
            schema = schema.remove(schema.get_field_index(name))
    unknown = {name: pa.null() for _, row in first for name in row if name not in schema.names}
    return pa.schema([*schema, *unknown.items()])


def read_json(
    stream: Any, columns: SourceColumns, chunk_rows: int, wanted: list[str] | None
) -> Iterator[pa.Table]:
    """Every chunk of a file, of the lines that can be rows."""
    left_out: list[Finding] = []

    def leave_out(row: int, bad: BadLine) -> None:
        check_left_out(left_out)
        left_out.append(
            Finding(
                place=None,
                row=row,
                column=bad.column,
                value=bad.value,
                reason=str(bad),
                data=bad.data,
            )
        )

    types = columns.source_types
    names = wanted or list(types)
    schema = pa.schema([(name, types[name]) for name in names])
    batches = (
        _convert_lines(lines, types, columns, leave_out).select(names)
        for lines in _read_lines(stream, columns, leave_out)
    )
    yield from mark_chunks(batches, chunk_rows, schema.empty_table(), left_out, text=False)


def _convert_lines(
    lines: _Lines, types: Mapping[str, pa.DataType], columns: SourceColumns, on_bad: OnBad
) -> pa.RecordBatch:
    """The lines that can be converted; the others go to `on_bad`."""
    with suppress(BadLine):
        return _convert_members(lines, types, columns)
    kept: _Lines = []
    for line in lines:
        try:
            _convert_members([line], types, columns)
            kept.append(line)
        except BadLine as error:
            error.data = line[1]
            on_bad(line[0], error)
    return _convert_members(kept, types, columns)


def _read_lines(stream: Any, columns: SourceColumns, on_bad: OnBad) -> Iterator[_Lines]:
    decode = json.JSONDecoder(parse_float=read_number).decode
    needed = {columns.get_source_name(name) for name in columns.needed}
    file = io.BufferedReader(stream, _BATCH_BYTES)
    lines: _Lines = []
    number = rows = size_bytes = 0
    while line := file.readline(_LINE_BYTES_MAX + 1):
        number += 1
        size_bytes += len(line)
        if len(line) > _LINE_BYTES_MAX:
            raise ValueError(f"line {number} has more than {_LINE_BYTES_MAX} bytes")
        if line.isspace():
            continue
        rows += 1
        try:
            row = _parse_line(decode, line, number)
            if not row.keys() >= needed:
                _check_missing(row, needed, columns)
        except BadLine as error:
            error.data = error.data or {"line": line.decode(errors="replace").rstrip()}
            on_bad(rows, error)
            continue
        lines.append((rows, row))
        if len(lines) == _BATCH_ROWS or size_bytes >= _BATCH_BYTES:
            yield lines
            lines, size_bytes = [], 0
    if lines:
        yield lines


def _parse_line(decode: Callable[[str], Any], line: bytes, number: int) -> dict[str, Any]:
    try:
        row = decode(str(line, "utf-8-sig" if number == 1 else "utf-8"))
    except (ValueError, RecursionError) as error:
        text = str(error).split("\n", 1)[0]
        hint = "; one object a line is expected" if line.lstrip()[:1] in (b"[", b"{") else ""
        raise BadLine(f"is no JSON: {text}{hint}") from None
    if type(row) is not dict:
        raise BadLine("expected an object, of one row")
    return row


def _check_missing(row: Mapping[str, Any], needed: Collection[str], columns: SourceColumns) -> None:
    """Raise BadLine for a row that lacks columns, which NULL would overwrite in the table."""
    deleted_by = columns.deleted_by
    if deleted_by is not None and row.get(columns.get_source_name(deleted_by)) is True:
        return
    near = {name: guess_name(name, sorted(row.keys() - needed)) for name in needed - row.keys()}
    names = (repr(n) + (f" (there is {near[n]!r})" if near[n] else "") for n in sorted(near))
    raise BadLine(
        f"without {name_columns(names)}, NULL would be written over what the table has there. "
        "--missing-as-null allows that, save for the key",
        data=dict(row),
    )


def _convert_members(
    lines: _Lines, types: Mapping[str, pa.DataType], columns: SourceColumns
) -> pa.RecordBatch:
    for _, row in lines:
        if not row.keys() <= types.keys():
            raise BadLine(f"the table has no column {min(row.keys() - types.keys())!r}")
    arrays, lenience = [], columns.lenience
    for name, kind in types.items():
        default = columns.defaults.get(columns.rename(name))
        filler = None if default is None else to_json(pa.array([default]))[0]
        values = [row.get(name, filler) for _, row in lines]
        try:
            arrays.append(from_json(values, kind, lenience))
        except (ValueError, pa.ArrowException) as error:
            value = values[0] if len(values) == 1 else None
            raise BadLine(_explain(kind, str(error)), name, value) from None
    return pa.RecordBatch.from_arrays(arrays, names=list(types))
