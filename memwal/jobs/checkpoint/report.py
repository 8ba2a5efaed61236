"""What `memwal checkpoint` reports."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import CHECKPOINTS, build_table
from memwal.report import CheckpointReport, TableReport


class CheckpointTableReport(TableReport):
    """One table of `checkpoint`: those that were made, found or dropped, or would be."""

    checkpoints: tuple[CheckpointReport, ...] = ()


def show_table(report: CheckpointTableReport) -> list[RenderableType]:
    """Render a line for each checkpoint."""
    if not report.checkpoints:
        return [Text("  no checkpoints", style="dim")]
    return [build_table(report.checkpoints, CHECKPOINTS)]
