"""The spec's six rules for expressions: held by good ones, each breach noticed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import MemWalError, Refused
from memwal.sharding import engine
from memwal.sharding.expression import check_expression, compute_expression
from memwal.sharding.spec import SpecField, Transform

I64 = pa.int64()
GOOD = [
    ("col0 % 4", [I64], I64),
    ("arrow_cast(col0 % 4, 'Int32')", [pa.int16()], pa.int32()),
    ("date_part('hour', col0)", [pa.timestamp("us", "America/New_York")], pa.int32()),
    ("date_part('year', to_date(col0))", [pa.string()], pa.int32()),
    ("date_trunc('day', col0)", [pa.date32()], pa.timestamp("ns")),
    ("left(col0, 3)", [pa.dictionary(pa.int32(), pa.string())], pa.string()),
    ("concat(col0, '-', col1)", [pa.string(), pa.int32()], pa.string()),
    ("coalesce(col0, 0)", [I64], I64),
    ("col0 IN (1, 2) AND col1 IS NOT NULL", [I64, pa.string()], pa.bool_()),
    ("floor(col0)", [pa.float32()], pa.float32()),
    ("col0", [pa.decimal128(10, 2)], pa.decimal128(10, 2)),
    ("sha256(col0)", [pa.binary()], pa.binary()),
]
BAD = [
    (1, "random()", [I64], pa.float64()),
    (1, "col0 || uuid()", [pa.string()], pa.string()),
    (2, "now()", [I64], pa.timestamp("ns", "UTC")),
    (2, "version()", [I64], pa.string()),
    (2, "(SELECT 1)", [I64], I64),
    (2, "sum(col0)", [I64], I64),
    (2, "row_number() OVER ()", [I64], pa.uint64()),
    (2, "date_part('epoch', col0::timestamptz)", [pa.timestamp("us")], pa.float64()),
    (3, "arrow_typeof(col0)", [I64], pa.string()),
    (3, "col0 / 3", [pa.float32()], pa.float32()),
    (4, "arrow_typeof(col0)", [pa.bool_()], pa.string()),
    (6, "col0 % 4", [pa.int32()], pa.int32()),
    (6, "upper(col0)", [pa.string()], pa.binary()),
]


def check(expression: str, result_type: pa.DataType, *kinds: pa.DataType) -> None:
    field = SpecField(
        field_id="f",
        transform=Transform.EXPRESSION,
        source_ids=(0,),
        expression=expression,
        result_type=result_type,
    )
    check_expression(field, kinds)


@pytest.mark.parametrize(("text", "kinds", "result"), GOOD, ids=[row[0] for row in GOOD])
def test_good_expressions_hold_all_six_rules(text: str, kinds: Any, result: pa.DataType) -> None:
    """Of which a removed column counts as NULL (4), and NULL is computed (5) and has the type."""
    check(text, result, *kinds)
    found = compute_expression(text, [pa.nulls(2, kind) for kind in kinds], 2, result)
    assert compute_expression(text, [None] * len(kinds), 2, result).equals(found)
    assert (found.type, found[0]) == (result, found[1])
    assert compute_expression(text, [pa.array([], k) for k in kinds], 0, result).type == result


@pytest.mark.parametrize(("rule", "text", "kinds", "result"), BAD, ids=[row[1] for row in BAD])
def test_a_broken_rule_is_named(rule: int, text: str, kinds: Any, result: pa.DataType) -> None:
    with pytest.raises(Refused) as refused:
        check(text, result, *kinds)
    assert f"breaks rule {rule} (" in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "CASE WHEN col0 IS NULL THEN 1 / 0 ELSE col0 END",
        "CASE WHEN col0 IS NULL AND col1 IS NULL THEN 1 / 0 ELSE 1 END",
        "10 / coalesce(col0, 0)",
    ],
)
def test_an_expression_that_fails_on_null_is_refused(text: str) -> None:
    """Which rule is named hangs on what is tried first: a removed column is NULL too."""
    with pytest.raises(Refused, match=r"breaks rule [45] \("):
        check(text, I64, I64, I64)


@pytest.mark.parametrize("text", ["col7", "k", "col0 +", "", "col0; DROP TABLE x", "*"])
def test_what_is_no_expression_over_the_columns_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="source columns: col0"):
        check(text, I64, I64)


def test_an_expression_that_always_fails_is_refused() -> None:
    with pytest.raises(Refused, match="fails on every value that was tried"):
        check("col0 / 0", I64, I64)
    with pytest.raises(Refused, match="fails on every value that was tried: a value does not fit"):
        check("col0 || 'x'", pa.int32(), pa.string())  # rule 6, on its values


@settings(max_examples=20)
@given(st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=8), st.integers(0, 7))
def test_a_value_has_one_result_in_every_type_and_wherever_it_stands(
    numbers: list[Any], turn: int
) -> None:
    text = "CASE WHEN col0 > 5 THEN 'a' ELSE 'b' END"

    def computed(items: list[Any], kind: pa.DataType = I64) -> list[Any]:
        column = pa.array(items, kind)
        return list(compute_expression(text, [column], len(items), pa.string()).to_pylist())

    whole = computed(numbers)
    for kind in (pa.int8(), pa.uint16(), pa.uint64(), pa.float32()):
        assert computed(numbers, kind) == whole
    assert whole == [computed([number])[0] for number in numbers]
    turned = numbers[turn:] + numbers[:turn]
    assert computed(turned) == whole[turn:] + whole[:turn]


def test_rows_keep_their_order() -> None:
    rows = 100_000
    found = compute_expression("col0 + 1", [pa.array(range(rows))], rows, I64)
    assert found.equals(pa.array(range(1, rows + 1)))


# ---- what DataFusion must not be asked


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["col0 = 1"] * 100_000),
        "col0" + "::bigint" * 50_000,
        "- " * 50_000 + "col0",
        "abs(" * 50_000 + "col0" + ")" * 50_000,
        "col0 = '" + "x" * 1_100_000 + "'",
    ],
    ids=lambda text: text[:8],
)
def test_a_text_that_would_end_the_process_is_refused(text: str) -> None:
    """On a thread with a small stack, as Spark's may be."""
    before = threading.stack_size(1024 * 1024)
    try:
        with ThreadPoolExecutor(1) as thread, pytest.raises(Refused):
            thread.submit(check, text, I64, I64).result()
    finally:
        threading.stack_size(before)


def test_the_longest_chain_that_is_allowed_works() -> None:
    text = "col0" + "+1" * engine.OPERATORS_MAX
    found = compute_expression(text, [pa.array([0])], 1, I64)
    assert found.to_pylist() == [engine.OPERATORS_MAX]


@settings(max_examples=60)
@given(st.text(max_size=25) | st.text("col01 ()+-*/'%,=<>null", max_size=25))
def test_any_text_is_checked_or_refused(text: str) -> None:
    try:
        check(text, I64, I64)
    except MemWalError as refused:
        assert isinstance(refused, Refused)
