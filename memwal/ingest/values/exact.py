"""Arrow values as those of a column: exactly, or refused (`memwal.rows.pairs`). Pure.

Views, dictionaries and run-end-encoded arrays are made plain first. Arrow can take no rows of some
of them, and its own cast of a view of lists makes an array that is none.

In texts, as CSV has them, nested columns are JSON, as `memwal read --output rows.csv` writes them;
durations are seconds. Bytes are hexadecimal after 0x if every value of a chunk is; otherwise they
are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.rows.floats import narrow, read_floats, read_integers, read_number
from memwal.rows.json_values import from_json, make_lists, make_maps, make_structs, read_utc
from memwal.rows.pairs import Lenience, check_pair, find_kind, is_bytes, is_nested, is_text

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


_HEX = re.compile(rb"0x(?:[0-9a-fA-F]{2})*")


def parse_texts(texts: pa.Array, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    """Texts, or bytes, as values. Raises ValueError for an invalid one."""
    if is_bytes(kind):
        return _parse_bytes(texts.cast(pa.binary()).to_pylist()).cast(kind)
    texts = texts.cast(pa.string())
    if isinstance(kind, pa.BaseExtensionType):
        stored = parse_texts(texts, kind.storage_type, lenience)
        return pa.ExtensionArray.from_storage(kind, stored)
    if pa.types.is_dictionary(kind):
        return parse_texts(texts, kind.value_type, lenience).cast(kind)
    if is_text(kind):
        return texts.cast(kind)
    if is_nested(kind):
        return from_json([_parse_json(t, kind) for t in texts.to_pylist()], kind, lenience)
    if pa.types.is_duration(kind):
        return from_json(texts.to_pylist(), kind)
    if find_kind(kind) in ("int", "float", "decimal"):  # as Arrow's CSV reader does
        texts = pc.ascii_trim_whitespace(texts)
    if pa.types.is_floating(kind):
        rounds = "round" in lenience.conversions
        return read_floats(texts, kind, rounds=rounds)
    if pa.types.is_integer(kind):
        wrong = pc.index(pc.match_substring(texts, "x", ignore_case=True), True).as_py()
        if wrong >= 0:
            raise ValueError(f"{texts[wrong].as_py()!r} is no {kind}")
        return texts.cast(kind)
    if pa.types.is_time(kind):
        return from_json(texts.to_pylist(), kind)
    if pa.types.is_timestamp(kind) and "utc" in lenience.conversions:
        return read_utc(texts, kind)
    return texts.cast(kind)


def _parse_bytes(values: list[bytes | None]) -> pa.Array:
    there = [value for value in values if value is not None]
    in_hex = sum(_HEX.fullmatch(value) is not None for value in there)
    if 0 < in_hex < len(there):
        raise ValueError("some bytes are in hexadecimal after 0x, and others are not")
    if not in_hex:
        return pa.array(values, pa.binary())
    return pa.array([v and bytes.fromhex(v[2:].decode()) for v in values], pa.binary())


def _parse_json(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text, parse_float=read_number)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no JSON, as {kind} needs: {error}") from None
