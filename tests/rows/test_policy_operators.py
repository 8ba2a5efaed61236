"""The operators of row-merge policies: associative, and what the plain model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from decimal import Decimal
from fractions import Fraction
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import Unsupported
from memwal.rows import policy_operators
from memwal.rows.policy_operators import BUILT_IN, OperatorError, Pairwise, find_operator
from tests.support.policy_model import OPERATORS, append, folded
from tests.support.sampling import many

_SMALL = st.none() | st.integers(-50, 50)
_LISTS = st.none() | st.lists(st.none() | st.integers(0, 4), max_size=4)
_FINITE = st.none() | st.floats(allow_nan=False, width=32)

_TIMES = st.none() | st.datetimes(timezones=st.just(UTC))

# Column types, and values that no grouping of a few of them takes out of their type.
CASES: list[tuple[str, int | None, pa.DataType, st.SearchStrategy[Any]]] = [
    ("sum", None, pa.int64(), _SMALL),
    ("sum", None, pa.uint64(), st.none() | st.integers(0, 2**50)),
    ("sum", None, pa.decimal128(12, 2), st.none() | st.integers(-99, 99).map(Decimal)),
    ("sum", None, pa.float64(), st.floats(allow_nan=False)),
    ("min", None, pa.int16(), _SMALL),
    ("max", None, pa.int16(), _SMALL),
    ("min", None, pa.string(), st.none() | st.text("abΩ", max_size=3)),
    ("max", None, pa.large_string(), st.none() | st.text("abΩ", max_size=3)),
    ("min", None, pa.float64(), _FINITE),
    ("max", None, pa.timestamp("us", "UTC"), _TIMES),
    ("bit_and", None, pa.int32(), _SMALL),
    ("bit_or", None, pa.int32(), _SMALL),
    ("bit_and", None, pa.bool_(), st.none() | st.booleans()),
    ("bit_or", None, pa.bool_(), st.none() | st.booleans()),
    ("list_append", None, pa.list_(pa.int64()), _LISTS),
    ("list_append", 3, pa.list_(pa.int64()), _LISTS),
    ("set_union", None, pa.large_list(pa.int64()), _LISTS),
    ("coalesce", None, pa.string(), st.none() | st.text(max_size=2)),
    ("last", None, pa.int64(), _SMALL),
]  # fmt: skip


def reduced(operator: Any, groups: Sequence[Sequence[Any]], kind: pa.DataType) -> list[Any]:
    starts = np.cumsum([0, *map(len, groups)])[:-1].astype(np.int64)
    found = operator.reduce(pa.array([v for group in groups for v in group], kind), starts)
    assert found.type == kind
    return found.to_pylist()


def bits(found: Sequence[Any]) -> list[Any]:
    """Floats bit for bit: NaN (inf - inf) is NaN."""
    return [repr(value) if isinstance(value, float) else value for value in found]


def test_every_operator_has_a_case() -> None:
    assert {name for name, *_ in CASES} == BUILT_IN == set(OPERATORS)


@pytest.mark.parametrize(("name", "cap", "kind", "values"), CASES)
def test_an_operator_is_what_the_model_says_and_associative(
    name: str, cap: int | None, kind: pa.DataType, values: st.SearchStrategy[Any]
) -> None:
    """However a group is cut in two, of which one part is reduced first: to the bit."""
    model = OPERATORS[name] if cap is None else append(cap)
    operator = find_operator(name, cap)
    assert operator.accepts(kind)

    def reduce(groups: Sequence[Sequence[Any]]) -> list[Any]:
        return bits(reduced(operator, groups, kind))

    @settings(max_examples=many(50, 15))
    @given(st.lists(st.lists(values, min_size=2, max_size=9), max_size=5), st.data())
    def check(groups: list[list[Any]], data: st.DataObject) -> None:
        whole = reduce(groups)
        assert whole == bits([folded(model, group) for group in groups])
        cuts = [data.draw(st.integers(1, len(group) - 1)) for group in groups]
        heads = [group[:cut] for group, cut in zip(groups, cuts, strict=True)]
        tails = [group[cut:] for group, cut in zip(groups, cuts, strict=True)]
        first = reduced(operator, heads, kind)
        assert reduce([[head, *tail] for head, tail in zip(first, tails, strict=True)]) == whole
        if name != "sum" or not pa.types.is_floating(kind):  # which is from the oldest on
            last = reduced(operator, tails, kind)
            assert reduce([[*head, tail] for head, tail in zip(heads, last, strict=True)]) == whole

    check()


def test_nan_loses_against_numbers() -> None:
    nan = float("nan")
    for name in ("min", "max"):
        found = reduced(find_operator(name), [[nan, 1.5, nan], [None, 2.0]], pa.float64())
        assert found == [1.5, 2.0]


def test_an_operator_declines_a_type_that_it_cannot_do() -> None:
    for name, kind in (
        *(("sum", pa.string()), ("sum", pa.timestamp("us")), ("bit_or", pa.float64())),
        *(("min", pa.list_(pa.int64())), ("list_append", pa.int64())),
        ("list_append", pa.list_(pa.int64(), 2)),
        ("set_union", pa.list_(pa.list_(pa.int64()))),
    ):
        assert not find_operator(name).accepts(kind)


_NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(),
            pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]  # fmt: skip


_DECIMALS = [pa.decimal128(2, 1), pa.decimal128(5, 1), pa.decimal256(76, 0)]


@pytest.mark.parametrize("kind", [*_NUMBERS, pa.duration("us"), *_DECIMALS], ids=str)
@given(data=st.data())
@settings(max_examples=many(60, 20))
def test_only_the_sum_itself_has_to_be_in_the_types_range(kind: pa.DataType, data: Any) -> None:
    """Not what came up on the way: so the sum of a group hangs on no order and no grouping."""
    least, most = _range(kind)
    near = st.integers(least, min(most, least + 3)) | st.integers(max(least, most - 3), most)
    numbers = st.lists(st.none() | near | st.integers(least, most), min_size=1, max_size=7)
    groups = data.draw(st.lists(numbers, min_size=1, max_size=4))
    totals = [_total(group) for group in groups]
    outside = [i for i, total in enumerate(totals) if not least <= (total or 0) <= most]

    if outside:
        with pytest.raises(OperatorError, match="overflow") as caught:
            _summed(groups, kind)
        assert (caught.value.group, caught.value.out_of_range) == (outside[0], True)
    else:
        assert _summed(groups, kind) == totals


def _range(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_decimal(kind):
        return -(10**kind.precision) + 1, 10**kind.precision - 1
    bits = np.iinfo(np.int64 if pa.types.is_duration(kind) else kind.to_pandas_dtype())
    return int(bits.min), int(bits.max)


def _total(group: Sequence[int | None]) -> int | None:
    known = [value for value in group if value is not None]
    return sum(known) if known else None


def _summed(groups: Sequence[Sequence[int | None]], kind: pa.DataType) -> list[int | None]:
    """As whole numbers: of the least units of a duration, of the last digits of a decimal."""
    flat = [value for group in groups for value in group]
    starts = np.cumsum([0, *map(len, groups)])[:-1].astype(np.int64)
    if pa.types.is_decimal(kind):
        digits = [None if v is None else f"{v}E-{kind.scale}" for v in flat]
        found = find_operator("sum").reduce(pa.array(digits).cast(kind), starts).to_pylist()
        return [None if v is None else int(Fraction(v) * 10**kind.scale) for v in found]
    whole = pa.int64() if pa.types.is_duration(kind) else kind
    found = find_operator("sum").reduce(pa.array(flat, whole).view(kind), starts)
    assert found.type == kind
    return list(found.view(whole).to_pylist())


# ---- a user's own


def _raises(left: pa.Array, right: pa.Array) -> pa.Array:
    if "boom" in right.to_pylist():
        raise ValueError("no boom here")
    return right


def _short(left: pa.Array, right: pa.Array) -> pa.Array:
    return left[:-1]


def _other_type(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.utf8_length(left)


def joined(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(left, right, "+")


def install(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    found = [EntryPoint(n, v, policy_operators.GROUP) for n, v in points.items()]
    monkeypatch.setattr(
        policy_operators,
        "entry_points",
        lambda group, name: [p for p in found if (p.group, p.name) == (group, name)],
    )


def test_a_users_operator_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, joined=f"{__name__}:joined")

    operator = find_operator("joined")

    assert reduced(operator, [["a", "b", "c", "d", "e"], ["x"]], pa.string()) == ["a+b+c+d+e", "x"]


@pytest.mark.parametrize(
    ("points", "text"),
    [
        ({}, "no installed package"),
        ({"mine": "no_such_module:f"}, "can't be loaded"),
        ({"mine": "string:digits"}, "can't be called"),
    ],
)
def test_an_operator_that_is_not_there_is_unsupported(
    monkeypatch: pytest.MonkeyPatch, points: dict[str, str], text: str
) -> None:
    install(monkeypatch, **points)
    with pytest.raises(Unsupported, match=text):
        find_operator("mine")


@pytest.mark.parametrize(
    ("combine", "groups", "group", "text"),
    [
        (_raises, [["a", "b"], ["c", "boom"], ["d"]], 1, "no boom here"),
        (_short, [["a"], ["b", "c"]], 1, "returned"),
        (_other_type, [["a", "b"]], 0, "returned int32"),
    ],
)
def test_what_a_users_operator_does_wrong_is_named(
    combine: Callable[[pa.Array, pa.Array], pa.Array],
    groups: list[list[str]],
    group: int,
    text: str,
) -> None:
    with pytest.raises(OperatorError, match=text) as caught:
        reduced(Pairwise(combine=combine, any_type=True), groups, pa.string())
    assert caught.value.group == group


# ---- early ends


@settings(max_examples=100)
@given(st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=9), min_size=1, max_size=5))
def test_a_fold_that_ends_early_comes_to_the_same(groups: list[list[int]]) -> None:
    """A sum that stops at 10, which a 10 therefore settles."""
    pairs: list[int] = []

    def add(older: pa.Array, newer: pa.Array) -> pa.Array:
        pairs.append(len(older))
        return pc.min_element_wise(pc.add(older, newer), 10)

    whole = Pairwise(combine=add, any_type=True)
    ending = Pairwise(combine=add, any_type=True, ends_fold=lambda v: pc.greater_equal(v, 10))
    wanted = [min(sum(group), 10) for group in groups]
    assert reduced(whole, groups, pa.int64()) == wanted
    combined, pairs[:] = sum(pairs), []
    assert reduced(ending, groups, pa.int64()) == wanted
    skipped = sum(max([0, *(n for n, v in enumerate(group) if v == 10)]) for group in groups)
    assert sum(pairs) == combined - skipped


@pytest.mark.parametrize(
    ("name", "cap", "kind", "groups", "ends"),
    [
        ("last", None, pa.int64(), [[1, None], [2]], [1, 2]),
        ("coalesce", None, pa.int64(), [[1, None, None], [None], [3, 4]], [0, -1, 5]),
        ("list_append", 3, pa.list_(pa.int64()), [[[1], [2, 3], [4, 5]], [[1, 2, 3]]], [1, -1]),
        (
            "list_append",
            3,
            pa.list_(pa.int64()),
            [[[1], [2], [3, 4, 5]], [None, [1, 2, 3]]],
            [1, 3],
        ),
    ],
)
def test_where_folds_end(
    name: str, cap: int | None, kind: pa.DataType, groups: list[list[Any]], ends: list[int]
) -> None:
    starts = np.cumsum([0, *map(len, groups)])[:-1].astype(np.int64)
    values = pa.array([v for group in groups for v in group], kind)
    operator = find_operator(name, cap)
    assert operator.may_end
    assert operator.find_ends(values, starts).tolist() == ends


@pytest.mark.parametrize("answer", [lambda v: 1 / 0, lambda v: v, lambda v: pa.array([True]), None])
def test_an_answer_that_is_none_ends_nothing(answer: Any) -> None:
    operator = Pairwise(combine=pc.add, any_type=True, ends_fold=answer)
    assert reduced(operator, [[1, 2, 3], [4]], pa.int64()) == [6, 4]


def test_an_operator_that_fails_is_told_with_the_key_it_fails_for() -> None:
    def failing(keys: pa.RecordBatch, older: pa.Array, newer: pa.Array) -> pa.Array:
        if "bad" in keys["name"].to_pylist():
            raise ValueError("no")
        return pc.add(older, newer)

    keys = pa.record_batch({"name": ["a", "b", "bad", "c"]})
    operator = Pairwise(combine=failing, any_type=True, needs_key=True).bind(keys)
    with pytest.raises(OperatorError, match="ValueError: no") as raised:
        reduced(operator, [[1, 2], [3], [4, 5], [6, 7, 8]], pa.int64())
    assert raised.value.group == 2
