"""What a backfill begins with, and what it counts as a table's backlog."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from memwal.jobs.backfill.plan import Backlog, estimate_bytes, sort_largest_first
from memwal.jobs.merge.plan import MergeLimits

BACKLOGS = st.lists(
    st.builds(
        Backlog,
        generations=st.integers(0, 50),
        in_memory_bytes=st.none() | st.integers(0, 10**9),
        unindexed_rows=st.integers(0, 10**6),
        indexes_behind=st.integers(0, 5),
    ),
    max_size=12,
)


def test_bytes_count_before_generations_before_rows() -> None:
    backlogs = [
        Backlog(unindexed_rows=10**6),
        Backlog(generations=1, in_memory_bytes=10),
        Backlog(generations=9, in_memory_bytes=10),
        Backlog(),
        Backlog(generations=1, in_memory_bytes=11),
        Backlog(indexes_behind=1),
    ]
    assert sort_largest_first(backlogs) == [4, 2, 1, 0, 5, 3]


def test_a_size_that_is_not_known_may_be_large() -> None:
    unknown = Backlog(generations=1, in_memory_bytes=None)
    assert sort_largest_first([Backlog(generations=9, in_memory_bytes=10**12), unknown]) == [1, 0]
    assert estimate_bytes(unknown, MergeLimits(bytes_per_commit_max=7)) == 7


@given(BACKLOGS)
def test_every_table_has_its_turn_and_like_ones_keep_their_order(backlogs: list[Backlog]) -> None:
    order = sort_largest_first(backlogs)
    assert sorted(order) == list(range(len(backlogs)))
    for first, second in pairwise(order):
        if backlogs[first] == backlogs[second]:
            assert first < second


@given(BACKLOGS)
def test_what_is_empty_is_left_for_the_end(backlogs: list[Backlog]) -> None:
    empty = [
        backlogs[position].is_empty and backlogs[position].in_memory_bytes == 0
        for position in sort_largest_first(backlogs)
    ]
    assert empty == sorted(empty)
