"""Arrow values as JSON has them, and back, exactly.

Bytes are base64, times ISO 8601, durations seconds, decimals text, a map a list of pairs. What is
no number in JSON (NaN, infinities, seconds that a double does not hold) is text.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal, DecimalException, InvalidOperation, localcontext
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal.rows.floats import narrow, read_floats
from memwal.rows.pairs import STRICT, Lenience, check_pair, is_bytes, is_list, is_nested

# Up to here, dividing by a power of ten and rounding back gives the same number.
_EXACT_SECONDS_MAX = 2**52
_UNITS_DIGITS = 20
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = r"^\d{4}-\d\d-\d\d$"
_OFFSET = r"\d:\d\d.*([Zz]|[-+]\d\d(:?\d\d)?)$"


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
    if is_list(kind):
        inner = to_json(column.flatten())
        sizes = column.value_lengths().fill_null(0).to_pylist()
        if pa.types.is_fixed_size_list(kind):
            sizes = [kind.list_size if there else 0 for there in column.is_valid().to_pylist()]
        ends = accumulate(sizes)
        rows = [inner[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        return _with_nulls(column, rows)
    return [None if value is None else _leaf_to_json(value) for value in _list_leaves(column)]


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
            None if n is None else _divide(n, _PER_SECOND[kind.unit])
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


def from_json(values: Sequence[Any], kind: pa.DataType, lenience: Lenience = STRICT) -> pa.Array:
    """JSON's values as a column of a type, in which `read_number` reads numbers with a fraction.

    Raises ValueError (as pyarrow's errors are) for a value that is none of the type.
    """
    if pa.types.is_dictionary(kind):
        return from_json(values, kind.value_type, lenience).cast(kind)
    if isinstance(kind, pa.BaseExtensionType):
        stored = from_json(values, kind.storage_type, lenience)
        return pa.ExtensionArray.from_storage(kind, stored)
    for given in set(map(type, values)) - {type(None)}:
        shown = next(value for value in values if type(value) is given)
        check_pair(_JSON_KINDS.get(given, ""), kind, lenience, repr(shown))
    if is_nested(kind):
        return build(values, kind, lenience, partial(from_json, lenience=lenience))
    return next(read for test, read in _LEAVES if test(kind))(values, kind, lenience)


def build(
    values: Sequence[Any],
    kind: pa.DataType,
    lenience: Lenience,
    read: Callable[[Sequence[Any], pa.DataType], pa.Array],
) -> pa.Array:
    """Lists, dicts, and lists of pairs as a list, struct or map, their members as `read` reads.

    Raises ValueError for one that the type can't hold.
    """
    nulls = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        _check_members(values, kind, lenience)
        columns = [
            read([None if row is None else row.get(f.name) for row in values], f.type) for f in kind
        ]
        return make_structs(columns, kind, nulls)
    sizes = [0 if value is None else len(value) for value in values]
    items = list(chain.from_iterable(() if v is None else v for v in values))
    if pa.types.is_map(kind):
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in items):
            raise ValueError(f"expected a list of [key, value] for {kind}")
        keys = read([key for key, _ in items], kind.key_type)
        found = read([item for _, item in items], kind.item_type)
        return make_maps(sizes, keys, found, kind, nulls)
    return make_lists(sizes, read(items, kind.value_type), kind, nulls)


def make_lists(sizes: Sequence[int], items: pa.Array, kind: Any, nulls: pa.Array) -> pa.Array:
    """Lists of these sizes, 0 for NULL, of any list type. Raises ValueError for a wrong size."""
    check_nulls(kind.value_field, items, None, kind)
    if pa.types.is_fixed_size_list(kind):
        return _make_vectors(sizes, items, kind, nulls)
    large = pa.types.is_large_list(kind)
    array = pa.LargeListArray if large else pa.ListArray
    offsets = _find_offsets(sizes, pa.int64() if large else pa.int32())
    return array.from_arrays(offsets, items, type=kind, mask=nulls)


def _make_vectors(sizes: Sequence[int], items: pa.Array, kind: Any, nulls: pa.Array) -> pa.Array:
    size, gone = kind.list_size, np.asarray(nulls, dtype=bool)
    wrong = np.asarray(sizes)[~gone]
    wrong = wrong[wrong != size]
    if len(wrong):
        raise ValueError(f"a list of {wrong[0]} is no {kind}")
    if gone.any():  # there have to be items behind NULL, too
        absent = np.repeat(gone, size)
        items = items.take(pa.array(np.cumsum(~absent) - 1, mask=absent))
    return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=nulls)


def make_structs(columns: Sequence[pa.Array], kind: pa.StructType, nulls: pa.Array) -> pa.Array:
    """Structs of these members."""
    for field, column in zip(kind, columns, strict=True):
        check_nulls(field, column, nulls, kind)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=nulls)


def make_maps(
    sizes: Sequence[int], keys: pa.Array, items: pa.Array, kind: pa.MapType, nulls: pa.Array
) -> pa.Array:
    """Maps with as many entries."""
    check_nulls(kind.item_field, items, None, kind)
    offsets = _find_offsets(sizes, pa.int32())
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=nulls)


def check_nulls(
    field: pa.Field, column: pa.Array, allowed: pa.Array | None, kind: pa.DataType
) -> None:
    """Raise ValueError for a member that is NULL, where its type says it is not."""
    if field.nullable or not column.null_count:
        return
    nulls = column.is_null()
    if allowed is None or pc.any(pc.and_not(nulls, allowed)).as_py():
        raise ValueError(f"{field.name!r} may not be NULL, but is, of {kind}")


def _find_offsets(sizes: Sequence[int], kind: pa.DataType) -> pa.Array:
    return pa.array(np.append(0, np.cumsum(sizes, dtype=np.int64)), pa.int64()).cast(kind)


def _check_members(values: Sequence[Any], kind: pa.StructType, lenience: Lenience) -> None:
    names = set(kind.names)
    for row in values:
        if row is None or row.keys() == names:
            continue
        missing, unknown = sorted(names - row.keys()), sorted(row.keys() - names)
        if missing and not lenience.missing:
            raise ValueError(f"{missing[0]!r} is missing, of {kind}")
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not in {kind}")


def _read_plain(values: Sequence[Any], kind: pa.DataType, lenience: Lenience) -> pa.Array:
    try:
        return pa.array(values, kind)
    except OverflowError:
        raise ValueError(f"a number is too large for {kind}") from None


def _read_floats(values: Sequence[Any], kind: pa.DataType, lenience: Lenience) -> pa.Array:
    rounds = "round" in lenience.conversions
    if set(map(type, values)) <= {float, type(None)}:
        return narrow(pa.array(values, pa.float64()), kind, rounds=rounds, is_written=True)
    for value in values:
        if isinstance(value, str) and value not in ("nan", "inf", "-inf"):
            raise ValueError(f"{value!r} is no {kind}")
    texts = pa.array([None if v is None else str(v) for v in values], pa.string())
    return read_floats(texts, kind, rounds=rounds)


def _read_decimals(values: Sequence[Any], kind: pa.DataType, lenience: Lenience) -> pa.Array:
    try:
        return pa.array([None if v is None else Decimal(str(v)) for v in values], kind)
    except InvalidOperation:
        raise ValueError(f"a text is no {kind}") from None


def _read_bytes(values: Sequence[Any], kind: pa.DataType, lenience: Lenience) -> pa.Array:
    return pa.array([v if v is None else base64.b64decode(v, validate=True) for v in values], kind)


def _read_durations(values: Sequence[Any], kind: Any, lenience: Lenience) -> pa.Array:
    counts = [None if v is None else _count_units(v, _PER_SECOND[kind.unit], kind) for v in values]
    return pa.array(counts, pa.int64()).cast(kind)


def _count_units(seconds: object, per_second: int, kind: pa.DataType) -> int:
    with suppress(DecimalException), localcontext(prec=len(str(seconds)) + _UNITS_DIGITS):
        exact = Decimal(str(seconds)) * per_second
        fits = exact.is_finite() and exact.adjusted() < _UNITS_DIGITS
        if fits and exact == int(exact) and abs(int(exact)) < 2**63:
            return int(exact)
    raise ValueError(f"{seconds!r} seconds is no {kind}")


def _read_times(values: Sequence[Any], kind: pa.DataType, lenience: Lenience) -> pa.Array:
    texts = pa.array(values, pa.string())
    if pa.types.is_timestamp(kind) and "utc" in lenience.conversions:
        return read_utc(texts, kind)
    if not pa.types.is_time(kind):
        return texts.cast(kind)
    # Arrow reads times of day with a date only.
    days = pa.array([v if v is None else f"1970-01-01T{v}" for v in values], pa.string())
    return days.cast(pa.timestamp("ns")).cast(pa.int64()).cast(pa.time64("ns")).cast(kind)


def read_utc(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times as text, with an offset or, then in UTC, without one."""
    days = pc.if_else(pc.match_substring_regex(texts, _DAY), _join(texts, "T00:00:00"), texts)
    there = pc.match_substring_regex(days, _OFFSET)
    zoned = pc.if_else(there, days, _join(days, "Z"))
    return zoned.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


def _join(texts: pa.Array, end: str) -> pa.Array:
    return pc.binary_join_element_wise(texts, end, "")


_JSON_KINDS = {
    bool: "bool",
    int: "json_int",
    float: "json_float",
    Decimal: "json_float",
    str: "json_text",
    list: "json_list",
    dict: "json_object",
}
_Reader = Callable[[Sequence[Any], Any, Lenience], pa.Array]
_LEAVES: tuple[tuple[Callable[[pa.DataType], bool], _Reader], ...] = (
    (pa.types.is_floating, _read_floats),
    (pa.types.is_decimal, _read_decimals),
    (pa.types.is_duration, _read_durations),
    (pa.types.is_temporal, _read_times),
    (is_bytes, _read_bytes),
    (lambda kind: True, _read_plain),
)
