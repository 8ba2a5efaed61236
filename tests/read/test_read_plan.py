"""What a merging read reads, what it refuses, and what answers it where."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from memwal.errors import Corruption, Usage
from memwal.model import BrokenShard, ColumnInfo, FlushedGeneration, ShardId, ShardView, TableView
from memwal.read.plan import sources
from memwal.read.plan.request import Nearest, ReadRequest, check_filter
from memwal.read.plan.sources import Incomplete
from tests.support.views import make_generation, make_shard, make_view

A = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
B = ShardId("7f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
ALL = ReadRequest()
plan_read = partial(sources.plan_read, now_nanos=0)


def generation(number: int) -> FlushedGeneration:
    return make_generation(number, physical_rows=10 * number)


def shard(
    shard_id: ShardId, listed: Sequence[int], *, merged: int = 0, current: int | None = None
) -> ShardView:
    last = max([*listed, merged]) + 1 if current is None else current
    generations = map(generation, listed)
    return make_shard(shard_id, generations, merged=merged, current_generation=last)


def column(field_id: int, name: str, kind: str = "int64") -> ColumnInfo:
    return ColumnInfo(field_id=field_id, name=name, type_text=kind, nullable=True)


def view(*shards: ShardView, key: tuple[str, ...] = ("k",), **more: object) -> TableView:
    columns = (column(0, "k"), column(1, "n"), column(2, "v", "vector"))
    facts = {"uri": "/t", "version": 7, "primary_key": key, "columns": columns, "rows": 100}
    return make_view(*shards, **{**facts, **more})


# ---- sources


def test_generations_are_read_newest_first_and_merged_ones_skipped() -> None:
    plan = plan_read(view(shard(A, [3, 1, 4, 2], merged=2), shard(B, [1])), ALL)
    a, b = plan.shards
    assert [g.generation for g in a.generations] == [4, 3]
    assert sorted(g.generation for g in a.skipped) == [1, 2]
    assert [g.generation for g in b.generations] == [1]
    assert (plan.version, plan.generations) == (7, 3)


def test_key_columns_that_are_not_asked_for_are_read_besides() -> None:
    plan = plan_read(view(), ReadRequest(columns=("n",)))
    assert (plan.columns, plan.hidden, plan.scanned) == (("n",), ("k",), ("n", "k"))
    assert plan_read(view(), ReadRequest(columns=("n", "k"))).hidden == ()
    assert plan_read(view(), ALL).columns == ("k", "n", "v")
    assert plan_read(view(key=()), ReadRequest(columns=("n",))).hidden == ()


def test_a_pruned_shard_is_not_read_and_need_not_be_whole() -> None:
    plan = plan_read(view(shard(A, [1]), shard(B, [3], merged=1)), ALL, {B: "bucket 3"})
    assert [s.shard_id for s in plan.shards] == [A]
    (pruned,) = plan.pruned
    assert (pruned.shard_id, pruned.reason) == (B, "bucket 3")
    assert [g.generation for g in pruned.generations] == [3]


def test_a_broken_shard_is_an_error() -> None:
    with pytest.raises(Corruption, match="torn"):
        plan_read(view(broken=(BrokenShard(shard_id=A, error=Corruption("MW-M01", "torn")),)), ALL)


# ---- missing generations


def test_a_missing_generation_refuses_the_read() -> None:
    hole = view(shard(A, [2]))
    with pytest.raises(Incomplete, match=r"generation 1 is .*--allow-holes"):
        plan_read(hole, ALL)
    allowed = plan_read(hole, ReadRequest(allow_holes=True))
    assert [g.generation for g in allowed.shards[0].generations] == [2]


def test_an_old_version_whose_generations_were_collected_is_refused() -> None:
    """A later version merged 2 and 3, and no manifest lists them any more."""
    old = view(shard(A, [4], merged=1, current=5))
    with pytest.raises(Incomplete, match=r"generations 2 to 3 are .*read a later version"):
        plan_read(old, ReadRequest(version=7))
    drained = view(shard(A, [], merged=1, current=4))
    with pytest.raises(Incomplete, match="generations 2 to 3"):
        plan_read(drained, ReadRequest(version=7))
    with pytest.raises(Incomplete, match=r"generations 2 to 3 .*--allow-holes"):
        plan_read(drained, ALL)


# ---- requests


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (ReadRequest(columns=("x",)), "no column 'x'; it has k, n, v"),
        (ReadRequest(columns=()), "columns must be named"),
        (ReadRequest(columns=("n", "n")), "columns must be named, each of them once"),
        (ReadRequest(limit=-1), "limit -1"),
        (ReadRequest(keys=((1, 2),)), "a value for each of k"),
        (ReadRequest(nearest=Nearest(column="x", vector=(1.0,))), "no column 'x'"),
        (ReadRequest(nearest=Nearest(column="v", vector=(1.0,), k=0)), "k 0"),
        (ReadRequest(filter=" "), "filter is empty"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(wrong: ReadRequest, text: str) -> None:
    with pytest.raises(Usage, match=text):
        plan_read(view(), wrong)


def test_a_table_without_a_key_has_no_keys_to_look_up() -> None:
    with pytest.raises(Usage, match="no primary key"):
        plan_read(view(key=()), ReadRequest(keys=((1,),)))


@pytest.mark.parametrize(
    "text", ["_rowid = 3", "n = 1 OR _ROWADDR > 2", "_row_created_at_version = 1", "_tombstone"]
)
def test_a_filter_may_not_use_what_differs_between_base_and_generation(text: str) -> None:
    with pytest.raises(Usage, match="can't use"):
        check_filter(view(), text)


def test_a_column_of_the_table_may_have_such_a_name() -> None:
    named = view(columns=(column(0, "k"), column(1, "_rowid")))
    check_filter(named, "_rowid = 3")
    check_filter(view(), "my_rowid = 3")


@pytest.mark.parametrize("text", ["n = 1) OR (n = 2", "(n = 1", "n = 'a", "n = 1)"])
def test_a_filter_stays_within_its_parentheses(text: str) -> None:
    with pytest.raises(Usage, match="not closed"):
        check_filter(view(), text)


def test_quoted_parentheses_are_text() -> None:
    check_filter(view(), "n = ')(' AND `n)` = 2")


def test_keys_and_filter_become_one_predicate() -> None:
    both = plan_read(view(), ReadRequest(keys=((1,), (2,)), filter="n = 1 -- one"))
    assert both.predicate == "`k` IN (1, 2) AND (n = 1 -- one\n)"
    assert plan_read(view(), ALL).predicate is None
    assert plan_read(view(), ReadRequest(keys=())).predicate == "false"
