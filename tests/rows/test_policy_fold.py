"""Folding by a policy: the RFC's table, expiry, and random chains against the plain model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import EntryPoint
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import Refused, Unsupported
from memwal.format import layout
from memwal.rows import policy_operators
from memwal.rows.policy import RowPolicy, is_stored, make_policy, parse_policy
from memwal.rows.policy_fold import Layer, Outcome, PolicyFold, check_policy
from tests.support.policy_model import OPERATORS, Model, append
from tests.support.sampling import many

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("log", pa.list_(pa.int64())),
        pa.field("seen", pa.string()),
        pa.field("note", pa.string(), nullable=False),
        pa.field("op", pa.bool_()),
        pa.field("until", pa.timestamp("us", "UTC")),
    ]
)
OF = {
    "n": ("sum", None),
    "x": ("sum", None),
    "tags": ("set_union", None),
    "log": ("list_append", 3),
    "seen": ("coalesce", None),
}
POLICY = make_policy(OF, "op", "until")
MODEL = Model(
    columns={c: append(cap) if cap else OPERATORS[name] for c, (name, cap) in OF.items()},
    marker="op",
    expiry="until",
)
NOW = datetime(2026, 11, 21, tzinfo=UTC)
NOW_NANOS = int(NOW.timestamp()) * 10**9

Entry = tuple[int, dict[str, Any] | None]


def row(
    key: int, n: int, *, op: bool | None = True, until: datetime | None = None, **more: Any
) -> dict[str, Any]:
    given = {"x": n / 3, "tags": None, "log": [n], "seen": None, "note": f"note {n}"}
    return {"id": key, "n": n, **given, "op": op, "until": until, **more}


def layer(name: str, entries: Sequence[Entry], schema: pa.Schema = SCHEMA) -> Layer:
    loose = pa.schema([pa.field(f.name, f.type) for f in schema])
    rows = [{"id": key} if found is None else found for key, found in entries]
    table = pa.Table.from_pylist(rows, schema=loose)
    dead = pa.array([found is None for _, found in entries], pa.bool_())
    return Layer(name=name, table=table.append_column(layout.TOMBSTONE, dead))


def outcome(
    base: Mapping[int, dict[str, Any]],
    generations: Sequence[Sequence[Entry]],
    *,
    policy: RowPolicy = POLICY,
    now_nanos: int = NOW_NANOS,
) -> Outcome:
    layers = [layer(f"generation {i}", g) for i, g in enumerate(generations, start=1)]
    fold = PolicyFold(policy, ["id"], SCHEMA, layers, now_nanos=now_nanos)
    wanted = fold.base_keys["id"].to_pylist()
    assert len(wanted) == len(set(wanted))
    table = pa.Table.from_pylist([base[k] for k in wanted if k in base], schema=SCHEMA)
    found = fold.finish(table)
    assert found.rows.schema == found.unchanged.schema == SCHEMA
    return found


def merged(base: Mapping[int, dict[str, Any]], found: Outcome) -> dict[int, dict[str, Any]]:
    """The base after the outcome was committed."""
    gone = set(found.deleted["id"].to_pylist())
    rows = {r["id"]: r for r in found.rows.to_pylist()}
    assert len(rows) == len(found.rows)
    assert not gone & rows.keys()
    return {k: r for k, r in {**base, **rows}.items() if k not in gone}


def read(base: Mapping[int, dict[str, Any]], now: datetime = NOW) -> dict[int, dict[str, Any]]:
    """What a reader sees of a base with nothing pending."""
    return {k: r for k, r in base.items() if r["until"] is None or r["until"] > now}


# ---- the RFC's table

BASE = row(1, 100, op=False)
OPERAND = (1, row(1, 7))
VALUE = (1, row(1, 40, op=False))
TOMBSTONE = (1, None)


@pytest.mark.parametrize(
    ("previous", "new", "sum_with_base", "sum_without"),
    [
        (TOMBSTONE, VALUE, 40, 40),
        (TOMBSTONE, OPERAND, 7, 7),
        (TOMBSTONE, TOMBSTONE, None, None),
        (VALUE, OPERAND, 47, 47),
        (VALUE, VALUE, 40, 40),
        (VALUE, TOMBSTONE, None, None),
        (OPERAND, OPERAND, 114, 14),
        (OPERAND, VALUE, 40, 40),
        (OPERAND, TOMBSTONE, None, None),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_the_nine_pairs(
    previous: Entry, new: Entry, sum_with_base: int | None, sum_without: int | None, together: bool
) -> None:
    generations = [[previous, new]] if together else [[previous], [new]]
    for base, wanted in (({1: BASE}, sum_with_base), ({}, sum_without)):
        after = merged(base, outcome(base, generations))
        assert {k: r["n"] for k, r in after.items()} == ({} if wanted is None else {1: wanted})


def test_other_columns_are_the_newest_rows_and_the_result_is_a_value() -> None:
    found = outcome({1: BASE}, [[(1, row(1, 5)), (1, row(1, 6, note="newest", seen="s"))]])

    assert found.rows.to_pylist() == [
        row(1, 111, op=False, x=100 / 3 + 5 / 3 + 2.0, log=[100, 5, 6], note="newest", seen="s")
    ]


def test_only_keys_without_a_barrier_ask_the_base() -> None:
    layers = [layer("g", [(1, row(1, 1)), (2, None), (2, row(2, 1)), (3, row(3, 1, op=False))])]
    fold = PolicyFold(POLICY, ["id"], SCHEMA, layers, now_nanos=NOW_NANOS)

    assert fold.base_keys["id"].to_pylist() == [1]
    assert sorted(fold.keys["id"].to_pylist()) == [1, 2, 3]
    assert fold.counts() == (3, 0)


def test_a_tombstone_is_one_whatever_else_its_row_says() -> None:
    for marker, until in ((True, None), (None, None), (True, later(-1)), (False, later(9))):
        table = pa.Table.from_pylist([row(1, 5, op=marker, until=until)], schema=SCHEMA)
        dead = Layer(name="g", table=table.append_column(layout.TOMBSTONE, pa.array([True])))
        fold = PolicyFold(POLICY, ["id"], SCHEMA, [dead], now_nanos=NOW_NANOS)
        assert len(fold.base_keys) == 0
        assert merged({1: BASE}, fold.finish(SCHEMA.empty_table())) == {}


# ---- expiry


def later(seconds: int) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_an_expired_operand_drops_out_and_an_expired_value_deletes() -> None:
    chain = [(1, row(1, 5, until=later(-1))), (1, row(1, 6, until=later(1)))]
    assert merged({1: BASE}, outcome({1: BASE}, [chain]))[1]["n"] == 106
    chain = [(1, row(1, 5, op=False, until=later(0))), (1, row(1, 6))]
    assert merged({1: BASE}, outcome({1: BASE}, [chain]))[1]["n"] == 6
    assert merged({1: BASE}, outcome({1: BASE}, [chain[:1]])) == {}


def test_an_operand_that_expires_after_its_merge_stays_in_the_value() -> None:
    chain = [(1, row(1, 7)), (1, row(1, 5, until=later(1)))]
    merged_before = merged({1: BASE}, outcome({1: BASE}, [chain]))
    assert read(merged_before, later(2))[1]["n"] == 112
    expired = NOW_NANOS + 2 * 10**9
    assert merged({1: BASE}, outcome({1: BASE}, [chain], now_nanos=expired))[1]["n"] == 107


def test_when_all_operands_expired_the_base_row_is_left_alone() -> None:
    found = outcome({1: BASE}, [[(1, row(1, 5, until=later(-1)))]])

    assert len(found.rows) == len(found.deleted) == 0
    assert found.unchanged.to_pylist() == [BASE]


def test_an_expired_base_row_counts_no_more_and_goes() -> None:
    base = {1: row(1, 100, op=False, until=later(-5))}
    assert merged(base, outcome(base, [[(1, row(1, 5))]]))[1]["n"] == 5
    found = outcome(base, [[(1, row(1, 5, until=later(-1)))]])
    assert found.deleted["id"].to_pylist() == [1]
    assert len(found.rows) == len(found.unchanged) == 0


@pytest.mark.parametrize(
    ("times", "wanted"), [((3, 9, 5), 9), ((3, None, 5), None), ((None, None), None), ((4,), 4)]
)
def test_the_result_lives_as_long_as_its_longest_part(
    times: Sequence[int | None], wanted: int | None
) -> None:
    chain = [(1, row(1, 1, until=None if t is None else later(t))) for t in times]
    (found,) = outcome({}, [chain]).rows.to_pylist()
    assert found["until"] == (None if wanted is None else later(wanted))


# ---- against the model

_UNTIL = st.none() | st.integers(-3, 3).map(later)
_ROW = st.builds(
    lambda n, x, tags, seen, op, until: {
        "n": n, "x": x, "tags": tags, "log": None if n is None else [n, n + 1], "seen": seen,
        "note": f"note {n}", "op": op, "until": until,
    },
    n=st.none() | st.integers(-9, 9),
    x=st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
    tags=st.none() | st.lists(st.sampled_from("abc"), max_size=3),
    seen=st.none() | st.sampled_from(["s", "t"]),
    op=st.sampled_from([True, True, True, False, None]),
    until=_UNTIL,
)  # fmt: skip
_ENTRY = st.tuples(st.integers(0, 4), st.none() | _ROW | _ROW | _ROW)
_BASE = st.dictionaries(st.integers(0, 5), _ROW)


def keyed(entries: Sequence[Entry]) -> list[Entry]:
    return [(key, None if found is None else {"id": key, **found}) for key, found in entries]


@settings(max_examples=many(150, 50))
@given(_BASE, st.lists(st.lists(_ENTRY, max_size=8), min_size=1, max_size=4), st.data())
def test_random_chains(base: Any, generations: Any, data: st.DataObject) -> None:
    base = {key: {"id": key, **found} for key, found in base.items()}
    generations = [keyed(g) for g in generations]
    truth = MODEL.table(base, generations, NOW)

    assert read(merged(base, outcome(base, generations))) == truth
    # However a merge cuts the generations, and whatever is merged when, at this instant.
    left, held = list(generations), dict(base)
    while left:
        size = data.draw(st.integers(1, len(left)))
        held = merged(held, outcome(held, left[:size]))
        left = left[size:]
        assert MODEL.table(held, left, NOW) == truth
    assert read(held) == truth


ENDING = {"log": ("list_append", 3), "seen": ("coalesce", None), "x": ("last", None)}
ENDING_POLICY = make_policy(ENDING, "op", None)
ENDING_MODEL = Model(
    columns={"log": append(3), "seen": OPERATORS["coalesce"], "x": OPERATORS["last"]}, marker="op"
)


@settings(max_examples=many(150, 50))
@given(_BASE, st.lists(st.lists(_ENTRY, max_size=8), min_size=1, max_size=4), st.data())
def test_random_chains_whose_folds_end_early(
    base: Any, generations: Any, data: st.DataObject
) -> None:
    base = {key: {"id": key, **found} for key, found in base.items()}
    left = [keyed(g) for g in generations]
    truth = ENDING_MODEL.table(base, left, NOW)
    while left:
        size = data.draw(st.integers(1, len(left)))
        # Rows of the base are given to those keys alone for which they were asked.
        base = merged(base, outcome(base, left[:size], policy=ENDING_POLICY))
        left = left[size:]
        assert ENDING_MODEL.table(base, left, NOW) == truth


def test_the_base_is_not_asked_for_keys_whose_folds_have_all_ended() -> None:
    two = [(1, row(1, 1, log=[1, 2], seen="s")), (1, row(1, 2, log=[3]))]
    once = [(2, row(2, 1, log=[1, 2, 3, 4], seen="s"))]  # not cut, unless there is another
    open_ = [(3, row(3, 1, log=[1, 2])), (3, row(3, 2, log=[3]))]  # nothing seen yet
    layers = [layer("g", [*two, *once, *open_])]
    fold = PolicyFold(ENDING_POLICY, ["id"], SCHEMA, layers, now_nanos=NOW_NANOS)
    assert fold.base_keys["id"].to_pylist() == [2, 3]
    # With expiry the result may live as long as the base's row.
    policy = make_policy(ENDING, "op", "until")
    fold = PolicyFold(policy, ["id"], SCHEMA, layers, now_nanos=NOW_NANOS)
    assert fold.base_keys["id"].to_pylist() == [1, 2, 3]


def routed(keys: pa.RecordBatch, older: pa.Array, newer: pa.Array) -> pa.Array:
    """By the key: the sum of even ones, the largest of others."""
    even = pc.equal(pc.bit_wise_and(keys["id"], 1), 0)
    return pc.if_else(even, pc.add(older, newer), pc.max_element_wise(older, newer))


routed.needs_key = True  # type: ignore[attr-defined]


def test_an_operator_may_go_by_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("routed", f"{__name__}:routed", policy_operators.GROUP)
    monkeypatch.setattr(policy_operators, "entry_points", lambda group, name: [point])
    policy = make_policy({"n": ("routed", None)}, None, None)
    base = {key: row(key, 10) for key in range(5)}
    generations = [[(key, row(key, n)) for key in (3, 2, 1, 2)] for n in (4, 30, 6)]
    after = merged(base, outcome(base, generations, policy=policy))
    assert [after[key]["n"] for key in range(5)] == [10, 30, 10 + 2 * 40, 30, 10]


# ---- errors


def test_an_operators_error_names_key_and_rows() -> None:
    top = 2**63 - 1
    generations = [[(1, row(1, 1)), (2, row(2, 1))], [(2, row(2, 2, log=None)), (2, row(2, top))]]

    with pytest.raises(Refused) as caught:
        outcome({2: row(2, 5, op=False)}, generations)

    text = str(caught.value)
    assert "operator 'sum' failed on column 'n' of key {'id': 2}" in text
    assert "overflow" in text
    assert "the base, generation 1 row 1, generation 2 row 0, generation 2 row 1" in text


def test_a_key_that_is_null_or_twice_in_the_base_is_refused() -> None:
    with pytest.raises(Refused, match="NULL in the key column 'id'"):
        PolicyFold(
            POLICY, ["id"], SCHEMA, [layer("g", [(None, row(1, 1) | {"id": None})])], now_nanos=0
        )  # type: ignore[list-item]
    fold = PolicyFold(POLICY, ["id"], SCHEMA, [layer("g", [(1, row(1, 1))])], now_nanos=0)
    with pytest.raises(Refused, match="more than once"):
        fold.finish(pa.Table.from_pylist([BASE, BASE], schema=SCHEMA))


def test_anchors_are_keys_that_every_prefix_writes() -> None:
    first = [(1, row(1, 1)), (2, row(2, 1)), (3, row(3, 1, until=later(99))), (4, row(4, 1))]
    second = [(2, None), (5, row(5, 1))]
    fold = PolicyFold(
        POLICY, ["id"], SCHEMA, [layer("a", first), layer("b", second)], now_nanos=NOW_NANOS
    )
    assert sorted(fold.anchors["id"].to_pylist()) == [1, 4]


@pytest.mark.parametrize(
    ("policy", "error", "text"),
    [
        (make_policy({"gone": ("sum", None)}, None, None), Refused, "no column"),
        (make_policy({"id": ("sum", None)}, None, None), Refused, "of the key"),
        (make_policy({"note": ("sum", None)}, None, None), Refused, "can't work on"),
        (make_policy({"op": ("last", None)}, "op", None), Refused, "no operator"),
        (make_policy({"x": ("sum", None)}, "n", None), Refused, "not of type bool"),
        (make_policy({"x": ("sum", None)}, None, "n"), Refused, "not a timestamp"),
        (make_policy({"n": ("nobodys", None)}, None, None), Unsupported, "not built in"),
    ],
)
def test_a_policy_that_does_not_fit(policy: RowPolicy, error: type[Exception], text: str) -> None:
    check_policy(POLICY, SCHEMA, ["id"])
    with pytest.raises(error, match=text):
        check_policy(policy, SCHEMA, ["id"])


# ---- as it is stored


def test_a_policy_comes_back_from_its_text() -> None:
    assert parse_policy(POLICY.as_text()) == POLICY
    other = make_policy(dict(reversed(OF.items())), "op", "until")
    assert other.as_text() == POLICY.as_text()


def stored(**changes: Any) -> str:
    return json.dumps({**json.loads(POLICY.as_text()), **changes}, sort_keys=True)


CAPS = [("sum", 3), (None, 3), *(("list_append", cap) for cap in (0, -1, "3", 1e400))]


def test_fields_of_a_newer_build_are_passed_over() -> None:
    text = stored(colour={"of": ["the", "sky"]})
    assert parse_policy(text) == POLICY
    assert is_stored(POLICY, text)
    assert not is_stored(make_policy({}, "op", None), text)
    assert not is_stored(POLICY, stored(format=2))


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1]", "[" * 100_000, '"' + POLICY.as_text(), stored(format=2)),
        *(stored(format=True), stored(marker=5), stored(expiry=["until"])),
        *(stored(columns=c) for c in ({}, [], {"n": None}, {"n": {"operator": "sum"}})),
        *(stored(columns={"n": {"operator": o, "cap": c}}) for o, c in CAPS),
        stored(columns={"n": {"operator": "list_append", "cap": 3, "newest_first": True}}),
    ],
)
def test_a_text_of_another_build_is_unsupported(text: str) -> None:
    with pytest.raises(Unsupported, match="none that this build knows"):
        parse_policy(text)
