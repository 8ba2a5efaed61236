"""The numbered predicates: each refuses what it is there for, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from memwal import invariants
from memwal.invariants import InvariantBroken
from memwal.model import ShardId, ShardManifest

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
OTHER = ShardId("11111111-2222-4333-8444-555555555555")
BEFORE = ShardManifest(
    shard_id=SHARD,
    version=4,
    writer_epoch=3,
    current_generation=3,
    replay_after_wal_entry_position=7,
)
AFTER = replace(BEFORE, version=5)


def broken(number: int, check: Callable[[], None]) -> str:
    with pytest.raises(InvariantBroken) as caught:
        check()
    assert caught.value.number == number
    return str(caught.value)


@pytest.mark.parametrize(
    ("generations", "text"),
    [
        ([], "at least one generation"),
        ([5, 6], "generation 5 comes after 5"),
        ([6, 6], "generation 6 comes after 6"),
        ([7, 6], "generation 7 leaves a hole after 5"),
        ([6, 8], "generation 8 leaves a hole after 6"),
    ],
)
def test_a_commit_folds_ascending_generations_right_above_the_watermark(
    generations: list[int], text: str
) -> None:
    check = invariants.check_merge_order
    assert text in broken(2, lambda: check(5, generations, holes_allowed=False))


def test_holes_are_passed_with_the_override_but_not_backwards() -> None:
    invariants.check_merge_order(5, [7, 9], holes_allowed=True)
    invariants.check_merge_order(5, [6, 7], holes_allowed=False)
    broken(2, lambda: invariants.check_merge_order(5, [9, 7], holes_allowed=True))


def test_progress_neither_falls_nor_gets_lost() -> None:
    check = invariants.check_progress
    check({SHARD: 2}, {SHARD: 2, OTHER: 1})
    assert "falls from 2 to 1" in broken(3, lambda: check({SHARD: 2}, {SHARD: 1}))
    assert "falls from 2 to None" in broken(3, lambda: check({SHARD: 2}, {OTHER: 2}))
    assert "falls from 0 to None" in broken(3, lambda: check({SHARD: 0}, {}))


def test_the_first_manifest_follows_nothing() -> None:
    invariants.check_shard_manifest(None, AFTER)


def test_a_manifest_follows_its_own_shard_s_version() -> None:
    check = invariants.check_shard_manifest
    check(BEFORE, AFTER)
    broken(3, lambda: check(BEFORE, replace(AFTER, version=6)))
    broken(3, lambda: check(BEFORE, replace(AFTER, version=4)))
    broken(3, lambda: check(BEFORE, replace(AFTER, shard_id=OTHER)))
    broken(3, lambda: check(BEFORE, replace(AFTER, shard_spec_id=1)))


@pytest.mark.parametrize(
    "name", ["writer_epoch", "current_generation", "replay_after_wal_entry_position"]
)
def test_a_manifest_s_counters_never_fall(name: str) -> None:
    fallen = replace(AFTER, **{name: getattr(BEFORE, name) - 1})
    assert f"{name} falls" in broken(3, lambda: invariants.check_shard_manifest(BEFORE, fallen))


def test_maintenance_leaves_the_epoch_alone() -> None:
    invariants.check_writer_untouched(BEFORE, AFTER)
    bumped = replace(AFTER, writer_epoch=4)
    broken(4, lambda: invariants.check_writer_untouched(BEFORE, bumped))
