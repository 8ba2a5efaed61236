"""Reads CSV as text, for files in which not all values have the wanted types.

pyarrow's reader gives up at the first bad value or row of a file. In that case the values are read
as text, and converted by the same converter, one column of a chunk at a time; a column with bad
values is converted in ever smaller parts.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from memwal.errors import Usage
from memwal.ingest.values.findings import Finding, find_failing, show_value
from memwal.ingest.values.numbered_chunks import (
    LEFT_OUT_MAX,
    check_left_out,
    find_marks,
    is_text_column,
    mark_chunks,
)
from memwal.ingest.values.texts import find_csv_types, parse_texts
from memwal.rows.json_values import Lenience, is_bytes

# As Arrow and pandas write NULL: an empty field is NULL, "" an empty text. Words such as NA or nan
# are ordinary values.
_NULLS = {
    "null_values": [""],
    "strings_can_be_null": True,
    "quoted_strings_can_be_null": False,
}
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
        source,
        # Row numbers are only known when reading in one thread.
        read_options=pacsv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=invalid is None),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, invalid_row_handler=invalid),
        convert_options=pacsv.ConvertOptions(column_types=dict(types), **_NULLS),
    )


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
        convert = partial(_convert, kind=kind, lenience=lenience)
        bad = find_failing(text, convert, most)
        for place, why in bad:
            value = text[place].as_py().decode(errors="replace")
            reason = f"is no {kind}: {why.rpartition(f'error to {kind}: ')[2]}"
            found.append(Finding(place=place, column=name, value=value, reason=reason))
        # With more than `most` bad values, rows after the last one found are not converted.
        known = text[: bad[-1][0]] if len(bad) >= most else text
        values = convert(_blank(known, bad))
        arrays.append(pa.concat_arrays([values, pa.nulls(len(text) - len(values), values.type)]))
    return pa.table(arrays, names=chunk.column_names), found, marks.number_rows(len(chunk))


def _blank(text: pa.Array, bad: list[tuple[int, str]]) -> pa.Array:
    if not bad:
        return text
    places = pc.is_in(pa.array(range(len(text))), pa.array([place for place, _ in bad]))
    return pc.if_else(places, pa.scalar(None, text.type), text)


def _convert(text: pa.Array, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    """The text as values of `kind`, as the CSV reader would read them."""
    if is_bytes(kind):
        return parse_texts(text, kind, lenience)
    table = pa.table({"value": text.cast(pa.string())})
    if find_csv_types({"value": kind})["value"] != kind:
        return parse_texts(table["value"].combine_chunks(), kind, lenience)
    if pa.types.is_string(kind):
        return table["value"].combine_chunks()
    out = io.BytesIO()
    pacsv.write_csv(table, out, pacsv.WriteOptions(include_header=False))
    if not len(text):
        return pa.array([], kind)
    return pacsv.read_csv(
        io.BytesIO(out.getvalue()),
        read_options=pacsv.ReadOptions(column_names=["value"], use_threads=False),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(column_types={"value": kind}, **_NULLS),
    )["value"].combine_chunks()
