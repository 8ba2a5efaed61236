"""What `memwal lease break` reports."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from memwal.format import layout
from memwal.grid import describe_lease
from memwal.report import DONE, NOTHING_TO_DO, AuditItem, LeaseReport, TableReport


class LeaseTableReport(TableReport):
    """One table of `lease break`."""

    lease: LeaseReport | None = None
    warnings: tuple[str, ...] = ()

    def audited(self) -> Iterable[AuditItem]:
        """The lease that was broken, and why."""
        if self.outcome == DONE and self.lease is not None:
            yield AuditItem(
                action="break",
                kind="lease",
                path=layout.lease_claim_path(self.lease.token),
                reason=self.lease.reason,
                done=True,
            )


def show_table(report: LeaseTableReport) -> list[RenderableType]:
    """Render the present state of the lease."""
    if report.outcome == NOTHING_TO_DO or report.lease is None:
        return [Text("  nobody holds the lease", style="dim")]
    return [describe_lease(report.lease)]
