"""Which types take every value of another exactly, and the values of an older schema as theirs.

Exact is a matter of types, except for times in finer units: there a value may be out of range, and
is refused by itself. Pure (Arrow).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from memwal.errors import Refused
from memwal.rows.json_values import from_json

DEFAULT_KEY = b"memwal:default"
"""Under this, a column's field metadata has its default, as JSON."""

FORMER_TYPES_KEY = b"memwal:former_types"
"""Under this, those that it was widened from, as a list in JSON."""

_Test = Callable[[pa.DataType], bool]
_FLOAT_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
_UNITS = ("s", "ms", "us", "ns")
_PARAMETERS = re.compile(r"(\w+)[\[(]([^\])]*)[\])]")


def is_exact(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether each value of `old` is one of `new`, but for times that a finer unit can't hold."""
    if old == new:
        return True
    if _is_list(old) and _is_list(new):
        if pa.types.is_large_list(old) and not pa.types.is_large_list(new):
            return False
        return is_exact(old.value_type, new.value_type)
    for same in (pa.types.is_fixed_size_list, pa.types.is_map, pa.types.is_struct):
        if same(old) or same(new):
            return same(old) and same(new) and _are_members_exact(old, new)
    return any(is_old(old) and is_new(old, new) for is_old, is_new in _WIDENINGS)


def _are_members_exact(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_fixed_size_list(old):
        return bool(old.list_size == new.list_size) and is_exact(old.value_type, new.value_type)
    if pa.types.is_map(old):
        return bool(old.key_type == new.key_type) and is_exact(old.item_type, new.item_type)
    return bool(old.names == new.names) and all(
        is_exact(a.type, b.type) for a, b in zip(old, new, strict=True)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _fits_integer(old: pa.DataType, new: pa.DataType) -> bool:
    """Floats have room for whole numbers of as many bits as they are exact."""
    signed = pa.types.is_signed_integer(old)
    if pa.types.is_floating(new):
        return bool(old.bit_width - signed <= _FLOAT_BITS[new])
    if not pa.types.is_integer(new):
        return False
    if pa.types.is_signed_integer(new) == signed:
        return bool(old.bit_width < new.bit_width)
    return not signed and bool(old.bit_width < new.bit_width)


def _fits_float(old: pa.DataType, new: pa.DataType) -> bool:
    return pa.types.is_floating(new) and bool(old.bit_width < new.bit_width)


def _fits_decimal(old: pa.DataType, new: pa.DataType) -> bool:
    if not pa.types.is_decimal(new) or new.bit_width < old.bit_width:
        return False
    return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)


def _fits_bytes(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_fixed_size_binary(old):
        return bool(pa.types.is_binary(new) or pa.types.is_large_binary(new))
    return bool(pa.types.is_large_binary(new))


def _fits_text(old: pa.DataType, new: pa.DataType) -> bool:
    return bool(pa.types.is_large_string(new))


def _fits_day(old: pa.DataType, new: pa.DataType) -> bool:
    return bool(pa.types.is_date64(new) or (pa.types.is_timestamp(new) and new.tz is None))


def _is_finer(old: pa.DataType, new: pa.DataType) -> bool:
    tests = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)
    if not any(test(old) and test(new) for test in tests):
        return False
    if getattr(old, "tz", None) != getattr(new, "tz", None):
        return False
    return _UNITS.index(old.unit) < _UNITS.index(new.unit)


def _has_unit(kind: pa.DataType) -> bool:
    tests = (pa.types.is_timestamp, pa.types.is_duration, pa.types.is_time)
    return any(test(kind) for test in tests)


_WIDENINGS: tuple[tuple[_Test, Callable[[pa.DataType, pa.DataType], bool]], ...] = (
    (pa.types.is_integer, _fits_integer),
    (pa.types.is_floating, _fits_float),
    (pa.types.is_decimal, _fits_decimal),
    (pa.types.is_string, _fits_text),
    (pa.types.is_binary, _fits_bytes),
    (pa.types.is_fixed_size_binary, _fits_bytes),
    (pa.types.is_date32, _fits_day),
    (_has_unit, _is_finer),
)


@lru_cache(maxsize=1024)
def parse_leaf(text: str) -> pa.DataType | None:
    """The type, without nested ones, that Arrow renders like this; None for any other text."""
    try:
        return pa.type_for_alias(text)
    except ValueError:
        found = _PARAMETERS.fullmatch(text)
    if found is None:
        return None
    name, parts = found[1], [part.strip() for part in found[2].split(",")]
    try:
        match name:
            case "timestamp":
                return pa.timestamp(parts[0], parts[1].removeprefix("tz="))
            case "decimal32" | "decimal64" | "decimal128" | "decimal256":
                kind: pa.DataType = getattr(pa, name)(*map(int, parts))
                return kind
            case "fixed_size_binary":
                return pa.binary(int(parts[0]))
    except (ValueError, IndexError, TypeError):
        pass
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversion:
    """How a field's values are made of those of an older schema.

    `members` are, for each member of the new type, its place among the old type's, if it has one,
    and how its values are made, if they are not the same. `default` is JSON, in place of NULL.
    """

    members: tuple[tuple[int | None, Conversion | None], ...] = ()
    default: str | None = None


def parse_default(text: str, kind: pa.DataType) -> pa.Scalar:
    """The value of a default. Raises ValueError (as pyarrow's errors are) for what is none."""
    value = from_json([json.loads(text)], kind)[0]
    if not value.is_valid:
        raise ValueError("NULL is no default")
    return value


def convert(array: pa.Array, how: Conversion, kind: pa.DataType) -> pa.Array:
    """The values as `kind`. Raises ArrowInvalid for one that it can't hold."""
    if how.members:
        array = _convert_members(array, how.members, kind)
    elif array.type != kind:
        array = array.cast(kind)
    return array if how.default is None else fill(array, how.default)


def fill(array: pa.Array, default: str) -> pa.Array:
    """The values, with the default in place of NULL."""
    if not array.null_count:
        return array
    value = _read_default(default, array.type)
    if not pa.types.is_nested(array.type):
        return array.fill_null(value)
    # Arrow fills no nested values; it takes them.
    places = np.where(array.is_null().to_numpy(zero_copy_only=False), len(array), range(len(array)))
    return pa.concat_arrays([array, pa.array([value], array.type)]).take(pa.array(places))


def make_missing(rows: int, how: Conversion | None, kind: pa.DataType) -> pa.Array:
    """Values of a field that the older schema lacks."""
    if how is None or how.default is None:
        return pa.nulls(rows, kind)
    return pa.repeat(_read_default(how.default, kind), rows)


def _read_default(text: str, kind: pa.DataType) -> pa.Scalar:
    try:
        return parse_default(text, kind)
    except ValueError as error:
        raise Refused("MW-K13", f"the default {text} is no {kind}: {error}") from None


def _convert_members(
    array: pa.Array, members: tuple[tuple[int | None, Conversion | None], ...], kind: pa.DataType
) -> pa.Array:
    nulls = array.is_null()
    if pa.types.is_struct(kind):
        fields = list(kind)
        arrays = [
            _convert_member(array, place, how, field.type)
            for field, (place, how) in zip(fields, members, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=nulls)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        inner = array.values.slice(array.offset * size, len(array) * size)
        if array.null_count:  # what is below them must not be looked at
            there = np.repeat(array.is_valid().to_numpy(zero_copy_only=False), size)
            places = pa.array(np.arange(len(inner)), mask=~there)
            inner = inner.take(places)
        return pa.FixedSizeListArray.from_arrays(
            _convert_inner(inner, members[0][1], kind.value_type), type=kind, mask=nulls
        )
    array = _as_list(array) if pa.types.is_map(kind) else array
    inner = array.flatten()
    sizes = array.value_lengths().fill_null(0).to_numpy()
    ends = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    large = pa.types.is_large_list(kind)
    offsets = pa.array(ends, pa.int64() if large else pa.int32())
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        inner = _convert_inner(inner, members[0][1], entries)
        keys, items = inner.field(0), inner.field(1)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=nulls)
    inner = _convert_inner(inner, members[0][1], kind.value_type)
    of_lists = pa.LargeListArray if large else pa.ListArray
    return of_lists.from_arrays(offsets, inner, type=kind, mask=nulls)


def _as_list(array: pa.MapArray) -> pa.ListArray:
    """A map as the list of its entries; Arrow's own functions for lists take no maps."""
    kind = array.type
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    buffers = array.buffers()[:2]
    return pa.ListArray.from_buffers(
        pa.list_(entries.type), len(array), buffers, offset=array.offset, children=[entries]
    )


def _convert_member(
    array: pa.StructArray, place: int | None, how: Conversion | None, kind: pa.DataType
) -> pa.Array:
    if place is None:
        return make_missing(len(array), how, kind)
    if how is not None and array.null_count:
        # What is below a NULL must not be looked at, nor be refused.
        return _convert_inner(array.flatten()[place], how, kind)
    return _convert_inner(array.field(place), how, kind)


def _convert_inner(array: pa.Array, how: Conversion | None, kind: pa.DataType) -> pa.Array:
    return array if how is None else convert(array, how, kind)
