"""Which shards share a commit, and how it is made."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.jobs.merge.plan import (
    SHARED_BYTES_MAX,
    FoldFacts,
    MergeLimits,
    NextCommit,
    choose_folds,
    choose_plans,
    group_shards,
    limit_bytes,
)
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, ShardView, TableView
from tests.support.views import FACTS, make_generation, make_shard, make_view

ALL = MergeRequest()
LIMITS = MergeLimits()


def shard_id(number: int) -> ShardId:
    return ShardId(f"00000000-0000-4000-8000-{number:012}")


def generations(count: int, size: int | None = 10) -> tuple[FlushedGeneration, ...]:
    return tuple(make_generation(n, size) for n in range(1, count + 1))


def shard(number: int, count: int = 1, size: int | None = 10) -> ShardView:
    return make_shard(shard_id(number), generations(count, size))


def view(policy_text: str | None = None) -> TableView:
    return make_view(policy_text=policy_text)


def plan(count: int, size: int | None = 10) -> NextCommit:
    return NextCommit(generations=generations(count, size))


# ---- units


MANY = [shard(n) for n in range(9)]


def alone(work: list[ShardView]) -> tuple[tuple[ShardId, ...], ...]:
    return tuple((s.shard_id,) for s in work)


@pytest.mark.parametrize(
    "work",
    [MANY, MANY[:2], [shard(n, size=SHARED_BYTES_MAX // 4 - 1) for n in range(4)]],
    ids=["many", "few", "as large as may be"],
)
def test_shards_together(work: list[ShardView]) -> None:
    assert group_shards(view(), work, ALL, LIMITS) == (tuple(s.shard_id for s in work),)


@pytest.mark.parametrize(
    ("seen", "work", "limits"),
    [
        (view("a policy"), MANY, LIMITS),
        (view(), MANY, replace(LIMITS, shards_per_commit_max=1)),
        (view(), [shard(n, size=None) for n in range(20)], LIMITS),
        (view(), [shard(n, size=SHARED_BYTES_MAX // 4) for n in range(20)], LIMITS),
        (view(), [shard(n, size=10) for n in range(20)], replace(LIMITS, bytes_per_commit_max=40)),
    ],
    ids=["policy", "not wanted", "unknown sizes", "large", "large for the limit"],
)
def test_shards_alone(seen: TableView, work: list[ShardView], limits: MergeLimits) -> None:
    assert group_shards(seen, work, ALL, limits) == alone(work)


def test_a_request_bounds_what_a_shard_weighs() -> None:
    large = [shard(n, count=8, size=SHARED_BYTES_MAX // 16) for n in range(20)]
    assert group_shards(view(), large, ALL, LIMITS) == alone(large)
    assert len(group_shards(view(), large, MergeRequest(until_generation=2), LIMITS)) < len(large)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 40) | st.none()), max_size=60),
    bytes_limit=st.integers(1, 300),
    generations_limit=st.integers(1, 12),
    shards_limit=st.integers(1, 9),
)
def test_every_shard_is_in_one_unit_within_limits(
    sizes: list[tuple[int, int | None]],
    bytes_limit: int,
    generations_limit: int,
    shards_limit: int,
) -> None:
    limits = MergeLimits(
        bytes_per_commit_max=bytes_limit,
        generations_per_commit_max=generations_limit,
        shards_per_commit_max=shards_limit,
    )
    work = [shard(n, count, size) for n, (count, size) in enumerate(sizes)]
    made = group_shards(view(), work, ALL, limits)
    assert sorted(s for unit in made for s in unit) == sorted(s.shard_id for s in work)
    weights = {s.shard_id: (len(s.pending), s.pending[0].in_memory_bytes) for s in work}
    for unit in made:
        if len(unit) > 1:
            counts = [weights[s][0] for s in unit]
            each = [weights[s][1] for s in unit]
            assert len(unit) <= shards_limit
            assert sum(counts) <= generations_limit
            assert sum(c * (e or 0) for c, e in zip(counts, each, strict=True)) <= bytes_limit


# ---- one commit


def test_a_commit_takes_the_first_that_fit() -> None:
    plans = {shard_id(n): plan(2, size=10) for n in range(5)}
    assert list(choose_plans(plans, LIMITS)) == list(plans)
    by_bytes = choose_plans(plans, replace(LIMITS, bytes_per_commit_max=65))
    assert list(by_bytes) == list(plans)[:3]
    by_generations = choose_plans(plans, replace(LIMITS, generations_per_commit_max=4))
    assert list(by_generations) == list(plans)[:2]
    assert list(choose_plans(plans, replace(LIMITS, shards_per_commit_max=3))) == list(plans)[:3]


def test_a_plan_that_is_too_large_or_of_unknown_size_is_not_taken() -> None:
    large = SHARED_BYTES_MAX + 1
    plans = {shard_id(1): plan(1, None), shard_id(2): plan(1, large), shard_id(3): plan(1)}
    assert list(choose_plans(plans, replace(LIMITS, bytes_per_commit_max=2 * large))) == [
        shard_id(3)
    ]
    assert choose_plans({shard_id(1): plan(1, None)}, LIMITS) == {}
    assert limit_bytes(replace(LIMITS, bytes_per_commit_max=2 * large)) == SHARED_BYTES_MAX


@pytest.mark.parametrize(
    "fact",
    [
        replace(FACTS, deletes_with_rows=True),
        replace(FACTS, tombstones=10_001),
        replace(FACTS, generations=2, anchored=False),
        replace(FACTS, generations=2, key_types=("int8",)),
    ],
    ids=["policy", "tombstones", "no anchor", "keys not compared"],
)
def test_folds_that_are_left_out(fact: FoldFacts) -> None:
    facts = {shard_id(1): FACTS, shard_id(2): fact, shard_id(3): FACTS}
    assert choose_folds(facts, LIMITS) == (shard_id(1), shard_id(3))


def test_tombstones_are_counted_together() -> None:
    facts = {shard_id(n): replace(FACTS, tombstones=4_900) for n in range(3)}
    assert choose_folds(facts, LIMITS) == (shard_id(0), shard_id(1))
