"""Arrow values of an earlier schema as those of the base's. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Refused
from memwal.rows.json_values import from_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """How a field's values become the base's. No `members`: by a cast.

    Of a struct or list there is one for each member in the base: where it is among the stored ones
    (None: nowhere, so NULL), and how that one's values become the base's (None: as they are).
    """

    members: tuple[tuple[int | None, Change | None], ...] = ()


def convert(array: pa.Array, kind: pa.DataType, change: Change) -> pa.Array:
    """The array's values as `kind`. Raises Refused for one that is out of its range."""
    if not change.members:
        try:
            return array.cast(kind)
        except pa.ArrowInvalid as error:
            raise Refused("MW-K08", f"a value is none of {kind}: {error}") from None
    # Neither the bounds of a slice nor what lies behind NULL are to be thought of from here on.
    whole = array if not array.offset else pa.concat_arrays([array])
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [
                _member(whole, place, field.type, inner)
                for field, (place, inner) in zip(kind, change.members, strict=True)
            ],
            fields=list(kind),
            mask=whole.is_null(),
        )
    (_, inner), nulls = change.members[0], whole.is_null()
    values = whole.values if inner is None else convert(whole.values, kind.value_type, inner)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    if pa.types.is_large_list(kind):
        offsets = whole.offsets.cast(pa.int64())
        return pa.LargeListArray.from_arrays(offsets, values, type=kind, mask=nulls)
    return pa.ListArray.from_arrays(whole.offsets, values, type=kind, mask=nulls)


def _member(
    array: pa.StructArray, place: int | None, kind: pa.DataType, change: Change | None
) -> pa.Array:
    if place is None:
        return pa.nulls(len(array), kind)
    found = array.field(place)
    return found if change is None else convert(found, kind, change)


def fill_default(array: pa.Array, default: str) -> pa.Array:
    """The array with the default, which is JSON, in place of NULL. Raises ValueError for one that
    is no value of its type.
    """
    if not array.null_count:
        return array
    (value,) = from_json([json.loads(default)], array.type)
    return pc.fill_null(array, value)
