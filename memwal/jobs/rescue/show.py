"""What people see of `memwal rescue`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, age_text, generations_text, numbers, outcome_text, table_of, words
from memwal.jobs.rescue.report import RescueShardReport, RescueTableReport

SHARDS: tuple[Column[RescueShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: outcome_text(shard.outcome)),
    numbers("WAL rows", lambda shard: shard.rows),
    numbers("silent for", lambda shard: age_text(shard.idle_seconds)),
    numbers("epoch", lambda shard: _epoch_text(shard)),
    numbers("generations", lambda shard: generations_text(shard.generations)),
)


def show_table(report: RescueTableReport) -> list[RenderableType]:
    """A line for each shard, and where to find what was rescued."""
    if not report.shards:
        return [Text("  no shards yet", style="dim")]
    parts: list[RenderableType] = [table_of(report.shards, SHARDS)]
    if report.generations:
        parts.append(Text(f"  generations to be merged: {report.generations} (memwal merge)"))
    return parts


def _epoch_text(shard: RescueShardReport) -> str:
    before, after = shard.writer_epoch_before, shard.writer_epoch_after
    return "-" if before is None else f"{before} -> {after}"
