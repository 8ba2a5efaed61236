"""Changes a table's schema in ways that Lance refuses under a MemWAL: in raw commits of its own.

A column keeps its field id. `memwal schema` does the same; this is for tests of what reads and
merges make of older rows.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile
from lance.schema import LanceSchema

LOGICAL = {
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float64(): "double",
    pa.large_string(): "large_string",
    pa.string(): "string",
    pa.list_(pa.float64(), 4): "fixed_size_list:double:4",
    pa.timestamp("ns"): "timestamp:ns:-",
    pa.timestamp("s"): "timestamp:s:-",
}


def widen(uri: str, column: str, kind: pa.DataType, **options: Any) -> None:
    """Give a top-level column another type, with its values and its field id."""
    dataset = lance.dataset(uri)
    field_id = dict(_ids(dataset))[column]
    found = pa.schema([pa.field(column, kind)])
    fragments = []
    for fragment in dataset.get_fragments():
        rows = fragment.scanner(columns=[column], with_row_id=True, include_deleted_rows=True)
        name = f"{uuid.uuid4()}.lance"
        path = f"{uri}/data/{name}"
        first = fragment.metadata.files[0]
        version = (first.file_major_version, first.file_minor_version)
        with LanceFileWriter(path, found, version=".".join(map(str, version))) as writer:
            writer.write_batch(rows.to_table().select([column]).cast(found))
        files = [
            DataFile(
                f._path,
                [-2 if one == field_id else one for one in f.fields],
                f.column_indices,
                *version,
                f.file_size_bytes,
                f.base_id,
            )
            for f in fragment.metadata.files
        ]
        files.append(DataFile(name, [field_id], [0], *version, Path(path).stat().st_size))
        fragments.append(replace(fragment.metadata, files=files))
    former = {"memwal:former_types": json.dumps([str(dataset.schema.field(column).type)])}
    metadata = {**former, **options.pop("metadata", {})}
    schema = _schema(dataset, column, logical=LOGICAL[kind], metadata=metadata, **options)
    operation = lance.LanceOperation.Merge(fragments, schema)
    lance.LanceDataset.commit(uri, operation, read_version=dataset.version)


def require(uri: str, column: str, default: str | None) -> None:
    """Let a top-level column, whose values are all there, be NULL no more."""
    dataset = lance.dataset(uri)
    metadata = {} if default is None else {"memwal:default": default}
    schema = _schema(dataset, column, nullable=False, metadata=metadata)
    operation = lance.LanceOperation.Project(schema)
    lance.LanceDataset.commit(uri, operation, read_version=dataset.version)


def fill(uri: str, column: str, value: Any) -> None:
    """Give the rows of the base a value where they have NULL."""
    dataset = lance.dataset(uri)
    if not dataset.count_rows():
        return
    sql = repr(value) if isinstance(value, str) else str(value)
    dataset.update({column: sql}, where=f"{column} IS NULL")


def _ids(dataset: Any) -> Iterator[tuple[str, int]]:
    """All fields, depth first, as the parts of a pickled schema have them."""

    def visit(fields: Sequence[Any]) -> Iterator[tuple[str, int]]:
        for field in fields:
            yield field.name(), field.id()
            yield from visit(field.children())

    yield from visit(dataset.lance_schema.fields())


def _schema(dataset: Any, column: str, **changed: Any) -> Any:
    metadata, *parts = dataset.lance_schema.__reduce__()[1]
    (place,) = [n for n, (name, _) in enumerate(_ids(dataset)) if name == column]
    arrow = dataset.schema.field(column)
    found = {"logical": LOGICAL.get(arrow.type), "nullable": arrow.nullable, "metadata": {}}
    field_id = dict(_ids(dataset))[column]
    parts[place] = _field(column, field_id, **{**found, **changed})
    return LanceSchema._from_protos(metadata, *parts)


def _field(
    name: str, field_id: int, *, logical: str, nullable: bool, metadata: Mapping[str, str]
) -> bytes:
    """Lance's Field message: name, id, no parent, type, nullable, encoding, metadata."""
    made = b"\x12" + _bytes(name.encode()) + b"\x18" + _number(field_id)
    made += b" " + _number(2**64 - 1) + b"*" + _bytes(logical.encode())
    made += (b"0\x01" if nullable else b"") + b"8\x01"
    for key, value in metadata.items():
        made += b"R" + _bytes(b"\n" + _bytes(key.encode()) + b"\x12" + _bytes(value.encode()))
    return made


def _bytes(value: bytes) -> bytes:
    return _number(len(value)) + value


def _number(value: int) -> bytes:
    made = b""
    while value > 127:
        made += bytes([value & 127 | 128])
        value >>= 7
    return made + bytes([value])
