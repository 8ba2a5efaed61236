"""Chooses which shards of a table share commits, and how such a commit is made. Pure.

Each commit scans the base's key column and makes a version, and of concurrent commits that insert
many keys only one lands. So where many shards have little work each, their prefixes go into one
commit, which marks them all. It lands with all marks or with none, and Lance refuses it for any
reason for which it would refuse one of them alone. So it is guarded when each fold in it is (see
`shard`).

Shards that hold the same key (against the spec: one key, one shard) are merged one by one, since
its rows would have no order within one commit. So are shards that delete keys in a pass of their
own, and those of tables with a row-merge policy, which computes rows from the base's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from memwal.jobs.merge.plan.shard import (
    CommitShape,
    Deletes,
    FoldFacts,
    Join,
    JoinCosts,
    MergeLimits,
    NextCommit,
    Room,
    choose_generations,
    hold,
    index_is_cheaper,
    is_guarded,
)
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId, ShardView, TableView
from memwal.rows.holes import find_holes

SHARED_BYTES_MAX = 128 * 1024 * 1024
"""The most in-memory bytes of a shared commit, whose rows are all held at once."""


def limit_bytes(limits: MergeLimits) -> int:
    """How many in-memory bytes the rows of a shared commit may have."""
    return min(limits.bytes_per_commit_max, SHARED_BYTES_MAX)


def group_shards(
    view: TableView, work: Sequence[ShardView], request: MergeRequest, limits: MergeLimits
) -> tuple[tuple[ShardId, ...], ...]:
    """Group the shards with work: each group shares its commits.

    A shard stays alone if it may need a quarter of a shared commit or more, if its size is not
    certain (the rows of a shared commit are all held at once), or if it has a hole, which is then
    reported for that shard alone. With a row-merge policy, every shard stays alone.
    """
    if view.policy_text is not None:
        return tuple((shard.shard_id,) for shard in work)
    small_bytes = limit_bytes(limits) // 4
    small: list[tuple[ShardId, int, int, int]] = []
    made: list[tuple[ShardId, ...]] = []
    for shard in work:
        pending = choose_generations(shard, request)
        sizes = [None if g.estimated else g.in_memory_bytes for g in pending]
        total = sum(size or 0 for size in sizes)
        if None in sizes or total >= small_bytes or any(find_holes(shard)):
            made.append((shard.shard_id,))
        else:
            small.append((shard.shard_id, total, hold(pending), len(pending)))
    made.extend(_fill_bins(small, limits))
    return tuple(made)


def choose_plans(
    plans: Mapping[ShardId, NextCommit], limits: MergeLimits
) -> Mapping[ShardId, NextCommit]:
    """The first plans that fit into one commit together; those of unknown size are left out."""
    sized = [
        (shard, plan.in_memory_bytes, hold(plan.generations), len(plan.generations))
        for shard, plan in plans.items()
        if plan.in_memory_bytes is not None and plan.in_memory_bytes <= limit_bytes(limits)
    ]
    first = next(iter(_fill_bins(sized, limits)), ())
    return {shard: plans[shard] for shard in first}


def _fill_bins(
    sized: Iterable[tuple[ShardId, int, int, int]], limits: MergeLimits
) -> list[tuple[ShardId, ...]]:
    """Put shards, in order, into bins that each keep within a commit's limits."""
    bins: list[list[ShardId]] = []
    limits = replace(limits, bytes_per_commit_max=limit_bytes(limits))
    room = Room(limits=limits)
    for shard, size, held, generations in sized:
        taken = {"generations": generations, "shards": 1, "held_bytes": held}
        if not bins or not room.take(size, **taken):
            bins.append([])
            room = Room(limits=limits, size_bytes=size, **taken)
        bins[-1].append(shard)
    return [tuple(shards) for shards in bins]


def choose_folds(facts: Mapping[ShardId, FoldFacts], limits: MergeLimits) -> tuple[ShardId, ...]:
    """The shards whose folds may share a commit: each is guarded, and all have few tombstones."""
    room = limits.deletes_with_rows_max
    chosen = []
    for shard, fact in facts.items():
        if fact.deletes_with_rows or fact.tombstones > room or not is_guarded(fact, Join.SCAN):
            continue
        room -= fact.tombstones
        chosen.append(shard)
    return tuple(chosen)


def shape_shared(facts: Sequence[FoldFacts], costs: JoinCosts) -> CommitShape:
    """How to commit the folds that `choose_folds` chose."""
    rows = sum(f.live_rows for f in facts)
    base_rows = facts[0].base_rows
    cheaper = index_is_cheaper(replace(facts[0], live_rows=rows), costs)
    if any(f.tombstones for f in facts):
        deletes = Deletes.SAME_COMMIT
    else:
        deletes = Deletes.NONE
        if cheaper and all(is_guarded(f, Join.INDEX) for f in facts):
            return CommitShape(
                join=Join.INDEX,
                deletes=deletes,
                reason=f"{rows} rows of {len(facts)} shards into {base_rows}: probing the key "
                "index costs less than scanning the key column",
            )
    return CommitShape(
        join=Join.SCAN,
        deletes=deletes,
        reason=f"{rows} rows of {len(facts)} shards into {base_rows} in one scan",
    )
