"""When a shard is due for a merge, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.errors import Corruption, Refused
from memwal.jobs.status.plan import DueLimits, WalSize, find_due_reasons, find_due_shards
from memwal.jobs.status.report import report_status
from memwal.model import BrokenShard, ShardId, ShardStatus, ShardView, TableView
from memwal.rows.progress import StrangerShard
from tests.support.views import make_generation, make_shard, make_state, make_view

NOW = 1_000_000 * 10**9
LIMITS = DueLimits(due_generations_min=3, due_bytes_min=100, due_age_seconds_min=60)
SHARD = ShardId("00000000-0000-4000-8000-000000000001")


def shard(
    *sizes: int | None,
    merged: int = 0,
    age: float | None = None,
    status: ShardStatus = ShardStatus.ACTIVE,
    name: ShardId = SHARD,
) -> ShardView:
    """Generations 1, 2, … of these in-memory sizes; the oldest pending is `age` seconds old."""
    listed = [make_generation(n, size) for n, size in enumerate(sizes, start=1)]
    return replace(
        make_shard(name, listed, merged=merged, status=status),
        oldest_pending_flushed_at_nanos=None if age is None else NOW - round(age * 1e9),
    )


def view(*shards: ShardView, key: tuple[str, ...] = ("k",)) -> TableView:
    broken = (BrokenShard(shard_id="b", error=Corruption("MW-M01", "torn")),)
    return make_view(*shards, primary_key=key, broken=broken)


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (shard(), ()),
        (shard(1, 1, age=59), ()),
        (shard(1, 1, 1, merged=1), ()),
        (shard(1, 1, 1, 1, merged=1), ("3 pending generations >= 3",)),
        (shard(99), ()),
        (shard(60, 40), ("100 pending bytes >= 100",)),
        (shard(500, 40, merged=1), ()),
        (shard(1, age=60), ("the oldest pending generation is 60 s old >= 60 s",)),
        # What is not known crosses nothing, and keeps nothing else from crossing.
        (shard(None, 100), ("100 pending bytes >= 100",)),
        (shard(None, None, None), ("3 pending generations >= 3",)),
        (
            shard(50, 50, 50, age=61),
            (
                "3 pending generations >= 3",
                "150 pending bytes >= 100",
                "the oldest pending generation is 61 s old >= 60 s",
            ),
        ),
    ],
)
def test_any_trigger_makes_a_find_due_reasons(found: ShardView, reasons: tuple[str, ...]) -> None:
    assert find_due_reasons(found, LIMITS, NOW) == reasons
    sealed = replace(found, manifest=replace(found.manifest, status=ShardStatus.SEALED))
    assert find_due_reasons(sealed, LIMITS, NOW) == ()


def test_only_due_shards_are_named_and_broken_ones_never_are() -> None:
    other = ShardId("00000000-0000-4000-8000-000000000002")
    found = find_due_shards(view(shard(1, 1, 1), shard(1, name=other)), LIMITS, NOW)
    assert found == {SHARD: ("3 pending generations >= 3",)}


def test_a_table_that_can_t_be_merged_is_never_due() -> None:
    assert find_due_shards(view(shard(1, 1, 1), key=()), LIMITS, NOW) == {}


def test_of_a_broken_shard_what_is_merged_is_known_but_a_stranger_has_no_progress() -> None:
    torn, refused = Corruption("MW-M01", "torn"), Refused("MW-H06", "of a clone")
    broken = (
        BrokenShard(shard_id="b", error=torn),
        StrangerShard(shard_id="c", error=refused, inherited_generation=5),
    )
    state = make_state(merged={ShardId("b"): 4, ShardId("c"): 5})
    report = report_status(
        "t",
        make_view(state=state, broken=broken),
        wal=lambda shard: WalSize(),
        unindexed_rows=lambda name: None,
        due={},
        now_nanos=NOW,
    )
    assert [s.merged_generation for s in report.shards] == [4, 0]
