"""Arrow values as JSON has them, and back, exactly.

Bytes are base64, times ISO 8601, durations seconds, decimals text, a map a list of pairs. What is
no number in JSON (NaN, infinities, seconds that a double does not hold) is text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa

from memwal.sharding.values import PER_SECOND

# Up to here, dividing by a power of ten and rounding back gives the same number.
_EXACT_SECONDS_MAX = 2**52
# Of a unit: what a sum of doubles may be off.
_SLACK = Decimal("0.001")


# ---- to JSON


def rows_to_json(batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """Rows as JSON has them.

    A blob is its bytes, or an object with the `uri` that it refers to, and `position` and `size`
    where it is a part of that file.
    """
    found = []
    for batch in batches:
        columns = [column_to_json(column) for column in batch.columns]
        names = batch.schema.names
        found += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found


def column_to_json(column: pa.Array) -> list[Any]:
    """A column's values as JSON has them, blobs too."""
    if not is_blob(column.type):
        return to_json(column)
    return [_blob_to_json(value) for value in column.to_pylist()]


def is_blob(kind: pa.DataType) -> bool:
    """Whether the values are blobs, wherever those lie."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "lance.blob.v2"


def _blob_to_json(value: dict[str, Any] | None) -> Any:
    if value is None or value["uri"] is None:
        data = None if value is None else value["data"]
        return None if data is None else base64.b64encode(data).decode()
    return {name: part for name, part in value.items() if name != "data" and part is not None}


def to_json(column: pa.Array) -> list[Any]:
    """A column's values as `json.dumps` takes them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return to_json(column.dictionary_decode())
    if pa.types.is_struct(kind):
        parts = zip(*map(to_json, column.flatten()), strict=True)
        return _with_nulls(column, [dict(zip(kind.names, row, strict=True)) for row in parts])
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        maps = to_json(pa.ListArray.from_arrays(column.offsets, entries))
        return _with_nulls(column, [[[p["key"], p["value"]] for p in pairs] for pairs in maps])
    if _is_list(kind):
        inner = to_json(column.flatten())
        sizes = column.value_lengths().fill_null(0).to_pylist()
        if pa.types.is_fixed_size_list(kind):
            sizes = [kind.list_size if there else 0 for there in column.is_valid().to_pylist()]
        ends = accumulate(sizes)
        rows = [inner[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return _with_nulls(column, rows)
    return [None if value is None else _leaf_to_json(value) for value in _list_leaves(column)]


def is_bytes(kind: pa.DataType) -> bool:
    """Whether it is one of the binary types."""
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _with_nulls(column: pa.Array, rows: list[Any]) -> list[Any]:
    there = column.is_valid().to_pylist()
    return [row if valid else None for row, valid in zip(rows, there, strict=True)]


def _list_leaves(column: pa.Array) -> list[Any]:
    """Python values; nanoseconds as text, as Python's own times do not hold them."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        zone = "+00:00" if kind.tz else ""
        text = column.cast(pa.timestamp("ns")).cast(pa.string()).to_pylist()
        return [None if t is None else t.replace(" ", "T") + zone for t in text]
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_duration(kind):
        return [
            None if n is None else _divide(n, PER_SECOND[kind.unit])
            for n in column.cast(pa.int64()).to_pylist()
        ]
    return list(column.to_pylist())


def _divide(count: int, per_second: int) -> float | str:
    if abs(count) < _EXACT_SECONDS_MAX:
        return count / per_second
    return str(Decimal(count).scaleb(1 - len(str(per_second))))


def _leaf_to_json(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, bool | int | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# ---- and back


@dataclass(frozen=True, kw_only=True, slots=True)
class Lenience:
    """What structs may lack, which becomes NULL, and may have besides, which is left out."""

    missing: bool = False
    unknown: bool = False


_STRICT = Lenience()


def from_json(values: Sequence[Any], kind: pa.DataType, lenience: Lenience = _STRICT) -> pa.Array:
    """JSON's values as a column of a type.

    Raises ValueError (as pyarrow's errors are) for a value that is none of the type.
    """
    if pa.types.is_dictionary(kind):
        return from_json(values, kind.value_type).cast(kind)
    if pa.types.is_struct(kind):
        return _read_structs(values, kind, lenience)
    if pa.types.is_map(kind):
        return _read_maps(values, kind, lenience)
    if _is_list(kind):
        return _read_lists(values, kind, lenience)
    for test, read in _LEAVES:
        if test(kind):
            return read(values, kind)
    return pa.array(values, kind)


def _check(values: Sequence[Any], kind: pa.DataType, *allowed: type) -> None:
    if set(map(type, values)) <= {*allowed, type(None)}:
        return
    wrong = next(v for v in values if v is not None and type(v) not in allowed)
    raise ValueError(f"{wrong!r} is no {kind}")


def _read_structs(values: Sequence[Any], kind: pa.StructType, lenience: Lenience) -> pa.Array:
    _check(values, kind, dict)
    fields, names = list(kind), set(kind.names)
    for row in values:
        if row is None or row.keys() == names:
            continue
        missing, unknown = sorted(names - row.keys()), sorted(row.keys() - names)
        if missing and not lenience.missing:
            raise ValueError(f"{missing[0]!r} is missing, of {kind}")
        if unknown and not lenience.unknown:
            raise ValueError(f"{unknown[0]!r} is not in {kind}")
    columns = [
        from_json([None if row is None else row.get(f.name) for row in values], f.type, lenience)
        for f in fields
    ]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=_find_nulls(values))


def _read_lists(values: Sequence[Any], kind: Any, lenience: Lenience) -> pa.Array:
    _check(values, kind, list)
    nulls = _find_nulls(values)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        wrong = next((v for v in values if v is not None and len(v) != size), None)
        if wrong is not None:
            raise ValueError(f"a list of {len(wrong)} is no {kind}")
        filled = chain.from_iterable([None] * size if v is None else v for v in values)
        inner = from_json(list(filled), kind.value_type, lenience)
        return pa.FixedSizeListArray.from_arrays(inner, type=kind, mask=nulls)
    filled = chain.from_iterable(v or () for v in values)
    inner = from_json(list(filled), kind.value_type, lenience)
    large = pa.types.is_large_list(kind)
    offsets = pa.array(_find_offsets(values), pa.int64() if large else pa.int32())
    array = pa.LargeListArray if large else pa.ListArray
    return array.from_arrays(offsets, inner, type=kind, mask=nulls)


def _read_maps(values: Sequence[Any], kind: pa.MapType, lenience: Lenience) -> pa.Array:
    _check(values, kind, list)
    pairs = list(chain.from_iterable(v or () for v in values))
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"expected a list of [key, value] for {kind}")
    keys = from_json([key for key, _ in pairs], kind.key_type, lenience)
    items = from_json([item for _, item in pairs], kind.item_type, lenience)
    offsets = pa.array(_find_offsets(values), pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=_find_nulls(values))


def _find_nulls(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values], pa.bool_())


def _find_offsets(values: Sequence[Any]) -> list[int]:
    return [0, *accumulate(len(value or ()) for value in values)]


def _read_integers(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, int)
    try:
        return pa.array(values, kind)
    except OverflowError:
        raise ValueError(f"a number is too large for {kind}") from None


def _read_floats(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    words = {"nan", "inf", "-inf"}
    numbers = [float(v) if isinstance(v, Decimal) or v in words else v for v in values]
    _check(numbers, kind, int, float)
    return pa.array(numbers, kind)


def _read_decimals(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, int, float, str, Decimal)
    try:
        return pa.array([None if v is None else Decimal(str(v)) for v in values], kind)
    except InvalidOperation:
        raise ValueError(f"a text is no {kind}") from None


def _read_bytes(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, str)
    return pa.array([v if v is None else base64.b64decode(v, validate=True) for v in values], kind)


def _read_durations(values: Sequence[Any], kind: Any) -> pa.Array:
    _check(values, kind, int, float, str, Decimal)
    counts = [None if v is None else _count_units(v, PER_SECOND[kind.unit], kind) for v in values]
    return pa.array(counts, pa.int64()).cast(kind)


def _count_units(seconds: object, per_second: int, kind: pa.DataType) -> int:
    try:
        exact = Decimal(str(seconds)) * per_second
        if abs(exact - round(exact)) <= _SLACK:
            return round(exact)
    except (InvalidOperation, ValueError, OverflowError):
        pass
    raise ValueError(f"{seconds!r} seconds is no {kind}")


def _read_times(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, str)
    texts = pa.array(values, pa.string())
    if not pa.types.is_time(kind):
        return texts.cast(kind)
    # Arrow reads times of day with a date only.
    days = pa.array([v if v is None else f"1970-01-01T{v}" for v in values], pa.string())
    return days.cast(pa.timestamp("ns")).cast(pa.int64()).cast(pa.time64("ns")).cast(kind)


def _read_texts(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    _check(values, kind, str)
    return pa.array(values, kind)


_Reader = Callable[[Sequence[Any], Any], pa.Array]
_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], _Reader], ...] = (
    (pa.types.is_integer, _read_integers),
    (pa.types.is_floating, _read_floats),
    (pa.types.is_decimal, _read_decimals),
    (pa.types.is_duration, _read_durations),
    (pa.types.is_temporal, _read_times),
    (is_bytes, _read_bytes),
    (pa.types.is_string, _read_texts),
    (pa.types.is_large_string, _read_texts),
)
