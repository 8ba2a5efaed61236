"""Shard values by the spec: the transforms, the hashed bytes, NULL, and the result types."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from itertools import product
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memwal.errors import Refused, Unsupported, Usage
from memwal.sharding import engine
from memwal.sharding.encoding import hash_by_spec, hash_several_by_spec
from memwal.sharding.evaluate import Rule, check_spec, compute_values
from tests.sharding.specs import a_field, a_spec, one_column, sources_for

INTEGERS = [pa.type_for_alias(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]


def values(array: pa.Array, transform: str | None, **parameters: Any) -> pa.Array:
    batch, sources = one_column(array)
    spec = a_spec(a_field(transform, 0, **parameters))
    return compute_values(batch, spec, sources, rule=Rule.SPEC)["f"]


def hashes(array: pa.Array) -> list[int | None]:
    found = hash_by_spec(array)
    return [None if null else int(h) for h, null in zip(found.hashes, found.nulls, strict=True)]


def long(number: int) -> bytes:
    return (number % 2**64).to_bytes(8, "little")


# ---- the hash and its bytes


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 3))
@example(2**63 + 2**40, 0)
@example(-(2**63), 1)
def test_a_number_hashes_alike_in_every_numeric_type(number: int, before: int) -> None:
    """Rule 3, and for more than the integers that it names."""
    expected = mmh3.hash(long(number))
    tried = 0
    for kind in (*INTEGERS, *FLOATS, pa.decimal128(22, 2), pa.decimal256(60, 5)):
        try:
            exact = Decimal(number) if pa.types.is_decimal(kind) else number
            # pyarrow takes no large int for a float, representable or not.
            exact = float(exact) if kind in FLOATS[1:] else exact
            array = pa.array([None] * before + [exact, 0], kind).slice(before)
        except (pa.ArrowException, OverflowError):
            continue
        if array[0].as_py() != number:
            continue
        tried += 1
        assert hashes(array)[0] == expected, kind
    assert tried >= 3


@given(st.decimals(-(10**6), 10**6, places=4))
def test_a_fraction_hashes_alike_at_every_scale(number: Decimal) -> None:
    whole = number == int(number)
    data = (int(number * 10**38)).to_bytes(32, "little", signed=True)
    expected = [mmh3.hash(long(int(number)) if whole else data)]
    for kind in (pa.decimal128(12, 4), pa.decimal128(38, 9), pa.decimal256(70, 20)):
        assert hashes(pa.array([number], kind)) == expected


def test_large_decimals() -> None:
    """Where pyarrow's own trunc() is wrong."""
    numbers = [2**64 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**38 - 1]
    array = pa.array([Decimal(n) for n in numbers], pa.decimal128(38, 0))
    assert hashes(array) == [
        mmh3.hash(
            long(n) if -(2**63) <= n < 2**64 else (n * 10**38).to_bytes(32, "little", signed=True)
        )
        for n in numbers
    ]
    with pytest.raises(Unsupported, match="too large to hash"):
        hash_by_spec(pa.array([Decimal(10) ** 60], pa.decimal256(76, 0)))


def test_floats_with_a_fraction_hash_as_doubles() -> None:
    zero, nan = mmh3.hash(long(0)), mmh3.hash(long(0x7FF8000000000000))
    as_double = [mmh3.hash(np.float64(f).tobytes()) for f in (1.5, math.inf)]
    for kind in FLOATS[1:]:
        array = pa.array([1.5, math.inf, -0.0, 0.0, math.nan, -math.nan, None], kind)
        assert hashes(array) == [*as_double, zero, zero, nan, nan, None]


