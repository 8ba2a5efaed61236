"""What people see of `memwal lease break`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import describe_lease
from memwal.jobs.lease.report import LeaseTableReport
from memwal.report import NOTHING_TO_DO


def show_table(report: LeaseTableReport) -> list[RenderableType]:
    """Render the present state of the lease."""
    if report.outcome == NOTHING_TO_DO or report.lease is None:
        return [Text("  nobody holds the lease", style="dim")]
    return [describe_lease(report.lease)]
