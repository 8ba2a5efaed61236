"""Values of an earlier schema: what they are in the base's, whatever slice of an array they are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from memwal.errors import Refused
from memwal.rows.convert import Change, convert, fill_default
from memwal.rows.widen import is_exact

KEPT = (0, None)
OLD = pa.struct([("a", pa.int32()), ("b", pa.string())])
NEW = pa.struct([("c", pa.int8()), ("b", pa.string()), ("a", pa.int64())])
MEMBERS = Change(members=((None, None), (1, None), (0, Change())))
ROWS = [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 4, "b": None}]


def as_new(row: dict[str, object] | None) -> dict[str, object] | None:
    return row and {"c": None, "b": row["b"], "a": row["a"]}


@pytest.mark.parametrize("start", range(4))
def test_structs_alone_and_in_lists(start: int) -> None:
    wanted = [as_new(row) for row in ROWS]
    assert convert(pa.array(ROWS, OLD)[start:], NEW, MEMBERS).to_pylist() == wanted[start:]
    lists = [[ROWS[0], None], None, [], ROWS]
    new_lists = [one and [as_new(row) for row in one] for one in lists]
    for old, new in (
        (pa.list_(OLD), pa.list_(NEW)),
        (pa.list_(OLD), pa.large_list(NEW)),
        (pa.large_list(OLD), pa.large_list(NEW)),
    ):
        found = convert(pa.array(lists, old)[start:], new, Change(members=((0, MEMBERS),)))
        assert (found.type, found.to_pylist()) == (new, new_lists[start:])
        found.validate(full=True)
    pairs = [[ROWS[0], ROWS[1]], None, [None, None], ROWS[2:]]
    found = convert(
        pa.array(pairs, pa.list_(OLD, 2))[start:], pa.list_(NEW, 2), Change(members=((0, MEMBERS),))
    )
    assert found.to_pylist() == [one and [as_new(row) for row in one] for one in pairs][start:]
    found.validate(full=True)


def test_a_value_out_of_range_is_refused() -> None:
    far = pa.array([2**62], pa.timestamp("s"))
    with pytest.raises(Refused, match="none of timestamp"):
        convert(far, pa.timestamp("ns"), Change())


def test_defaults() -> None:
    assert fill_default(pa.array([None, 3], pa.int16()), "7").to_pylist() == [7, 3]
    days = pa.array([None], pa.date32())
    assert str(fill_default(days, '"2026-01-02"')[0]) == "2026-01-02"


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
