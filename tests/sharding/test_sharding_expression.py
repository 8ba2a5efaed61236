"""The spec's six rules for expressions: held by good ones, each breach noticed."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import MemWalError, Refused
from memwal.sharding import engine
from memwal.sharding.expression import check_expression, compute_expression
from memwal.sharding.spec import SpecField, Transform

GOOD = [
    ("col0 % 4", [pa.int64()], pa.int64()),
    ("arrow_cast(col0 % 4, 'Int32')", [pa.int16()], pa.int32()),
    ("date_part('year', col0)", [pa.timestamp("us")], pa.int32()),
    ("date_part('hour', col0)", [pa.timestamp("us", "America/New_York")], pa.int32()),
    ("date_part('year', to_date(col0))", [pa.string()], pa.int32()),
    ("date_trunc('day', col0)", [pa.timestamp("us")], pa.timestamp("us")),
    ("upper(col0)", [pa.string()], pa.string()),
    ("left(col0, 3)", [pa.dictionary(pa.int32(), pa.string())], pa.string()),
    ("md5(col0)", [pa.string()], pa.string()),
    ("concat(col0, '-', col1)", [pa.string(), pa.int32()], pa.string()),
    ("coalesce(col0, 0)", [pa.int64()], pa.int64()),
    ("CASE WHEN COL0 > 5 THEN 'a' ELSE 'b' END", [pa.int16()], pa.string()),
    ("col0 IN (1, 2) AND col1 IS NOT NULL", [pa.int64(), pa.string()], pa.bool_()),
    ("floor(col0)", [pa.float32()], pa.float32()),
    ("col0", [pa.decimal128(10, 2)], pa.decimal128(10, 2)),
    ("sha256(col0)", [pa.binary()], pa.binary()),
]
BAD = [
    (1, "random()", [pa.int64()], pa.float64()),
    (1, "col0 || uuid()", [pa.string()], pa.string()),
    (2, "now()", [pa.int64()], pa.timestamp("ns", "UTC")),
    (2, "date_part('year', current_date())", [pa.int64()], pa.int32()),
    (2, "version()", [pa.int64()], pa.string()),
    (2, "(SELECT 1)", [pa.int64()], pa.int64()),
    (2, "EXISTS (SELECT 1)", [pa.int64()], pa.bool_()),
    (2, "sum(col0)", [pa.int64()], pa.int64()),
    (2, "row_number() OVER ()", [pa.int64()], pa.uint64()),
    (2, "$1", [pa.int64()], pa.int64()),
    (2, "date_part('epoch', col0::timestamptz)", [pa.timestamp("us")], pa.float64()),
    (3, "arrow_typeof(col0)", [pa.int64()], pa.string()),
    (3, "octet_length(arrow_cast(col0, 'Utf8'))", [pa.float32()], pa.int32()),
    (3, "col0 / 3", [pa.float32()], pa.float32()),
    (4, "arrow_typeof(col0)", [pa.bool_()], pa.string()),
    (6, "col0 % 4", [pa.int32()], pa.int32()),
    (6, "upper(col0)", [pa.string()], pa.binary()),
]


def a_field(expression: str, result_type: pa.DataType) -> SpecField:
    return SpecField(
        field_id="f",
        transform=Transform.EXPRESSION,
        source_ids=(0,),
        expression=expression,
        result_type=result_type,
    )


@pytest.mark.parametrize(("text", "kinds", "result"), GOOD, ids=[row[0] for row in GOOD])
def test_good_expressions_hold_all_six_rules(text: str, kinds: Any, result: pa.DataType) -> None:
    check_expression(a_field(text, result), kinds)


@pytest.mark.parametrize(("rule", "text", "kinds", "result"), BAD, ids=[row[1] for row in BAD])
def test_a_broken_rule_is_named(rule: int, text: str, kinds: Any, result: pa.DataType) -> None:
    with pytest.raises(Refused) as refused:
        check_expression(a_field(text, result), kinds)
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
        check_expression(a_field(text, pa.int64()), [pa.int64(), pa.int64()])


def test_a_text_that_gives_no_number_breaks_rule_6_on_its_values() -> None:
    with pytest.raises(Refused, match="fails on every value that was tried: a value does not fit"):
        check_expression(a_field("col0 || 'x'", pa.int32()), [pa.string()])


@pytest.mark.parametrize(
    "text", ["col7", "k", "col0 +", "", "col0; DROP TABLE x", "col0, col0", "*"]
)
def test_what_is_no_expression_over_the_columns_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="source columns: col0"):
        check_expression(a_field(text, pa.int64()), [pa.int64()])


def test_an_expression_that_always_fails_is_refused() -> None:
    with pytest.raises(Refused, match="fails on every value"):
        check_expression(a_field("col0 / 0", pa.int64()), [pa.int64()])


# ---- the rules as properties of what is computed

INTEGERS = [pa.type_for_alias(f"{s}int{b}") for s in ("", "u") for b in (8, 16, 32, 64)]
OVER_NUMBERS = [row for row in GOOD if row[1] == [pa.int64()] and row[2] == pa.int64()]
small = st.lists(st.none() | st.integers(0, 100), min_size=1, max_size=8)


@settings(max_examples=20, deadline=None)
@given(small, st.sampled_from(OVER_NUMBERS))
def test_rules_1_and_3_the_same_result_for_every_type(numbers: list[Any], row: Any) -> None:
    text, _, result = row
    found = {
        str(compute_expression(text, [pa.array(numbers, kind)], len(numbers), result))
        for kind in (*INTEGERS, *INTEGERS)
    }
    assert len(found) == 1


@settings(max_examples=20, deadline=None)
@given(small, st.integers(0, 7))
def test_rule_1_a_value_has_one_result_wherever_it_stands(numbers: list[Any], turn: int) -> None:
    """Each row alone, and in another order."""
    text, result = "CASE WHEN col0 > 5 THEN 'a' ELSE 'b' END", pa.string()

    def computed(items: list[Any]) -> list[Any]:
        column = pa.array(items, pa.int64())
        return list(compute_expression(text, [column], len(items), result).to_pylist())

    whole = computed(numbers)
    assert whole == [computed([number])[0] for number in numbers]
    turned = numbers[turn:] + numbers[:turn]
    assert computed(turned) == whole[turn:] + whole[:turn]


@pytest.mark.parametrize(("text", "kinds", "result"), GOOD, ids=[row[0] for row in GOOD])
def test_rule_4_a_removed_column_counts_as_null(text: str, kinds: Any, result: pa.DataType) -> None:
    nulls: list[Any] = [pa.nulls(3, kind) for kind in kinds]
    removed: list[Any] = [None] * len(kinds)
    assert compute_expression(text, removed, 3, result).equals(
        compute_expression(text, nulls, 3, result)
    )


@pytest.mark.parametrize(("text", "kinds", "result"), GOOD, ids=[row[0] for row in GOOD])
def test_rules_5_and_6_null_is_computed_and_has_the_type(
    text: str, kinds: Any, result: pa.DataType
) -> None:
    nulls: list[Any] = [pa.nulls(2, kind) for kind in kinds]
    found = compute_expression(text, nulls, 2, result)
    assert found.type == result
    assert found[0].equals(found[1])


def test_no_rows_have_the_type_too() -> None:
    assert compute_expression("col0 % 4", [pa.array([], pa.int8())], 0, pa.int64()).equals(
        pa.array([], pa.int64())
    )


def test_rows_keep_their_order() -> None:
    rows = 100_000
    found = compute_expression("col0 + 1", [pa.array(range(rows))], rows, pa.int64())
    assert found.equals(pa.array(range(1, rows + 1)))


# ---- what DataFusion must not be asked


@pytest.mark.parametrize(
    "text",
    [
        " OR ".join(["col0 = 1"] * 100_000),
        "col0" + "+1" * 50_000,
        "col0" + "::bigint" * 50_000,
        "- " * 50_000 + "col0",
        "(" * 50_000 + "col0" + ")" * 50_000,
        "abs(" * 50_000 + "col0" + ")" * 50_000,
        "col0 = '" + "x" * 1_100_000 + "'",
    ],
    ids=lambda text: text[:8],
)
def test_a_text_that_would_end_the_process_is_refused(text: str) -> None:
    """On a thread with a small stack, as Spark's may be."""
    outcome: list[BaseException] = []

    def check() -> None:
        try:
            check_expression(a_field(text, pa.int64()), [pa.int64()])
        except BaseException as error:
            outcome.append(error)

    before = threading.stack_size(1024 * 1024)
    try:
        thread = threading.Thread(target=check)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    (error,) = outcome
    assert isinstance(error, Refused), error


def test_the_longest_chain_that_is_allowed_works() -> None:
    text = "col0" + "+1" * engine.OPERATORS_MAX
    found = compute_expression(text, [pa.array([0])], 1, pa.int64())
    assert found.to_pylist() == [engine.OPERATORS_MAX]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=25) | st.text("col01 ()+-*/'%,=<>null", max_size=25))
def test_any_text_is_checked_or_refused(text: str) -> None:
    try:
        check_expression(a_field(text, pa.int64()), [pa.int64()])
    except MemWalError as refused:
        assert isinstance(refused, Refused)
