"""Arrow values as those of a column: exactly, or refused (`memwal.rows.pairs`). Pure.

Views, dictionaries and run-end-encoded arrays are made plain first. Arrow can take no rows of some
of them, and its own cast of a view of lists makes an array that is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.ingest.values.texts import parse_texts
from memwal.rows.floats import narrow, read_floats, read_integers
from memwal.rows.json_values import make_lists, make_maps, make_structs
from memwal.rows.pairs import Lenience, check_pair, find_kind, is_nested

# Any integer of 64 bits is one.
_INTEGER = pa.decimal128(20, 0)


def make_plain(rows: pa.Table) -> pa.Table:
    """The rows without views, dictionaries and run-end-encoded columns."""
    schema = make_plain_schema(rows.schema)
    if schema == rows.schema:
        return rows
    columns = [
        pa.chunked_array([_make_plain(chunk) for chunk in column.chunks], field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def make_plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of rows that are made plain."""
    return pa.schema([_make_plain_field(field) for field in schema], schema.metadata)


def _make_plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_make_plain_type(field.type))


def _make_plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _make_plain_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_map(kind):
        parts = _make_plain_field(kind.key_field), _make_plain_field(kind.item_field)
        return pa.map_(*parts, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([_make_plain_field(field) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_make_plain_field(kind.value_field), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_make_plain_field(kind.value_field))
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_make_plain_field(kind.value_field))
    return kind


def _make_plain(array: pa.Array) -> pa.Array:
    kind = _make_plain_type(array.type)
    if kind == array.type:
        return array
    if pa.types.is_dictionary(array.type):
        return _make_plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(array.type):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return _make_plain(array.values).take(pa.array(runs))
    if is_nested(kind):
        return _rebuild(array, kind, lambda part, inner: _make_plain(part))
    return array.cast(kind)


def convert_column(
    column: pa.ChunkedArray, kind: pa.DataType, lenience: Lenience
) -> pa.ChunkedArray:
    """`convert`, for a table's column."""
    if column.type == kind:
        return column
    parts = column.chunks or [pa.array([], column.type)]
    return pa.chunked_array([convert(part, kind, lenience) for part in parts], kind)


def convert(
    array: pa.Array, kind: pa.DataType, lenience: Lenience, *, is_written: bool = False
) -> pa.Array:
    """A plain array as one of another type.

    Raises ValueError (as pyarrow's errors are) for types that don't go together, and for a value
    that the type can't hold. Members that structs lack are NULL, and unknown ones are left out.
    Floats that were `written`, as Python's are, may be such as texts may be.
    """
    if array.type == kind:
        return array
    inner = partial(convert, lenience=lenience, is_written=is_written)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, inner(array, kind.storage_type))
    if isinstance(array.type, pa.BaseExtensionType):
        return inner(array.storage, kind)
    if pa.types.is_dictionary(kind):
        return inner(array, kind.value_type).cast(kind)
    source, column = find_kind(array.type), find_kind(kind)
    check_pair(
        "python_float" if is_written and source == "float" else source, kind, lenience, array.type
    )
    rounds = "round" in lenience.conversions
    match source, column:
        case "null", _:
            return pa.nulls(len(array), kind)
        case (("list" | "struct" | "map"), _):
            return _rebuild(array, kind, inner)
        case "int", "float":
            return read_integers(array, kind, rounds=rounds)
        case "float", "float":
            return narrow(array, kind, rounds=rounds, is_written=is_written)
        case "float", "decimal":
            return array.cast(pa.float64()).cast(pa.string()).cast(kind)
        case "decimal", "float":
            return read_floats(array.cast(pa.string()), kind, rounds=rounds)
        case "decimal", "int" if array.type.scale > 0:
            raise ValueError(f"{array.type} is no {kind}")
        case "int", "decimal":
            return array.cast(_INTEGER).cast(kind)
        case "text", other if other != "text":
            return parse_texts(array, kind, lenience)
    return array.cast(kind)


def _rebuild(
    array: pa.Array, kind: Any, inner: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.Array:
    """A list, struct or map as one of another type, its members as `inner` makes them."""
    nulls = array.is_null()
    if pa.types.is_struct(kind):
        there = dict(zip(array.type.names, array.flatten(), strict=True))
        columns = [
            inner(there[f.name], f.type) if f.name in there else pa.nulls(len(array), f.type)
            for f in kind
        ]
        return make_structs(columns, kind, nulls)
    if pa.types.is_map(kind):
        ends = array.offsets.to_numpy()
        first, count = int(ends[0]), int(ends[-1] - ends[0])
        keys, items = array.keys.slice(first, count), array.items.slice(first, count)
        keys, items = inner(keys, kind.key_type), inner(items, kind.item_type)
        return make_maps(np.diff(ends), keys, items, kind, nulls)
    sizes = pc.list_value_length(array).fill_null(0).to_numpy()
    return make_lists(sizes, inner(array.flatten(), kind.value_type), kind, nulls)
