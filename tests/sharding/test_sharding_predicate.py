"""SQL text -> a predicate -> what it says about each column. Never an error, never too narrow."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.sharding import engine
from memwal.sharding.domain import (
    ANY,
    CASES_MAX,
    NOT_NULL,
    ONLY_NULL,
    Bound,
    Domain,
    cases_of,
    literal_of,
)
from memwal.sharding.predicate import And, Anything, Comparison, Not, Op, Or, predicate_of

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("userId", pa.int32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("two words", pa.int64()),
        ("st", pa.struct([("x", pa.int64())])),
    ]
)
TYPES = {field.name: field.type for field in SCHEMA} | {"f": pa.float64(), "st.x": pa.int64()}


def cases(text: str) -> list[dict[str, Domain]]:
    return [dict(case) for case in cases_of(predicate_of(text, SCHEMA), TYPES)]


def listed(*values: Any, null: bool = False) -> Domain:
    return Domain(values=frozenset(values), null=null)


def but(*values: Any, null: bool = False) -> Domain:
    return Domain(excluded=frozenset(values), null=null)


def ranged(low: Any = None, high: Any = None, *, closed: bool = True) -> Domain:
    return Domain(
        low=None if low is None else Bound(value=low, closed=closed),
        high=None if high is None else Bound(value=high, closed=closed),
        null=False,
    )


def or_null(domain: Domain) -> Domain:
    return replace(domain, null=True)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            ["a = 1", "1 = a", "a == 1", "a <=> 1", "`a` = 1", "a = 1 AND _rowid > 3"],
            [{"a": listed(1)}],
        ),
        (["userId = 1", "`userId` = 1"], [{"userId": listed(1)}]),
        (["`two words` = 1"], [{"two words": listed(1)}]),
        (["st.x = 1"], [{"st.x": listed(1)}]),
        (["s = 'it''s'"], [{"s": listed("it's")}]),
        (['s = "a"'], [{"s": listed("a")}]),  # as to Lance and Spark, double quotes make text
        (["a IN (1, 2, NULL)"], [{"a": listed(1, 2)}]),
        (["a = 1 OR a = 2 OR a IS NULL"], [{"a": listed(1, 2, null=True)}]),
        (["a = 1 AND s = 'x'"], [{"a": listed(1), "s": listed("x")}]),
        (["a = 1 OR s = 'x'"], [{"a": listed(1)}, {"s": listed("x")}]),
        (["a IN (1, 2, 3) AND a > 1"], [{"a": listed(2, 3)}]),
        (["1 < a"], [{"a": ranged(1, closed=False)}]),
        (["a >= -5 + 2"], [{"a": ranged(-3)}]),
        (["a BETWEEN 1 AND 5", "a >= 1 AND a <= 5 AND a > 0"], [{"a": ranged(1, 5)}]),
        (
            ["NOT a BETWEEN 1 AND 5", "a NOT BETWEEN 1 AND 5"],
            [{"a": or_null(ranged(high=1, closed=False))}, {"a": or_null(ranged(5, closed=False))}],
        ),
        (["NOT (a > 1)"], [{"a": ranged(high=1)}]),
        (["NOT (a = 1 OR s = 'x')"], [{"a": but(1), "s": but("x")}]),
        (["a NOT IN (1, 2)", "a <> 1 AND a <> 2"], [{"a": but(1, 2)}]),
        (
            ["a NOT IN (1, NULL)", "a < NULL", "a IS NULL AND a = 1", "a = 1 AND a = 2", "false"],
            [],
        ),
        (["a IS NULL"], [{"a": ONLY_NULL}]),
        (["a IS NOT NULL", "a IS DISTINCT FROM NULL", "a = 1.5", "a = '1'"], [{"a": NOT_NULL}]),
        (["a IS DISTINCT FROM 1"], [{"a": ONLY_NULL}, {"a": but(1, null=True)}]),
        (["b", "b IS TRUE"], [{"b": listed(True)}]),
        (["NOT b"], [{"b": but(True)}]),
        (["b IS NOT TRUE"], [{"b": ONLY_NULL}, {"b": but(True, null=True)}]),
        (["a = 1 AND s LIKE 'x%'"], [{"a": listed(1)}]),
        (["a = 1 OR s LIKE 'x%'"], [{"a": listed(1)}, {}]),
        (["true"], [{}]),
        (["d = '2020-01-01'"], [{"d": listed(18_262)}]),
        (["t >= TIMESTAMP '1970-01-01 00:00:01'"], [{"t": ranged(low=1_000_000)}]),
    ],
    ids=lambda value: value[0] if value and isinstance(value[0], str) else "",
)
def test_what_a_filter_says_about_each_column(
    texts: list[str], expected: list[dict[str, Domain]]
) -> None:
    for text in texts:
        assert sorted(cases(text), key=repr) == sorted(expected, key=repr), text


@pytest.mark.parametrize(
    "text",
    [
        *("a + 1 = 2", "abs(a) = 1", "a = userId", "t > now()", "unknown = 1", "userid = 1", ""),
        *("a = 1; DROP TABLE x", "a IN (SELECT 1)", "CASE WHEN a = 1 THEN true END", "1", "NULL"),
        *("a IN (userId, 1)", "a BETWEEN userId AND 3", "a = 1/0", r"s = 'a\'"),
        "\"a\" = 'a'",  # true for every row to Lance: pruning by the column a would lose rows
        *("(" * 100 + "a = 1" + ")" * 100, " OR ".join(["a = 1"] * 5_000)),
    ],
)
def test_what_is_not_understood_is_anything(text: str) -> None:
    found = predicate_of(text, SCHEMA)
    assert isinstance(found, Anything)
    assert found.why


@settings(max_examples=60)
@given(st.text(max_size=30) | st.text("asbd =<>'\"`()1,ANDORINOT ", max_size=40))
def test_any_text_gives_a_predicate(text: str) -> None:
    assert predicate_of(text, SCHEMA) is not None


# ---- literals

S, US, UTC = pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5.5, pa.int32(), None),
        (2.0**53, pa.int64(), None),
        ("5", pa.int32(), None),
        (0.1, pa.float32(), 0.10000000149011612),
        (1e300, pa.float32(), math.inf),
        (math.nan, pa.float64(), None),
        (1.5, pa.decimal128(10, 2), Decimal("1.50")),
        (1.555, pa.decimal128(10, 2), None),
        ("x", pa.binary(), None),
        ("1970-01-02", pa.date64(), 86_400_000),
        ("1970-1-2", pa.date32(), None),
        (pa.scalar(86_400, S), pa.date32(), 1),
        (pa.scalar(86_401, S), pa.date32(), None),
        ("1970-01-01 00:00:00.5", S, None),
        ("1970-01-01T00:00:01Z", US, None),
        ("1970-01-01T01:00:01+01:00", pa.timestamp("s", "UTC"), 1),
        ("1970-01-01T00:00:01", UTC, None),
        (pa.scalar(1, S), UTC, None),
        (pa.scalar(1, pa.timestamp("s", "UTC")), pa.timestamp("us", "Asia/Tokyo"), 1_000_000),
        (pa.scalar(1, pa.date32()), S, 86_400),
        (1, pa.bool_(), None),
    ],
)
def test_literals_as_values_of_the_column(value: Any, kind: pa.DataType, expected: Any) -> None:
    literal = literal_of(value if isinstance(value, pa.Scalar) else pa.scalar(value), kind)
    assert (literal.value if literal else None) == expected
    if literal:
        assert literal.exact is not pa.types.is_floating(kind)


# ---- domains


def compare(column: str, op: str, value: Any) -> Comparison:
    return Comparison(column=column, op=Op(op), value=pa.scalar(value))


def test_under_or_a_null_may_match_since_datafusion_says_so() -> None:
    """By SQL both are NULL where a is. DataFusion joins the lists to an empty one, which it takes
    for a constant; when this fails, `in_or` in the domains can go."""
    rows = pa.record_batch({"a": pa.array([None], pa.int64())})
    for text in ("NOT (a IN (1) AND a IN (2))", "a NOT IN (1) OR a NOT IN (2)"):
        assert engine.evaluate(text, rows).to_pylist() == [True]
        assert any(case["a"].contains(None) for case in cases(text))
    assert not any(case["a"].contains(None) for case in cases("a = 1 OR a = 2"))
    assert not any(case["a"].contains(None) for case in cases("a != 1 AND a > 2"))


def test_floats_keep_whatever_readers_may_differ_over() -> None:
    """NaN, zeros of both signs, and a literal that is rounded."""
    below = cases_of(compare("f", "<", 0.0), TYPES)[0]["f"]
    assert all(below.contains(value) for value in (-0.0, 0.0, math.nan))
    assert not below.contains(1.0)
    assert cases_of(Not(part=compare("f", "=", 0.0)), TYPES)[0]["f"] == NOT_NULL
    assert not cases_of(compare("f", "=", 0.0), TYPES)[0]["f"].contains(math.nan)


def test_too_many_cases_become_fewer_conditions_not_fewer_rows() -> None:
    many = Or(parts=tuple(compare("a", ">", n) for n in range(CASES_MAX + 1)))
    assert cases_of(many, TYPES) == ({},)
    half = Or(parts=tuple(compare("a", ">", n) for n in range(20)))
    assert len(cases_of(And(parts=(half, half)), TYPES)) == 20
    values = Or(parts=tuple(compare("a", "=", n) for n in range(5_000)))
    (case,) = cases_of(values, TYPES)
    assert len(case["a"].values or ()) == 5_000


numbers = st.integers(-3, 3)
bounds = st.none() | st.builds(Bound, value=numbers, closed=st.booleans())
domains = st.builds(
    Domain,
    values=st.none() | st.frozensets(numbers),
    low=bounds,
    high=bounds,
    excluded=st.frozensets(numbers, max_size=2),
    null=st.booleans(),
)


@given(domains, domains)
def test_a_meeting_holds_what_both_hold(left: Domain, right: Domain) -> None:
    met = left.meet(right)
    for value in (None, *range(-4, 5)):
        assert met.contains(value) == (left.contains(value) and right.contains(value))
        assert not (met.is_empty and met.contains(value))
    assert ANY.meet(left).contains(None) == left.null