@given(
    st.lists(st.none() | st.binary(max_size=60) | st.binary(min_size=60, max_size=300), max_size=9),
    st.lists(st.none() | st.text(max_size=99), max_size=9),
    st.integers(0, 3),
)
@example([b"", b"a" * 64, b"a" * 67, b"a" * 68, b"a" * 71, b"\xff" * 200], ["é" * 50], 0)
def test_text_and_binary_hash_as_their_bytes(
    data: list[bytes | None], texts: list[str | None], before: int
) -> None:
    encoded = [text if text is None else text.encode() for text in texts]
    kinds = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.utf8())]
    for items, wanted, some in (
        (data, data, [pa.binary(), pa.large_binary(), pa.binary_view()]),
        (texts, encoded, kinds),
    ):
        expected = [None if item is None else mmh3.hash(item) for item in wanted]
        for kind in some:
            array = pa.array([*items[:1] * before, *items], kind).slice(before if items else 0)
            assert hashes(array) == expected, kind


def test_more_rows_than_are_hashed_at_a_time() -> None:
    numbers = [number * 7_919 - 1_000_000 for number in range(70_000)]
    some = slice(0, None, 997)
    assert hashes(pa.array(numbers))[some] == [mmh3.hash(long(n)) for n in numbers[some]]
    texts = [str(number) for number in numbers]
    assert hashes(pa.array(texts))[some] == [mmh3.hash(text) for text in texts[some]]


def test_times_hash_as_microseconds_whatever_their_unit() -> None:
    units = (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9))
    for seconds in (-1, 0, 1_600_000_000):
        expected = [mmh3.hash(long(seconds * 1_000_000))]
        for (unit, per_second), zone in product(units, (None, "UTC", "America/New_York")):
            assert hashes(pa.array([seconds * per_second], pa.timestamp(unit, zone))) == expected
    assert hashes(pa.array([-1], pa.timestamp("ns"))) == [mmh3.hash(long(-1))]
    for kind in (pa.date32(), pa.date64()):
        assert hashes(pa.array([dt.date(1969, 12, 31)], kind)) == [mmh3.hash(long(-1))]
    assert hashes(pa.array([2], pa.time32("s"))) == hashes(pa.array([2_000_000], pa.time64("us")))
    with pytest.raises(Unsupported, match="list"):
        hash_by_spec(pa.array([[1]]))


# ---- buckets


@given(
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), max_size=20), st.integers(1, 2**31 - 1)
)
def test_a_bucket_is_abs_of_the_hash_modulo_n(numbers: list[int | None], count: int) -> None:
    found = values(pa.array(numbers, pa.int64()), "bucket", num_buckets=count)
    assert found.type == pa.int32()
    assert found.to_pylist() == [
        None if n is None else abs(mmh3.hash(long(n))) % count for n in numbers
    ]
    assert all(0 <= bucket < count for bucket in found.to_pylist() if bucket is not None)


def test_the_smallest_hash_has_a_bucket_too() -> None:
    """DataFusion's abs() overflows there, which would leave such a row without a shard."""
    array = pa.array([6_018_035_362_574_630_912])
    assert hashes(array) == [-(2**31)]
    assert values(array, "bucket", num_buckets=10).to_pylist() == [2**31 % 10]
    with pytest.raises(engine.SqlError, match="overflow"):
        engine.evaluate("abs(col0)", pa.record_batch({"col0": pa.array([-(2**31)], pa.int32())}))


columns = st.lists(
    st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=9)),
    max_size=12,
)


@given(columns)
def test_multi_bucket_hashes_the_values_that_are_not_null(rows: list[tuple[Any, Any]]) -> None:
    batch = pa.record_batch(
        {
            "a": pa.array([r[0] for r in rows], pa.int64()),
            "b": pa.array([r[1] for r in rows], pa.string()),
        }
    )
    spec = a_spec(a_field("multi_bucket", 0, 1, num_buckets=10))
    found = compute_values(batch, spec, sources_for(batch.schema))["f"]
    assert found.type == pa.int32()

    def expected(number: int | None, text: str | None) -> int | None:
        if number is None and text is None:
            return None
        data = (b"" if number is None else long(number)) + (text or "").encode()
        return abs(mmh3.hash(data)) % 10

    assert found.to_pylist() == [expected(*row) for row in rows]


