"""What `wait` waits for, and how far a shard has come."""

from __future__ import annotations

import re

import pytest

from memwal.errors import Corruption, Usage
from memwal.jobs.wait.plan import (
    Until,
    choose_target,
    describe_missing,
    find_collected,
    find_indexed,
    find_merged,
    find_missing,
)
from memwal.model import BrokenShard, MemWalState, ShardId, ShardView
from tests.support.views import make_shard, make_state, make_version, make_view

A = ShardId("00000000-0000-4000-8000-00000000000a")
B = ShardId("00000000-0000-4000-8000-00000000000b")


def shard(name: ShardId, listed: range, merged: int) -> ShardView:
    return make_shard(name, listed, merged=merged)


def test_the_target_is_the_highest_that_was_flushed_listed_or_merged() -> None:
    pending, collected, empty = (
        shard(A, range(3, 6), 2),
        shard(B, range(0), 7),
        shard(ShardId("c"), range(0), 0),
    )
    assert choose_target(make_view(pending, collected, empty), {}) == {A: 5, B: 7}
    assert choose_target(make_view(), {}) == {}


def test_named_generations_are_the_whole_target_and_may_be_still_to_come() -> None:
    assert choose_target(
        make_view(shard(A, range(1, 3), 0), shard(B, range(1, 9), 0)), {A: 12}
    ) == {A: 12}
    with pytest.raises(Usage, match=f"no shard {B}"):
        choose_target(make_view(shard(A, range(1, 3), 0)), {B: 1})


def test_a_broken_shard_has_no_target_so_it_can_t_be_waited_for() -> None:
    torn = (BrokenShard(shard_id=B, error=Corruption("MW-M01", "torn")),)
    with pytest.raises(Corruption, match="torn"):
        choose_target(make_view(shard(A, range(1, 3), 0), broken=torn), {})
    with pytest.raises(Corruption, match="torn"):
        choose_target(make_view(shard(A, range(1, 3), 0), broken=torn), {B: 1})
    assert choose_target(make_view(shard(A, range(1, 3), 0), broken=torn), {A: 1}) == {A: 1}


@pytest.mark.parametrize(
    ("held", "reached"),
    [
        (make_state(merged={A: 5}), 0),  # an index that is absent is not known to be caught up
        (make_state(merged={A: 5}, index_catchup={"i": {A: 3}, "j": {A: 5}}), 3),
        (make_state(merged={A: 5}, index_catchup={"i": {A: 5}, "j": {A: 5}}), 5),
        (make_state(merged={A: 5}, index_catchup={"i": {A: 5}, "j": {B: 5}}), 0),
        (make_state(merged={A: 2}, index_catchup={"i": {A: 5}, "j": {A: 5}}), 2),
        (make_state(merged={A: 5}, index_catchup={"i": {A: 4}}, maintained_indexes=("i",)), 4),
        (
            make_state(
                merged={A: 5},
                index_catchup={"i": {A: 4}},
                maintained_indexes=("i",),
                maintain_all_indexes=True,
            ),
            0,
        ),
    ],
)
def test_indexed_is_what_the_slowest_index_has_that_must_catch_up(
    held: MemWalState, reached: int
) -> None:
    assert find_indexed(make_version(held, "i", "j", "__lance_frag_reuse"), held, A) == reached


def test_without_an_index_merged_is_indexed() -> None:
    held = make_state(merged={A: 5})
    assert find_merged(held, A) == find_indexed(make_version(held), held, A) == 5
    assert find_merged(held, B) == 0


@pytest.mark.parametrize(
    ("merged", "left", "reached"),
    [(5, (), 5), (5, (6, 7), 5), (5, (5, 6), 4), (5, (3, 9), 2), (5, (1,), 0), (0, (), 0)],
)
def test_collected_ends_where_the_first_one_is_left(
    merged: int, left: tuple[int, ...], reached: int
) -> None:
    assert find_collected(merged, left) == reached


def test_what_is_missing_is_told_in_one_bounded_line() -> None:
    assert find_missing({A: 3, B: 2}, {A: 3}) == {B: 0}
    assert find_missing({A: 3}, {A: 9}) == {}
    many = {ShardId(f"s{n}"): 5 for n in range(30)}
    text = describe_missing(Until.INDEXED, many, dict.fromkeys(many, 0))
    assert re.search(r"^indexed: 0 of 30 shards; .*s9 at 0 of 5; and 20 more$", text)
