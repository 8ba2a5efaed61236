"""Writes rows to files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from memwal.errors import StoreUnavailable, Unsupported, Usage
from memwal.rows.json_values import column_to_json, is_blob, rows_to_json
from memwal.rows.keyset import group_batches
from memwal.rows.memory import UNLIMITED, Memory
from memwal.rows.pairs import is_bytes
from memwal.run.process.whole_file import whole_file
from memwal.store.objects.full_disk import is_full

_BATCHES_A_GROUP = 4


def check_file(output: str | None) -> None:
    """Raise Usage or Unsupported unless rows can be written to a file of that name, if any."""
    if output is None:
        return
    path = Path(output)
    first, slash, _ = str(path).partition("/")
    if slash and first.endswith(":"):
        raise Unsupported("MW-Q01", "--output writes local files only")
    if path.suffix not in _WRITERS:
        raise Usage(f"--output {path}: expected a name that ends in {', '.join(_WRITERS)}")
    if not path.parent.is_dir():
        raise Usage(f"--output {path}: there is no folder {path.parent}")


def tell_rows(reader: pa.RecordBatchReader, output: str | None, memory: Memory) -> dict[str, Any]:
    """The rows as a document has them, or their number once they are in the file `output`."""
    rows = rows_to_json(reader) if output is None else None
    count = len(rows or ()) if output is None else write_file(reader, Path(output), memory)
    return {
        "schema": [{"name": f.name, "type": str(f.type)} for f in reader.schema],
        "num_rows": count,
        "rows": rows,
        "output": None if output is None else str(Path(output)),
    }


def write_file(reader: pa.RecordBatchReader, path: Path, memory: Memory = UNLIMITED) -> int:
    """Stream all rows to a file, which is replaced once it is complete; returns their number.

    CSV holds nested columns as JSON text and bytes as 0x…: `memwal ingest` reads them back. Raises
    Usage when the file's format lacks a type or the file can't be written, StoreUnavailable when
    the disk is full.
    """
    schema = _text_schema(reader.schema) if path.suffix == ".csv" else reader.schema
    rows = 0
    try:
        with whole_file(path) as file, _WRITERS[path.suffix](file, schema) as writer:
            # Large batches, since each becomes a row group or message of its own.
            for group in group_batches(reader, _BATCHES_A_GROUP * memory.batch_bytes):
                batch = pa.concat_batches(group)
                writer.write_batch(_as_text(batch, schema))
                rows += batch.num_rows
    except pa.ArrowNotImplementedError as error:
        raise Usage(f"--output {path}: {error}; .arrow holds every type") from None
    except OSError as error:
        if is_full(error):
            raise StoreUnavailable(
                f"--output {path}: the disk is full; nothing is left of it"
            ) from None
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
        is_blob,
        pa.types.is_nested,
        is_bytes,
        pa.types.is_duration,
    )
    return any(test(kind) for test in tests)


def _as_text(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with text where the file's schema has text in place of another type."""
    arrays = []
    for field, column in zip(schema, batch.columns, strict=True):
        if column.type != field.type:
            column = pa.array(_list_texts(column), field.type)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _list_texts(column: pa.Array) -> list[str | None]:
    if is_bytes(column.type):
        return [None if value is None else f"0x{value.hex()}" for value in column.to_pylist()]
    return [v if v is None or isinstance(v, str) else json.dumps(v) for v in column_to_json(column)]
