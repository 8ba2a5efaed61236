"""What people see of `memwal checkpoint`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import CHECKPOINTS, build_table
from memwal.jobs.checkpoint.report import CheckpointTableReport


def show_table(report: CheckpointTableReport) -> list[RenderableType]:
    """Render a line for each checkpoint."""
    if not report.checkpoints:
        return [Text("  no checkpoints", style="dim")]
    return [build_table(report.checkpoints, CHECKPOINTS)]
