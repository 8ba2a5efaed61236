"""Rows for the outside: as JSON, and as files."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from memwal.errors import Unsupported, Usage
from memwal.rows.keyset import group_batches
from memwal.run.whole_file import whole_file
from memwal.sharding.values import PER_SECOND


def rows_to_json(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Rows as JSON has them.

    Bytes are base64, times ISO 8601, durations seconds, decimals text, a map a list of pairs; what
    is no number in JSON (NaN, infinities) is text. A blob is its bytes, or an object with the `uri`
    that it refers to, and `position` and `size` where it is a part of that file.
    """
    found = []
    for batch in batches:
        blobs = {field.name for field in batch.schema if _is_blob(field.type)}
        for row in _with_exact_times(batch).to_pylist():
            values = {n: _read_blob(value) if n in blobs else value for n, value in row.items()}
            found.append({name: value_to_json(value) for name, value in values.items()})
    return found


def _is_blob(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "lance.blob.v2"


def _read_blob(value: dict[str, Any] | None) -> Any:
    if value is None or value["uri"] is None:
        return value and value["data"]
    return {name: part for name, part in value.items() if name != "data" and part is not None}


def _with_exact_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Nanoseconds as text: Python's own times do not hold them."""
    columns, names = [], batch.schema.names
    for column in batch.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            zone = "+00:00" if kind.tz else ""
            text = column.cast(pa.timestamp("ns")).cast(pa.string())
            column = pa.array(
                [None if t is None else t.replace(" ", "T") + zone for t in text.to_pylist()],
                pa.string(),
            )
        elif pa.types.is_time64(kind) and kind.unit == "ns":
            column = column.cast(pa.string())
        elif pa.types.is_duration(kind):
            column = pa.array(
                [
                    None if n is None else n / PER_SECOND[kind.unit]
                    for n in column.cast(pa.int64()).to_pylist()
                ],
                pa.float64(),
            )
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=names)


def value_to_json(value: object) -> Any:
    """One value as JSON has it (see `rows_to_json`)."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case dict():
            return {str(name): value_to_json(part) for name, part in value.items()}
        case list() | tuple():
            return [value_to_json(part) for part in value]
        case _:
            return str(value)


def check_file(path: Path) -> Path:
    """The path, if rows can be written to a file of that name. Raises Usage, Unsupported."""
    first, slash, _ = str(path).partition("/")
    if slash and first.endswith(":"):
        raise Unsupported("--output writes local files only")
    if path.suffix not in _WRITERS:
        raise Usage(f"--output {path}: expected a name that ends in {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise Usage(f"--output {path}: there is no folder {path.parent}")
    return path


def write_file(reader: pa.RecordBatchReader, path: Path) -> int:
    """Write all rows as a stream, replacing the file once it is whole; returns how many rows.

    CSV holds nested and binary columns as JSON text. Raises Usage where the file's format has no
    such type, or the file can't be written.
    """
    schema = _text_schema(reader.schema) if path.suffix == ".csv" else reader.schema
    rows = 0
    try:
        with whole_file(path) as file, _WRITERS[path.suffix](file, schema) as writer:
            # In large batches: each becomes a row group, or a message, of its own.
            for group in group_batches(reader):
                batch = pa.concat_batches(group)
                writer.write_batch(_as_text(batch, schema))
                rows += batch.num_rows
    except pa.ArrowNotImplementedError as error:
        raise Usage(f"--output {path}: {error}; .arrow holds every type") from None
    except OSError as error:
        raise Usage(f"--output {path}: {error}") from None
    return rows


_WRITERS = {
    ".parquet": pyarrow.parquet.ParquetWriter,
    ".arrow": pa.ipc.new_file,
    ".csv": pyarrow.csv.CSVWriter,
}


def _text_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(f.name, pa.string() if _needs_text(f.type) else f.type) for f in schema]
    )


def _needs_text(kind: pa.DataType) -> bool:
    tests = (
        _is_blob,
        pa.types.is_nested,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_fixed_size_binary,
        pa.types.is_duration,
    )
    return any(test(kind) for test in tests)


def _as_text(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with JSON text where the file's schema has text in place of another type."""
    arrays = []
    for field, column in zip(schema, batch.columns, strict=True):
        if column.type != field.type:
            one = pa.RecordBatch.from_arrays([column], names=["value"])
            column = pa.array([_text(row["value"]) for row in rows_to_json([one])], field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
