"""What `memwal lease break` reports."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import describe_lease
from memwal.report import NOTHING_TO_DO, LeaseReport, TableReport


class LeaseTableReport(TableReport):
    """One table of `lease break`."""

    lease: LeaseReport | None = None


def show_table(report: LeaseTableReport) -> list[RenderableType]:
    """Render the present state of the lease."""
    if report.outcome == NOTHING_TO_DO or report.lease is None:
        return [Text("  nobody holds the lease", style="dim")]
    return [describe_lease(report.lease)]