def test_multi_bucket_takes_every_kind_of_column() -> None:
    arrays = [
        pa.array([True, None]),
        pa.array([Decimal("1.5"), None]),
        pa.array([b"xy", None], pa.binary(2)),
        pa.array(["z", None]).dictionary_encode(),
        pa.array([1.0, None], pa.float32()),
        pa.nulls(2),
    ]
    data = long(1) + (15 * 10**37).to_bytes(32, "little") + b"xyz" + long(1)
    found = hash_several_by_spec(arrays)
    assert int(found.hashes[0]) == mmh3.hash(data)
    assert found.nulls.tolist() == [False, True]


# ---- identity, times, truncate


def test_identity_is_the_column() -> None:
    for array in (pa.array([1, None, -5], pa.int16()), pa.array(["a", None])):
        assert values(array, "identity").equals(array)
    # And follows the spec's type when the column was promoted.
    wide = values(pa.array([5, None], pa.int64()), "identity", result_type="int32")
    assert wide.equals(pa.array([5, None], pa.int32()))
    with pytest.raises(Refused, match="shard field 'f' is int32, its column int64"):
        values(pa.array([2**40]), "identity", result_type="int32")


EXPRESSIONS = {part: f"date_part('{part}', col0)" for part in ("year", "month", "day", "hour")}
TIMES = [0, -1, -1_000_000, 951_782_400, 1_600_000_000, -2_208_988_801, 4_102_444_799]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York", "Asia/Kolkata"])
def test_time_parts_in_the_columns_own_zone(unit: str, zone: str | None) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    array = pa.array([*(t * per_second for t in TIMES), None], pa.timestamp(unit, zone))
    whole = array.cast(pa.timestamp("us", zone)).to_pylist()
    for part, expression in EXPRESSIONS.items():
        found = values(array, part)
        assert found.type == pa.int32()
        assert found.to_pylist() == [None if t is None else getattr(t, part) for t in whole]
        as_expression = values(array, None, expression=expression, result_type="int32")
        assert found.equals(as_expression)


def test_time_parts_of_dates() -> None:
    days = [dt.date(1969, 12, 31), dt.date(2020, 2, 29), dt.date(1, 1, 1), None]
    for array in (pa.array(days, pa.date32()), pa.array(days, pa.date64())):
        for part in ("year", "month", "day"):
            assert values(array, part).to_pylist() == [d and getattr(d, part) for d in days]
        assert values(array, "hour").to_pylist() == [0, 0, 0, None]
    for array in (pa.array(["2020-01-01"]), pa.array([1]), pa.array([1], pa.time32("s"))):
        with pytest.raises(Unsupported, match="takes dates and timestamps"):
            values(array, "year")


@given(st.lists(st.none() | st.text(max_size=6), max_size=10), st.integers(1, 5))
def test_truncate_keeps_the_first_characters(texts: list[str | None], width: int) -> None:
    expected = [None if text is None else text[:width] for text in texts]
    for kind in (pa.string(), pa.large_string()):
        found = values(pa.array(texts, kind), "truncate", width=width)
        assert found.equals(pa.array(expected, kind))


@given(st.data(), st.sampled_from(INTEGERS), st.integers(1, 300) | st.integers(1, 2**63 - 1))
def test_truncate_takes_the_remainder_away(
    data: st.DataObject, kind: pa.DataType, width: int
) -> None:
    """Towards zero, as % does in SQL: col0 - (col0 % W)."""
    high = 2 ** (kind.bit_width - (not str(kind).startswith("u"))) - 1
    low = 0 if str(kind).startswith("u") else -high - 1
    numbers = data.draw(st.lists(st.none() | st.integers(low, high), max_size=8))
    found = values(pa.array(numbers, kind), "truncate", width=width)
    assert found.type == kind
    assert found.to_pylist() == [
        n and n - int(math.copysign(1, n)) * (abs(n) % width) for n in numbers
    ]


