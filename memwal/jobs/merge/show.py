"""What people see of a merge, and of a merge's dry run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_size, numbers, style_outcome, words
from memwal.jobs.merge.report import MergeTableReport, PlannedMergeReport, PlannedShard, ShardReport
from memwal.report import DONE, NOTHING_TO_DO

Shard = TypeVar("Shard", ShardReport, PlannedShard)

_SHARDS_SHOWN_MAX = 50

MERGED: tuple[Column[ShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: style_outcome(shard.outcome)),
    numbers("merged", lambda shard: f"{shard.from_generation} -> {shard.to_generation}"),
    numbers("generations", lambda shard: str(shard.generations)),
    numbers("commits", lambda shard: str(shard.commits)),
    numbers("inserted", lambda shard: shard.rows_inserted),
    numbers("updated", lambda shard: shard.rows_updated),
    numbers("deleted", lambda shard: shard.rows_deleted),
    numbers("read", lambda shard: format_size(shard.bytes_read)),
    numbers("seconds", lambda shard: f"{shard.seconds:.2f}"),
    words("join", lambda shard: ", ".join(shard.joins)),
)
PLANNED: tuple[Column[PlannedShard], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: shard.outcome),
    numbers("merged", lambda shard: str(shard.from_generation)),
    numbers("would merge to", lambda shard: str(shard.to_generation)),
    numbers("generations", lambda shard: str(shard.generations)),
    numbers("commits", lambda shard: str(len(shard.commits))),
    numbers("rows", lambda shard: shard.physical_rows),
    numbers("bytes", lambda shard: format_size(shard.in_memory_bytes)),
)


def show_table(report: MergeTableReport | PlannedMergeReport) -> list[RenderableType]:
    """Render a line for each shard; of many, only those with work, errors first, and a summary."""
    if isinstance(report, PlannedMergeReport):
        return _list_shards(report.shards, PLANNED)
    return _list_shards(report.shards, MERGED) if report.shards else []


def _list_shards(shards: Sequence[Shard], columns: Sequence[Column[Shard]]) -> list[RenderableType]:
    if len(shards) <= _SHARDS_SHOWN_MAX:
        return [build_table(shards, columns)]
    busy: list[Shard] = [shard for shard in shards if shard.outcome != NOTHING_TO_DO]
    shown: list[Shard] = sorted(busy, key=lambda shard: shard.outcome == DONE)[:_SHARDS_SHOWN_MAX]
    text = (
        f"  {len(shards):,} shards, {len(busy):,} with work, {len(shown)} shown; --json lists all"
    )
    return [*([build_table(shown, columns)] if shown else []), Text(text)]
