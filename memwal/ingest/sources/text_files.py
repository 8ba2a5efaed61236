"""Rows out of text: CSV, and JSON lines.

CSV is read as text where not all values have the wanted types. pyarrow's reader gives up at the
first bad value or row of a file. In that case the values are read as text, and converted by the
same converter, one column of a chunk at a time; a column with bad values is converted in ever
smaller parts.

JSON lines have one object each, with values as `memwal read --json` shows them. Rows need not have
the same columns, so every row is checked for those that the table needs.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from memwal.errors import Usage
from memwal.ingest.sources.columns import SourceColumns
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
from memwal.ingest.values.texts import NULLS, parse_texts
from memwal.rows.floats import read_number
from memwal.rows.json_values import from_json, to_json
from memwal.rows.pairs import Lenience
from memwal.text import name_columns

_BLOCK_BYTES = 4 * 1024 * 1024


def open_csv(
    source: Any,
    types: Mapping[str, pa.DataType],
    invalid: Callable[[pacsv.InvalidRow], str] | None = None,
) -> pacsv.CSVStreamingReader:
    """A reader for these types, which raises ArrowInvalid, now or later, for values that don't fit.

    `invalid` is called for rows with more or fewer fields than the header.
    """
    return pacsv.open_csv(
        _Ended(source),
        # Row numbers are only known when reading in one thread.
        read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=invalid is None),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=invalid),
        convert_options=pacsv.ConvertOptions(column_types=dict(types), **NULLS),
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
    return list(open_csv(source, {}, lambda row: "skip").schema.names)


def check_separator(names: Sequence[str], wanted: Collection[str], uri: str) -> None:
    """Raise Usage for a separator other than a comma, when the header looks like one long name."""
    for sign in ";\t|":
        if len(names) == 1 and sign in names[0] and set(names[0].split(sign)) & set(wanted):
            raise Usage(
                f"{uri}: its columns are separated by {sign!r}, and memwal reads commas: convert "
                "it, or read it with Spark and write the DataFrame (format 'memwal')"
            )


def read_text(
    open_source: Callable[[], Any],
    chunk_rows: int,
    columns: list[str] | None,
) -> Iterator[pa.Table]:
    """Every chunk of a file as text, for `convert_text`.

    Rows with too many or too few fields are left out, and recorded with the chunks (`mark_chunks`).
    """
    left_out: list[Finding] = []

    def skip(row: pacsv.InvalidRow) -> str:
        reason = f"has {row.actual_columns} fields, and not {row.expected_columns}: {row.text}"
        left_out.append(Finding(place=None, row=row.number - 1, reason=reason))
        return "skip" if len(left_out) < LEFT_OUT_MAX else "error"

    def read() -> Iterator[pa.RecordBatch]:
        try:
            for batch in open_csv(open_source(), dict.fromkeys(names, pa.binary()), skip):
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
) -> tuple[pa.Table, list[Finding], list[int]]:
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
        bad = find_failing(text, convert, most)
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
    hint = ": --convert utc takes it" if "zone offset" in why else ""
    return f"is no {kind}: {found[1] if found else why}{hint}"


def _blank(text: pa.Array, bad: list[tuple[int, str]]) -> pa.Array:
    if not bad:
        return text
    places = pc.is_in(pa.array(range(len(text))), pa.array([place for place, _ in bad]))
    return pc.if_else(places, pa.scalar(None, text.type), text)


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
        return _convert_members(lines, types, columns, where)

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
    decode = json.JSONDecoder(parse_float=read_number).decode
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


def _convert_members(
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
                    bad.column, bad.value, bad.reason = name, value, _explain(kind, str(error))
                    raise bad from None
            raise
    return pa.RecordBatch.from_arrays(arrays, names=list(types))