@given(st.lists(st.decimals(-(10**6), 10**6, places=2), max_size=8), st.integers(1, 1_000))
def test_truncate_of_decimals_and_floats(numbers: list[Decimal], width: int) -> None:
    expected = [n - n % width for n in numbers]
    for kind in (pa.decimal128(10, 2), pa.decimal128(38, 2), pa.decimal256(50, 2)):
        found = values(pa.array(numbers, kind), "truncate", width=width)
        assert found.equals(pa.array(expected, kind))
    doubles = [float(n) for n in numbers]
    found = values(pa.array(doubles, pa.float64()), "truncate", width=width)
    assert found.to_pylist() == [n - math.fmod(n, width) for n in doubles]


def test_truncate_takes_text_and_numbers() -> None:
    for array in (pa.array([b"a"]), pa.array([True]), pa.array([dt.date(2020, 1, 1)])):
        with pytest.raises(Unsupported, match="truncate takes text and numbers"):
            values(array, "truncate", width=2)


# ---- removed columns, several fields


ALL = [
    a_field("identity", 0, result_type="int32"),
    a_field("year", 0),
    a_field("month", 0),
    a_field("day", 0),
    a_field("hour", 0),
    a_field("bucket", 0, num_buckets=4),
    a_field("multi_bucket", 0, 1, num_buckets=4),
    a_field("truncate", 0, width=4, result_type="utf8"),
    a_field(None, 0, expression="date_part('year', col0)", result_type="int32"),
    a_field(None, 0, 1, expression="col0 || col1", result_type="utf8"),
]


@pytest.mark.parametrize("field", ALL, ids=lambda field: field.transform or field.expression)
def test_a_removed_column_is_null(field: Any) -> None:
    for rows in (2, 0):
        batch = pa.record_batch({"other": pa.array([1] * rows, pa.int64())})
        found = compute_values(batch, a_spec(field), {})["f"]
        assert found.to_pylist() == [None] * rows
        assert str(found.type) in ("int32", "string")


def test_multi_bucket_goes_on_without_a_removed_column() -> None:
    rows = pa.record_batch({"a": pa.array([5, None])})
    spec = a_spec(a_field("multi_bucket", 0, 7, num_buckets=10))
    found = compute_values(rows, spec, sources_for(rows.schema))["f"].to_pylist()
    assert found == [abs(mmh3.hash(long(5))) % 10, None]


def test_each_field_has_its_column_under_its_name() -> None:
    rows = pa.record_batch({"a": pa.array([15]), "t": pa.array([0], pa.timestamp("us"))})
    spec = a_spec(
        a_field("truncate", 0, width=10, name="tens"), a_field("year", 1, name="when"), spec_id=7
    )
    assert compute_values(rows, spec, sources_for(rows.schema)).to_pydict() == {
        "tens": [10],
        "when": [1970],
    }


# ---- a spec is checked against the table before it is used


def test_a_spec_is_checked_against_the_columns() -> None:
    _, sources = one_column(pa.array(["2020"]))
    with pytest.raises(Unsupported, match="year takes dates and timestamps, not string"):
        check_spec(a_spec(a_field("year", 0)), sources)
    with pytest.raises(Usage, match="names a column that does not exist"):
        check_spec(a_spec(a_field("identity", 9)), sources)
    with pytest.raises(Unsupported, match="cannot be hashed"):
        check_spec(a_spec(a_field("bucket", 0, num_buckets=2)), one_column(pa.array([[1]]))[1])
    check_spec(
        a_spec(
            a_field("bucket", 0, num_buckets=2, name="b"),
            a_field(None, 0, expression="upper(col0)", result_type="utf8", name="u"),
        ),
        sources,
    )
