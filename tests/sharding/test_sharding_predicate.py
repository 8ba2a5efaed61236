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
from memwal.sharding.predicate import (
    And,
    Anything,
    Comparison,
    In,
    IsNull,
    Not,
    Op,
    Or,
    Predicate,
    predicate_of,
)

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("userId", pa.int32()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("two words", pa.int64()),
        ("st", pa.struct([("x", pa.int64())])),
    ]
)


def compare(column: str, op: str, value: Any) -> Comparison:
    return Comparison(column=column, op=Op(op), value=pa.scalar(value))


A1, A2 = compare("a", "=", 1), compare("a", "=", 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", A1),
        ("1 = a", A1),
        ("a == 1", A1),
        ("1 < a", compare("a", ">", 1)),
        ("a <> 1", compare("a", "!=", 1)),
        ("a >= -5 + 2", compare("a", ">=", -3)),
        ("userId = 1", compare("userId", "=", 1)),
        ("`userId` = 1", compare("userId", "=", 1)),
        ("`two words` = 1", compare("two words", "=", 1)),
        ("st.x = 1", compare("st.x", "=", 1)),
        ("s = 'it''s'", compare("s", "=", "it's")),
        # As to Lance and Spark, double quotes make text.
        ('s = "a"', compare("s", "=", "a")),
        ("a = 1 AND a = 2", And(parts=(A1, A2))),
        ("a = 1 OR a = 2", Or(parts=(A1, A2))),
        ("NOT a = 1", Not(part=A1)),
        ("a IN (1, 2)", In(column="a", values=(pa.scalar(1), pa.scalar(2)))),
        ("a NOT IN (1)", Not(part=In(column="a", values=(pa.scalar(1),)))),
        ("a BETWEEN 1 AND 2", And(parts=(compare("a", ">=", 1), compare("a", "<=", 2)))),
        (
            "a NOT BETWEEN 1 AND 2",
            Not(part=And(parts=(compare("a", ">=", 1), compare("a", "<=", 2)))),
        ),
        ("a IS NULL", IsNull(column="a")),
        ("a IS NOT NULL", Not(part=IsNull(column="a"))),
        ("a <=> 1", And(parts=(Not(part=IsNull(column="a")), A1))),
        ("a IS DISTINCT FROM NULL", Not(part=IsNull(column="a"))),
        ("b", compare("b", "=", True)),
        ("b IS FALSE", And(parts=(Not(part=IsNull(column="b")), compare("b", "=", False)))),
        ("true", And(parts=())),
        ("false", Or(parts=())),
    ],
)
def test_what_is_understood(text: str, expected: Predicate) -> None:
    assert predicate_of(text, SCHEMA) == expected


@pytest.mark.parametrize(
    "text",
    [
        "a + 1 = 2",
        "abs(a) = 1",
        "s LIKE 'a%'",
        "a = userId",
        "t > now()",
        "unknown = 1",
        "userid = 1",
        "a =",
        "",
        "a = 1; DROP TABLE x",
        "json_extract(s, '$.x') = 1",
        "a IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "CASE WHEN a = 1 THEN true END",
        r"s = 'a\'",
        "1",
        "NULL",
        "a IN (userId, 1)",
        "a BETWEEN userId AND 3",
        "a = 1/0",
        "(" * 100 + "a = 1" + ")" * 100,
        " OR ".join(["a = 1"] * 5_000),
    ],
)
def test_what_is_not_understood_is_anything(text: str) -> None:
    found = predicate_of(text, SCHEMA)
    assert isinstance(found, Anything)
    assert found.why


def test_one_side_may_be_understood() -> None:
    found = predicate_of("a = 1 AND s LIKE 'x%'", SCHEMA)
    assert isinstance(found, And)
    assert found.parts[0] == A1
    assert isinstance(found.parts[1], Anything)


def test_lances_own_columns_are_known() -> None:
    found = predicate_of("a = 1 AND _rowid > 3", SCHEMA)
    assert isinstance(found, And)
    assert found.parts[0] == A1


