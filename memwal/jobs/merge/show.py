"""What people see of a merge, and of a merge's dry run."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_size, numbers, style_outcome, words
from memwal.jobs.merge.report import MergeTableReport, ShardReport
from memwal.report import DONE, NOTHING_TO_DO

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
PLANNED: tuple[Column[ShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: shard.outcome),
    numbers("merged", lambda shard: str(shard.from_generation)),
    numbers("would merge to", lambda shard: str(shard.to_generation)),
    numbers("generations", lambda shard: str(shard.generations)),
    numbers("commits", lambda shard: str(shard.commits)),
    numbers("rows", lambda shard: getattr(shard.planned, "physical_rows", None)),
    numbers("bytes", lambda s: format_size(getattr(s.planned, "in_memory_bytes", None))),
)


def show_table(report: MergeTableReport) -> list[RenderableType]:
    """Render a line for each shard; of many, only those with work, errors first, and a summary."""
    shards = report.shards
    columns = PLANNED if any(shard.planned for shard in shards) else MERGED
    if len(shards) <= _SHARDS_SHOWN_MAX:
        return [build_table(shards, columns)] if shards else []
    busy = [shard for shard in shards if shard.outcome != NOTHING_TO_DO]
    shown = sorted(busy, key=lambda shard: shard.outcome == DONE)[:_SHARDS_SHOWN_MAX]
    text = (
        f"  {len(shards):,} shards, {len(busy):,} with work, {len(shown)} shown; --json lists all"
    )
    return [*([build_table(shown, columns)] if shown else []), Text(text)]
