"""Values of an earlier schema: what they are in the base's, whatever slice of an array they are."""

from __future__ import annotations

import pyarrow as pa
import pytest
from memwal.rows.convert import Change, convert, fill_default

from memwal.errors import Refused
from memwal.rows.widen import is_exact


def test_a_value_out_of_range_is_refused() -> None:
    far = pa.array([2**62], pa.timestamp("s"))
    with pytest.raises(pa.ArrowInvalid):
        convert(far, pa.timestamp("ns"), Change())


def test_what_lies_behind_null_is_not_looked_at() -> None:
    late = pa.array([10**12, 1], pa.timestamp("s"))
    nulls, inner = pa.array([True, False]), Change(members=((0, Change()),))
    struct = pa.StructArray.from_arrays([late], names=["t"], mask=nulls)
    made = convert(struct, pa.struct([("t", pa.timestamp("ns"))]), inner)
    assert made.is_null().to_pylist() == [True, False]
    lists = pa.FixedSizeListArray.from_arrays(late, type=pa.list_(late.type, 1), mask=nulls)
    made = convert(lists, pa.list_(pa.timestamp("ns"), 1), inner)
    assert made.is_null().to_pylist() == [True, False]


def test_defaults() -> None:
    assert fill_default(pa.array([None, 3], pa.int16()), "7").to_pylist() == [7, 3]
    days = pa.array([None], pa.date32())
    assert str(fill_default(days, '"2026-01-02"')[0]) == "2026-01-02"
    lists = pa.array([None, [1]], pa.list_(pa.int8()))
    assert fill_default(lists, "[2, 3]").to_pylist() == [[2, 3], [1]]
    for wrong in ('"x"', "1.5", "{", "300"):
        with pytest.raises(Refused):
            fill_default(pa.array([None], pa.int8()), wrong)


# A type, and others that hold all of its values; then others that do not.
WIDER = [
    ("int8", "int16|int32|int64|halffloat|float|double"),
    ("uint8", "uint16|uint64|int16|int64|halffloat"),
    ("int16", "int32|float|double"),
    ("int32", "int64|double"),
    ("uint32", "int64|double|uint64"),
    ("halffloat", "float|double"),
    ("float", "double"),
    ("string", "large_string"),
    ("binary", "large_binary"),
    ("date32[day]", "date64[ms]"),
    ("time32[s]", "time32[ms]|time64[us]|time64[ns]"),
    ("timestamp[s, tz=UTC]", "timestamp[us, tz=UTC]"),
    ("duration[ms]", "duration[ns]"),
    ("decimal128(5, 2)", "decimal128(7, 4)|decimal256(40, 2)|decimal128(6, 2)"),
    ("fixed_size_list<item: halffloat>[4]", "fixed_size_list<item: float>[4]"),
]
NARROWER = [
    ("int64", "int32|double|uint64|float|string"),
    ("int32", "float|int16|uint32|uint64"),
    ("uint8", "int8"),
    ("uint64", "int64|double"),
    ("double", "float|int64"),
    ("large_string", "string|binary"),
    ("time64[us]", "time32[ms]|time64[ms]"),
    ("timestamp[s, tz=UTC]", "timestamp[us]|timestamp[us, tz=CET]|duration[us]"),
    ("decimal128(5, 2)", "decimal128(5, 3)|decimal128(5, 1)|decimal128(4, 2)"),
    ("decimal256(40, 2)", "decimal128(38, 2)"),
    ("fixed_size_list<item: float>[4]", "fixed_size_list<item: float>[8]|list<item: float>"),
    ("bool", "int8|string"),
]


@pytest.mark.parametrize(("pairs", "exact"), [(WIDER, True), (NARROWER, False)])
def test_which_types_hold_which(pairs: list[tuple[str, str]], exact: bool) -> None:
    for old, wider in pairs:
        for new in wider.split("|"):
            assert is_exact(old, new) == exact, (old, new)


def test_a_cast_to_a_wider_type_brings_every_value_back() -> None:
    types = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64()]
    wide = [*types, pa.uint64(), pa.float16(), pa.float32(), pa.float64()]
    for old in types:
        top = 2 ** (old.bit_width - (not str(old).startswith("u")))
        values = pa.array([top - 1, top - 2, 0 if str(old).startswith("u") else -top], old)
        for new in wide:
            if is_exact(str(old), str(new)):
                assert convert(values, new, Change()).cast(old).equals(values)
            else:
                with pytest.raises(pa.ArrowInvalid):
                    values.cast(new).cast(old)
