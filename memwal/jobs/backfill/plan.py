"""Orders the tables of a backfill: those with the most to do come first. Pure.

The largest goes first so that no long table is left to run alone at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from memwal.errors import Usage
from memwal.format.layout import SYSTEM_INDEXES, find_shard
from memwal.indexes import find_behind
from memwal.jobs.backfill.request import BackfillJob
from memwal.jobs.merge.plan import MergeLimits, choose_generations
from memwal.jobs.merge.request import MergeBounds
from memwal.model import ShardId, TableView, sum_known

MERGE: BackfillJob = "merge"
INDEX_CATCHUP: BackfillJob = "index-catchup"
ORDER: tuple[BackfillJob, ...] = (MERGE, INDEX_CATCHUP)


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """What one table's jobs have to do. Bytes are in-memory bytes; None if any is not known."""

    generations: int = 0
    in_memory_bytes: int | None = 0
    unindexed_rows: int = 0
    indexes_behind: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, as far as a cheap look can tell."""
        return not (self.generations or self.unindexed_rows or self.indexes_behind)


def find_shards(view: TableView, asked: Sequence[str]) -> tuple[ShardId, ...]:
    """The shards asked for that the table has; raises Usage if one stands for several of them."""
    there = set(view.shard_ids)
    named = (s for s in asked if any(shard.startswith(s) for shard in there))
    return tuple(dict.fromkeys(find_shard(shard, there, view.uri) for shard in named))


def check_shards(views: Sequence[TableView | None], asked: Sequence[str]) -> None:
    """Raise Usage for a shard that no table has, unless a table could not be read (None)."""
    if None not in views:
        there = {shard for view in views if view is not None for shard in view.shard_ids}
        for shard in asked:
            if not any(known.startswith(shard) for known in there):
                raise Usage(f"none of the tables has a shard {shard}")


def measure_backlog(
    view: TableView,
    jobs: Collection[str],
    shards: Collection[str],
    request: MergeBounds,
    count_unindexed_rows: Callable[[str], int | None],
) -> Backlog:
    """What these jobs would do on a table. Empty `shards` means all.

    Unindexed rows are counted as they are before any merge, once for each index.
    """
    found = Backlog()
    if MERGE in jobs:
        chosen = [s for s in view.shards if not shards or s.shard_id in shards]
        sizes = [g.in_memory_bytes for s in chosen for g in choose_generations(s, request)]
        found = Backlog(generations=len(sizes), in_memory_bytes=sum_known(sizes))
    if INDEX_CATCHUP in jobs:
        names = {entry.name for entry in view.manifest.indexes} - SYSTEM_INDEXES
        rows = {name: count_unindexed_rows(name) or 0 for name in names}
        merged, recorded = view.mem_wal.merged, view.mem_wal.index_catchup
        found = replace(
            found,
            unindexed_rows=sum(rows.values()),
            indexes_behind=sum(
                bool(rows[name] or find_behind(recorded.get(name), merged)) for name in names
            ),
        )
    return found


def sort_largest_first(backlogs: Sequence[Backlog]) -> list[int]:
    """Positions of the backlogs, largest first; an unknown size may be large, so it goes first."""

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


def estimate_bytes(backlog: Backlog, limits: MergeLimits) -> int:
    """The bytes a table merges, to choose an engine; if unknown, a full commit per generation."""
    if backlog.in_memory_bytes is None:
        return backlog.generations * limits.bytes_per_commit_max
    return backlog.in_memory_bytes
