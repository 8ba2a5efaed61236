"""Decides what a backfill begins with: the tables with the most to do. Pure.

The largest goes first so that no long table is left to run alone at the end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from memwal.indexes import find_behind
from memwal.jobs.merge.plan.shard import MergeLimits, MergeRequest, choose_generations
from memwal.model import ShardId, TableView


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """What one table's jobs have before them. Bytes are in memory; None where one is not known."""

    generations: int = 0
    in_memory_bytes: int | None = 0
    unindexed_rows: int = 0
    indexes_behind: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, as far as a cheap look can tell."""
        return not (self.generations or self.unindexed_rows or self.indexes_behind)


def merge_backlog(view: TableView, shards: Collection[ShardId], request: MergeRequest) -> Backlog:
    """What a merge would fold. No `shards` stands for all of them."""
    chosen = [s for s in view.shards if not shards or s.shard_id in shards]
    sizes = [g.in_memory_bytes for s in chosen for g in choose_generations(s, request)]
    total = None if None in sizes else sum(s or 0 for s in sizes)
    return Backlog(generations=len(sizes), in_memory_bytes=total)


def index_backlog(view: TableView, unindexed_rows: Mapping[str, int | None]) -> Backlog:
    """What an index catch-up would do before any merge; rows count once for each index."""
    merged, recorded = view.mem_wal.merged, view.mem_wal.index_catchup
    return Backlog(
        unindexed_rows=sum(rows or 0 for rows in unindexed_rows.values()),
        indexes_behind=sum(
            1
            for name, rows in unindexed_rows.items()
            if rows or find_behind(recorded.get(name), merged)
        ),
    )


def largest_first(backlogs: Sequence[Backlog]) -> list[int]:
    """Positions in the order to begin in. A size that is not known may be large: it goes first."""

    def weight(position: int) -> tuple[float, int, int, int]:
        backlog = backlogs[position]
        size = backlog.in_memory_bytes
        return (
            math.inf if size is None else size,
            backlog.generations,
            backlog.unindexed_rows,
            backlog.indexes_behind,
        )

    return sorted(range(len(backlogs)), key=weight, reverse=True)


def bytes_for_engine(backlog: Backlog, limits: MergeLimits) -> int:
    """What a table merges, as the choice of an engine counts it: of unknown size is a commit's."""
    if backlog.in_memory_bytes is None:
        return backlog.generations * limits.bytes_per_commit_max
    return backlog.in_memory_bytes
