"""How `memwal rescue` looks to people."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import STYLE, age_text, count_text, generations_text, grid_of
from memwal.jobs.rescue.report import RescueTableReport


def rescue_parts(report: RescueTableReport) -> list[RenderableType]:
    """The shards of one table; what was rescued says where to find it now."""
    if not report.shards:
        return [Text("  no shards yet", style="dim")]
    grid = grid_of("shard", "outcome", "WAL rows", "silent for", "epoch", "generations")
    for shard in report.shards:
        before, after = shard.writer_epoch_before, shard.writer_epoch_after
        grid.add_row(
            shard.shard_id,
            Text(shard.outcome, style=STYLE.get(shard.outcome, "red")),
            count_text(shard.rows),
            age_text(shard.idle_seconds),
            "-" if before is None else f"{before} -> {after}",
            generations_text(shard.generations),
        )
    parts: list[RenderableType] = [grid]
    if report.generations:
        parts.append(Text(f"  generations to be merged: {report.generations} (memwal merge)"))
    return parts
