"""Types that widen exactly, and values that are made of an older schema's."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from memwal.errors import Refused
from memwal.rows.widen import Conversion, convert, is_exact, make_missing, parse_leaf

INTEGERS = [getattr(pa, f"{u}int{bits}")() for u in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
EXACT = [
    (pa.string(), pa.large_string()),
    (pa.binary(), pa.large_binary()),
    (pa.binary(4), pa.binary()),
    (pa.decimal128(10, 2), pa.decimal128(12, 4)),
    (pa.decimal128(38, 2), pa.decimal256(40, 4)),
    (pa.date32(), pa.date64()),
    (pa.date32(), pa.timestamp("us")),
    (pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
    (pa.duration("s"), pa.duration("ms")),
    (pa.time32("s"), pa.time64("ns")),
    (pa.list_(pa.int32()), pa.large_list(pa.int64())),
    (pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2)),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16())),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int16())])),
]
INEXACT = [
    (pa.large_string(), pa.string()),
    (pa.string(), pa.binary()),
    (pa.int64(), pa.float64()),
    (pa.int32(), pa.float32()),
    (pa.int32(), pa.string()),
    (pa.int64(), pa.timestamp("us")),
    (pa.decimal128(10, 2), pa.decimal128(10, 4)),
    (pa.decimal128(10, 2), pa.decimal128(12, 1)),
    (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    (pa.timestamp("us"), pa.timestamp("ms")),
    (pa.date32(), pa.timestamp("us", "UTC")),
    (pa.timestamp("us"), pa.date32()),
    (pa.timestamp("s"), pa.duration("us")),
    (pa.large_list(pa.int32()), pa.list_(pa.int32())),
    (pa.list_(pa.int32(), 2), pa.list_(pa.int32(), 3)),
    (pa.list_(pa.int32(), 2), pa.list_(pa.int32())),
    (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int16(), pa.int8())),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())])),
    (pa.bool_(), pa.int8()),
]


@pytest.mark.parametrize(("old", "new"), EXACT, ids=str)
def test_what_widens_does_not_narrow(old: pa.DataType, new: pa.DataType) -> None:
    assert is_exact(old, new)
    assert is_exact(old, old)
    assert not is_exact(new, old)


@pytest.mark.parametrize(("old", "new"), INEXACT, ids=str)
def test_what_may_lose_something_is_not_exact(old: pa.DataType, new: pa.DataType) -> None:
    assert not is_exact(old, new)


def _ends(kind: pa.DataType) -> list[int]:
    signed = pa.types.is_signed_integer(kind)
    top = 2 ** (kind.bit_width - signed)
    return [-top if signed else 0, top - 1, top // 2 + 1]


@pytest.mark.parametrize("old", INTEGERS, ids=str)
@pytest.mark.parametrize("new", [*INTEGERS, *FLOATS], ids=str)
def test_whole_numbers_widen_where_each_one_comes_back(old: pa.DataType, new: pa.DataType) -> None:
    values = pa.array(_ends(old), old)
    try:
        is_kept = values.cast(new).cast(pa.float64() if new in FLOATS else new).to_pylist() == [
            *_ends(old)
        ]
    except pa.ArrowInvalid:
        is_kept = False
    assert is_exact(old, new) == is_kept
    if is_kept:
        assert convert(values, Conversion(), new).to_pylist() == values.to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        *INTEGERS,
        *FLOATS,
        pa.date32(),
        pa.timestamp("us"),
        pa.timestamp("ns", "Europe/Berlin"),
        pa.decimal128(10, 2),
        pa.decimal256(50, 0),
        pa.binary(7),
        pa.large_string(),
        pa.duration("s"),
        pa.time64("us"),
    ],
    ids=str,
)
def test_a_type_is_known_by_its_text(kind: pa.DataType) -> None:
    assert parse_leaf(str(kind)) == kind


@pytest.mark.parametrize(
    "text", ["list<item: int32>", "dictionary<values=string, indices=int32>", "timestamp[xy]", ""]
)
def test_no_other_text_is_a_type(text: str) -> None:
    assert parse_leaf(text) is None


def test_a_time_that_a_finer_unit_can_not_hold_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        convert(pa.array([10**12], pa.timestamp("s")), Conversion(), pa.timestamp("ns"))


WIDER = Conversion()
ITEMS = Conversion(members=((0, WIDER),))
NESTED: list[tuple[pa.DataType, pa.DataType, Conversion, Any, Any]] = [
    (
        pa.list_(pa.int32()),
        pa.large_list(pa.int64()),
        ITEMS,
        [[1, None], None, [], [2]],
        [[1, None], None, [], [2]],
    ),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), ITEMS, [[1, 2], None], [[1, 2], None]),
    (
        pa.map_(pa.string(), pa.int8()),
        pa.map_(pa.string(), pa.int64()),
        Conversion(members=((0, Conversion(members=((0, None), (1, WIDER)))),)),
        [[("a", 1)], None, []],
        [[("a", 1)], None, []],
    ),
    (
        pa.struct([("a", pa.int8()), ("gone", pa.string()), ("b", pa.string())]),
        pa.struct([("c", pa.string()), ("a", pa.int16()), ("new", pa.int8()), ("d", pa.int8())]),
        Conversion(members=((2, None), (0, WIDER), (None, None), (None, Conversion(default="7")))),
        [{"a": 1, "gone": "x", "b": "y"}, None, {"a": None, "gone": None, "b": None}],
        [
            {"c": "y", "a": 1, "new": None, "d": 7},
            None,
            {"c": None, "a": None, "new": None, "d": 7},
        ],
    ),
]


@pytest.mark.parametrize(("old", "new", "how", "before", "after"), NESTED, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_nested_values_are_made_anew(
    old: pa.DataType, new: pa.DataType, how: Conversion, before: Any, after: Any, seed: int
) -> None:
    rng = random.Random(seed)
    order = [rng.randrange(len(before)) for _ in range(20)]
    whole = pa.array([before[i] for i in order], old)
    expected = [after[i] for i in order]
    for start, stop in ((0, 20), (3, 17), (5, 5)):
        made = convert(whole.slice(start, stop - start), how, new)
        made.validate(full=True)
        assert made.type == new
        assert made.to_pylist() == expected[start:stop]


def test_what_lies_below_a_null_is_not_looked_at() -> None:
    late = pa.array([10**12, 1], pa.timestamp("s"))
    nulls = pa.array([True, False])
    struct = pa.StructArray.from_arrays([late], names=["t"], mask=nulls)
    made = convert(struct, ITEMS, pa.struct([("t", pa.timestamp("ns"))]))
    assert made.is_null().to_pylist() == [True, False]
    lists = pa.FixedSizeListArray.from_arrays(late, type=pa.list_(late.type, 1), mask=nulls)
    made = convert(lists, ITEMS, pa.list_(pa.timestamp("ns"), 1))
    assert made.is_null().to_pylist() == [True, False]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int32(), "5", 5),
        (pa.string(), '"x"', "x"),
        (pa.decimal128(10, 2), '"1.50"', Decimal("1.50")),
        (pa.date32(), '"2020-01-02"', datetime.date(2020, 1, 2)),
        (pa.list_(pa.int8()), "[1, 2]", [1, 2]),
        (pa.struct([("a", pa.int8())]), '{"a": 3}', {"a": 3}),
    ],
    ids=str,
)
def test_a_default_takes_the_place_of_null_and_of_a_missing_field(
    kind: pa.DataType, text: str, value: Any
) -> None:
    how = Conversion(default=text)
    assert make_missing(2, how, kind).to_pylist() == [value, value]
    assert convert(pa.array([None, value, None], kind), how, kind).to_pylist() == [value] * 3
    assert make_missing(2, None, kind).to_pylist() == [None, None]


@pytest.mark.parametrize("text", ["null", '"x"', "1.5", "{", "300"])
def test_what_is_no_value_of_the_type_is_no_default(text: str) -> None:
    with pytest.raises(Refused):
        make_missing(1, Conversion(default=text), pa.int8())
