"""What people see of `memwal rescue`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import (
    Column,
    build_table,
    format_generations,
    numbers,
    style_outcome,
    words,
)
from memwal.jobs.rescue.report import RescueShardReport, RescueTableReport
from memwal.text import format_age

SHARDS: tuple[Column[RescueShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: style_outcome(shard.outcome)),
    numbers("WAL rows", lambda shard: shard.rows),
    numbers("silent for", lambda shard: format_age(shard.idle_seconds)),
    numbers("epoch", lambda shard: _format_epoch(shard)),
    numbers("generations", lambda shard: format_generations(shard.generations)),
)


def show_table(report: RescueTableReport) -> list[RenderableType]:
    """Render a line for each shard, where torn bytes are kept, and the generations to merge."""
    if not report.shards:
        return [Text("  no shards yet", style="dim")]
    parts: list[RenderableType] = [build_table(report.shards, SHARDS)]
    parts += [
        Text(f"  shard {shard.shard_id}: the bytes of what was torn are in {shard.torn_kept}")
        for shard in report.shards
        if shard.torn_kept
    ]
    if report.generations:
        parts.append(Text(f"  generations to be merged: {report.generations} (memwal merge)"))
    return parts


def _format_epoch(shard: RescueShardReport) -> str:
    before, after = shard.writer_epoch_before, shard.writer_epoch_after
    return "-" if before is None else f"{before} -> {after}"