def test_a_double_quoted_name_is_not_a_column() -> None:
    """`"a" = 'a'` is true for every row to Lance: pruning by the column a would lose rows."""
    assert isinstance(predicate_of("\"a\" = 'a'", SCHEMA), Anything)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30) | st.text("asbd =<>'\"`()1,ANDORINOT ", max_size=40))
def test_any_text_gives_a_predicate(text: str) -> None:
    assert predicate_of(text, SCHEMA) is not None


# ---- literals


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (pa.scalar(5), pa.int8(), 5),
        (pa.scalar(300), pa.int8(), 300),
        (pa.scalar(5.0), pa.int32(), 5),
        (pa.scalar(Decimal("5.0")), pa.int32(), 5),
        (pa.scalar(5.5), pa.int32(), None),
        (pa.scalar(2.0**53), pa.int64(), None),
        (pa.scalar("5"), pa.int32(), None),
        (pa.scalar(5), pa.float32(), 5.0),
        (pa.scalar(0.1), pa.float32(), 0.10000000149011612),
        (pa.scalar(1e300), pa.float32(), math.inf),
        (pa.scalar(math.nan), pa.float64(), None),
        (pa.scalar(1.5), pa.decimal128(10, 2), Decimal("1.50")),
        (pa.scalar(1.555), pa.decimal128(10, 2), None),
        (pa.scalar(1.5), pa.decimal128(38, 2), None),
        (pa.scalar(3), pa.decimal128(38, 2), Decimal("3.00")),
        (pa.scalar(5), pa.string(), None),
        (pa.scalar("x"), pa.large_string(), "x"),
        (pa.scalar("x"), pa.dictionary(pa.int32(), pa.string()).value_type, "x"),
        (pa.scalar("x"), pa.binary(), None),
        (pa.scalar(b"x"), pa.binary(), b"x"),
        (pa.scalar("1970-01-02"), pa.date32(), 1),
        (pa.scalar("1970-01-02"), pa.date64(), 86_400_000),
        (pa.scalar("1970-1-2"), pa.date32(), None),
        (pa.scalar("yesterday"), pa.date32(), None),
        (pa.scalar(86_400, pa.timestamp("s")), pa.date32(), 1),
        (pa.scalar(86_401, pa.timestamp("s")), pa.date32(), None),
        (pa.scalar("1970-01-01T00:00:01"), pa.timestamp("us"), 1_000_000),
        (pa.scalar("1970-01-01 00:00:00.5"), pa.timestamp("s"), None),
        (pa.scalar("1970-01-01T00:00:01Z"), pa.timestamp("us"), None),
        (pa.scalar("1970-01-01T00:00:01Z"), pa.timestamp("us", "UTC"), 1_000_000),
        (pa.scalar("1970-01-01T01:00:01+01:00"), pa.timestamp("s", "UTC"), 1),
        (pa.scalar("1970-01-01T00:00:01"), pa.timestamp("us", "UTC"), None),
        (pa.scalar(1, pa.timestamp("s")), pa.timestamp("us", "UTC"), None),
        (pa.scalar(1, pa.timestamp("s", "UTC")), pa.timestamp("us", "Asia/Tokyo"), 1_000_000),
        (pa.scalar(1, pa.date32()), pa.timestamp("s"), 86_400),
        (pa.scalar(True), pa.bool_(), True),
        (pa.scalar(1), pa.bool_(), None),
        (pa.scalar(1), pa.list_(pa.int8()), None),
    ],
)
def test_literals_as_values_of_the_column(
    value: pa.Scalar, kind: pa.DataType, expected: Any
) -> None:
    literal = literal_of(value, kind)
    assert (literal.value if literal else None) == expected
    if literal:
        assert literal.exact is not pa.types.is_floating(kind)


# ---- domains

TYPES = {field.name: field.type for field in SCHEMA} | {"f": pa.float64()}


def cases(text: str) -> list[dict[str, Domain]]:
    return [dict(case) for case in cases_of(predicate_of(text, SCHEMA), TYPES)]


def listed(*values: Any, null: bool = False) -> Domain:
    return Domain(values=frozenset(values), null=null)


def ranged(low: Any = None, high: Any = None, *, closed: bool = True) -> Domain:
    return Domain(
        low=None if low is None else Bound(value=low, closed=closed),
        high=None if high is None else Bound(value=high, closed=closed),
        null=False,
    )


