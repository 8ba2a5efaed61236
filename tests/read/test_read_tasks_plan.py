from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.model import FlushedGeneration, ShardId
from memwal.read.plan.sources import ReadPlan, ShardRead, plan_tasks

Sizes = Sequence[int | None]


def plan(*shards: Sizes) -> ReadPlan:
    """A shard for each list of its generations' sizes, oldest first."""
    return ReadPlan(
        uri="t",
        version=3,
        primary_key=("k",),
        columns=("k",),
        hidden=(),
        shards=tuple(
            ShardRead(
                shard_id=ShardId(f"shard-{place}"),
                merged_generation=0,
                generations=tuple(
                    FlushedGeneration(
                        generation=n, path=f"00000000_gen_{n}", in_memory_bytes=sizes[n - 1]
                    )
                    for n in range(len(sizes), 0, -1)
                ),
            )
            for place, sizes in enumerate(shards)
        ),
    )


def fragments(sizes: Sizes) -> list[tuple[int, int | None]]:
    return list(enumerate(sizes))


def test_small_ones_share_a_task() -> None:
    found = plan_tasks(plan([1, 1], [1]), fragments([10] * 10), 50)
    assert [len(task.generations) for task in found] == [3, 0, 0]
    assert [task.fragments for task in found] == [(), (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]


def test_large_ones_and_those_of_unknown_size_have_their_own() -> None:
    found = plan_tasks(plan([]), fragments([100, None, 100]), 50)
    assert [task.fragments for task in found] == [(0,), (1,), (2,)]


def test_nothing_makes_no_task() -> None:
    assert plan_tasks(plan(), [], 50) == ()
    assert [t.fragments for t in plan_tasks(plan(), fragments([0, 0]), 50)] == [(0, 1)]


SIZES = st.lists(st.one_of(st.none(), st.integers(0, 200)), max_size=30)


@given(SIZES, st.lists(SIZES, max_size=3), st.integers(1, 300))
def test_everything_is_read_once_in_tasks_of_bounded_size(
    sizes: Sizes, shards: list[Sizes], task_bytes: int
) -> None:
    read = plan(*shards)
    tasks = plan_tasks(read, fragments(sizes), task_bytes)
    assert [f for task in tasks for f in task.fragments] == list(range(len(sizes)))
    wanted = [(s.shard_id, g) for s in read.shards for g in s.generations]
    assert [g for task in tasks for g in task.generations] == wanted
    assert all(bool(task.fragments) != bool(task.generations) for task in tasks)
    for task in tasks:
        mine = [sizes[f] for f in task.fragments] + [g.in_memory_bytes for _, g in task.generations]
        counted = [task_bytes if size is None else size for size in mine]
        # No more than is aimed at, and half of the first and of the last item.
        assert sum(counted) <= task_bytes + (counted[0] + counted[-1]) / 2


@pytest.mark.parametrize("count", [1, 7, 64])
def test_tasks_are_about_even(count: int) -> None:
    found = plan_tasks(plan(), fragments([10] * count), 30)
    sizes = [len(task.fragments) for task in found]
    assert max(sizes) <= 3
    assert max(sizes) - min(sizes) <= 1
