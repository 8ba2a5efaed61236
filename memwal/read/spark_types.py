"""Converts Arrow columns to Spark's types, by their JSON names and without pyspark.

A type that Spark lacks is widened if another one holds its values exactly: unsigned integers to the
next signed size, uint64 to decimal(20, 0), float16 to float. A type that Spark can't hold is an
error that names the column, when the table is loaded; a value that it can't hold (a nanosecond, a
date out of range) is an error when it is read. Nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types

from memwal.errors import Refused, Unsupported, Usage

Json = dict[str, Any]

# Spark loads a batch as a whole, in the JVM.
_BATCH_BYTES_MAX = 16 * 1024 * 1024
_DECIMAL_DIGITS_MAX = 38

_LEAVE_OUT = "leave it out: name the columns that you want in the option `columns`"

# Tested in this order, after dictionaries, lists and other nested types.
_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_null, "void"),
    (types.is_boolean, "boolean"),
    (types.is_int8, "byte"),
    (types.is_int16, "short"),
    (types.is_int32, "integer"),
    (types.is_int64, "long"),
    (types.is_uint8, "short"),
    (types.is_uint16, "integer"),
    (types.is_uint32, "long"),
    (types.is_uint64, "decimal(20,0)"),
    (types.is_float16, "float"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_large_string, "string"),
    (types.is_string_view, "string"),
    (types.is_binary, "binary"),
    (types.is_large_binary, "binary"),
    (types.is_binary_view, "binary"),
    (types.is_fixed_size_binary, "binary"),
    (types.is_date, "date"),
    (types.is_duration, "interval day to second"),
    (types.is_time32, "time(6)"),
)
_LISTS = (types.is_list, types.is_large_list, types.is_fixed_size_list)


def convert_schema(schema: pa.Schema) -> Json:
    """The schema as Spark's JSON; every column may be null. Raises Unsupported."""
    return _convert_struct(list(schema), "")


def _convert_struct(fields: list[pa.Field], path: str) -> Json:
    return {
        "type": "struct",
        "fields": [
            {
                "name": field.name,
                "type": _convert_type(field.type, f"{path}{field.name}"),
                "nullable": True,
                "metadata": {},
            }
            for field in fields
        ],
    }


def _convert_type(kind: pa.DataType, path: str) -> str | Json:
    if types.is_dictionary(kind):
        return _convert_type(kind.value_type, path)
    if any(is_list(kind) for is_list in _LISTS):
        element = _convert_type(kind.value_type, f"{path}[]")
        return {"type": "array", "elementType": element, "containsNull": True}
    if types.is_map(kind):
        return {
            "type": "map",
            "keyType": _convert_type(kind.key_type, f"{path}[key]"),
            "valueType": _convert_type(kind.item_type, f"{path}[value]"),
            "valueContainsNull": True,
        }
    if _is_blob(kind):  # bytes, or the address of a file
        kind = kind.storage_type
    if types.is_struct(kind):
        return _convert_struct([kind.field(i) for i in range(kind.num_fields)], f"{path}.")
    if types.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if types.is_decimal(kind) and kind.scale >= 0:
        digits = max(kind.precision, kind.scale)
        if digits <= _DECIMAL_DIGITS_MAX:
            return f"decimal({digits},{kind.scale})"
    if types.is_time64(kind) and kind.unit == "us":
        return "time(6)"
    # An extension type means more than the bytes that it is stored as.
    for is_kind, name in () if isinstance(kind, pa.BaseExtensionType) else _PLAIN:
        if is_kind(kind):
            return name
    raise Unsupported(
        "MW-Q02", f"column {path!r}: Spark has no type for Arrow's {kind}; {_LEAVE_OUT}"
    )


def check_schema(asked: Json, found: Json) -> None:
    """Raise Usage unless a schema that the user gave has columns of the table's schema.

    Whether a column may be null is not compared.
    """
    known = {field["name"]: field["type"] for field in found["fields"]}
    for field in asked["fields"]:
        name = field["name"]
        if name not in known:
            raise Usage(f"the schema names a column {name!r}; there are {', '.join(known)}")
        if _strip(field["type"]) != _strip(known[name]):
            raise Usage(
                f"the schema gives the column {name!r} another type than the table, which has "
                f"{known[name]}; cast it after it is read"
            )


def _strip(kind: Any) -> Any:
    """A type's JSON without nullability and metadata."""
    if isinstance(kind, list):
        return [_strip(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    left_out = ("containsNull", "valueContainsNull", "nullable", "metadata")
    return {key: _strip(part) for key, part in kind.items() if key not in left_out}


def convert_batch(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows in Spark's own Arrow schema, in batches of bounded size.

    Raises Refused for a value that Spark can't hold.
    """
    if batch.nbytes > _BATCH_BYTES_MAX and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from convert_batch(batch.slice(0, half), schema)
        yield from convert_batch(batch.slice(half), schema)
        return
    arrays = [_cast(array, field) for array, field in zip(batch.columns, schema, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_blob(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "lance.blob.v2"


def _cast(array: pa.Array, field: pa.Field) -> pa.Array:
    if _is_blob(array.type):
        array = array.storage
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise Refused(
            "MW-Q03",
            f"column {field.name!r} ({array.type}) has a value that Spark can't hold: {error}; "
            f"{_LEAVE_OUT}, or leave its row out with the option `filter`",
        ) from None