def or_null(domain: Domain) -> Domain:
    return replace(domain, null=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", [{"a": listed(1)}]),
        ("a IN (1, 2, NULL)", [{"a": listed(1, 2)}]),
        ("a = 1 OR a = 2 OR a IS NULL", [{"a": listed(1, 2, null=True)}]),
        ("a = 1 AND s = 'x'", [{"a": listed(1), "s": listed("x")}]),
        ("a = 1 OR s = 'x'", [{"a": listed(1)}, {"s": listed("x")}]),
        ("a = 1 AND a = 2", []),
        ("a IN (1, 2, 3) AND a > 1", [{"a": listed(2, 3)}]),
        (
            "a > 1 AND a <= 5",
            [
                {
                    "a": Domain(
                        low=Bound(value=1, closed=False),
                        high=Bound(value=5, closed=True),
                        null=False,
                    )
                }
            ],
        ),
        ("a BETWEEN 1 AND 5", [{"a": ranged(1, 5)}]),
        (
            "NOT a BETWEEN 1 AND 5",
            [
                {"a": or_null(ranged(high=1, closed=False))},
                {"a": or_null(ranged(low=5, closed=False))},
            ],
        ),
        ("NOT (a > 1)", [{"a": ranged(high=1)}]),
        (
            "NOT (a = 1 OR s = 'x')",
            [
                {
                    "a": Domain(excluded=frozenset({1}), null=False),
                    "s": Domain(excluded=frozenset({"x"}), null=False),
                }
            ],
        ),
        ("a NOT IN (1, 2)", [{"a": Domain(excluded=frozenset({1, 2}), null=False)}]),
        ("a NOT IN (1, NULL)", []),
        ("a = NULL", []),
        ("a < NULL", []),
        ("a IS NULL", [{"a": ONLY_NULL}]),
        ("a IS NULL AND a = 1", []),
        ("a IS NOT NULL", [{"a": NOT_NULL}]),
        (
            "a IS DISTINCT FROM 1",
            [{"a": ONLY_NULL}, {"a": Domain(excluded=frozenset({1}))}],
        ),
        ("a = 1.5", [{"a": NOT_NULL}]),
        ("a = '1'", [{"a": NOT_NULL}]),
        ("NOT b", [{"b": Domain(excluded=frozenset({True}), null=False)}]),
        (
            "b IS NOT TRUE",
            [{"b": ONLY_NULL}, {"b": Domain(excluded=frozenset({True}))}],
        ),
        ("a = 1 AND s LIKE 'x%'", [{"a": listed(1)}]),
        ("a = 1 OR s LIKE 'x%'", [{"a": listed(1)}, {}]),
        ("true", [{}]),
        ("false", []),
        ("d = '2020-01-01'", [{"d": listed(18_262)}]),
        ("t >= TIMESTAMP '1970-01-01 00:00:01'", [{"t": ranged(low=1_000_000)}]),
    ],
)
def test_what_a_filter_says_about_each_column(text: str, expected: list[dict[str, Domain]]) -> None:
    assert sorted(cases(text), key=repr) == sorted(expected, key=repr)


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
    assert below.contains(-0.0)
    assert below.contains(0.0)
    assert below.contains(math.nan)
    assert not below.contains(1.0)
    assert cases_of(Not(part=compare("f", "=", 0.0)), TYPES)[0]["f"] == NOT_NULL
    assert not cases_of(compare("f", "=", 0.0), TYPES)[0]["f"].contains(math.nan)


def test_too_many_cases_become_fewer_conditions_not_fewer_rows() -> None:
    many = Or(parts=tuple(compare("a", ">", n) for n in range(CASES_MAX + 1)))
    assert cases_of(many, TYPES) == ({},)
    half = Or(parts=tuple(compare("a", ">", n) for n in range(20)))
    both = cases_of(And(parts=(half, half)), TYPES)
    assert len(both) == 20
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
    if met.is_empty:
        assert not any(met.contains(value) for value in (None, *range(-4, 5)))
    assert ANY.meet(left).contains(None) == left.null
