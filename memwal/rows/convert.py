"""Arrow values of an earlier schema as those of the base's. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from memwal.errors import Refused
from memwal.rows.json_values import from_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How a field's values become the base's. No `members`: by a cast.

    Of a struct, list or map there is one for each member in the base: where it is among the stored
    ones (None: nowhere, so NULL), and how that one's values become the base's (None: as they are).
    """

    members: tuple[tuple[int | None, Change | None], ...] = ()


def convert(array: pa.Array, kind: pa.DataType, change: Change) -> pa.Array:
    """The array's values as `kind`. Raises ArrowInvalid for one that is out of its range.

    What lies behind NULL is not looked at.
    """
    if not change.members:
        return array.cast(kind)
    nulls = array.is_null()
    if pa.types.is_struct(kind):
        # With the struct's own NULLs, and the bounds of a slice.
        found = array.flatten()
        arrays = [
            pa.nulls(len(array), field.type)
            if place is None
            else _convert_inner(found[place], field.type, inner)
            for field, (place, inner) in zip(kind, change.members, strict=True)
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=nulls)
    (_, inner) = change.members[0]
    if pa.types.is_fixed_size_list(kind):
        values = _convert_inner(_list_items(array), kind.value_type, inner)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    array = _as_list(array) if pa.types.is_map(kind) else array
    sizes = array.value_lengths().fill_null(0).to_numpy()
    ends = np.append(0, np.cumsum(sizes, dtype=np.int64))
    large = pa.types.is_large_list(kind)
    offsets = pa.array(ends, pa.int64() if large else pa.int32())
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        values = _convert_inner(array.flatten(), entries, inner)
        keys, items = values.field(0), values.field(1)
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=nulls)
    values = _convert_inner(array.flatten(), kind.value_type, inner)
    of_lists = pa.LargeListArray if large else pa.ListArray
    return of_lists.from_arrays(offsets, values, type=kind, mask=nulls)


def _convert_inner(array: pa.Array, kind: pa.DataType, change: Change | None) -> pa.Array:
    return array if change is None else convert(array, kind, change)


def _list_items(array: pa.FixedSizeListArray) -> pa.Array:
    """All items of lists of one size, NULL for those of a list that is NULL."""
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    if not array.null_count:
        return items
    missing = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
    return items.take(pa.array(np.arange(len(items)), mask=missing))


def _as_list(array: pa.MapArray) -> pa.ListArray:
    """A map as the list of its entries; Arrow's own functions for lists take no maps."""
    fields = [array.type.key_field, array.type.item_field]
    entries = pa.StructArray.from_arrays([array.keys, array.items], fields=fields)
    return pa.ListArray.from_buffers(
        pa.list_(entries.type),
        len(array),
        array.buffers()[:2],
        offset=array.offset,
        children=[entries],
    )


def fill_default(array: pa.Array, default: str) -> pa.Array:
    """The array with the default, which is JSON, in place of NULL.

    Raises Refused for one that is no value of its type.
    """
    if not array.null_count:
        return array
    try:
        value = from_json([json.loads(default)], array.type)
    except (ValueError, RecursionError) as error:
        raise Refused("MW-K13", f"the default {default} is no {array.type}: {error}") from None
    # Arrow fills no nested values, but it takes them.
    missing = array.is_null().to_numpy(zero_copy_only=False)
    places = np.where(missing, len(array), np.arange(len(array)))
    return pa.concat_arrays([array, value]).take(pa.array(places))
