"""`memwal lease break`: take a dead run's lease away, leaving a record of it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from memwal import grid
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, NotATable
from memwal.format import layout
from memwal.report import (
    DONE,
    NOTHING_TO_DO,
    AuditItem,
    JobReport,
    LeaseReport,
    TableReport,
    failed_report,
)
from memwal.run.lease import describe_lease
from memwal.run.options import choose_run_id
from memwal.run.reports import job_report
from memwal.run.stores import open_stores
from memwal.run.trail import finish, make_trail


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
    return [grid.describe_lease(report.lease)]


def run_lease_break(table: ResolvedTable, reason: str, run_id: str | None = None) -> JobReport:
    """Supersede the claim that holds the lease, with a claim file that records the reason.

    If nobody holds the lease, nothing is done or recorded. A holder that is still alive stops
    before its next commit, when it finds the newer token.
    """
    report: TableReport
    run_id = run_id or choose_run_id()
    try:
        stores = open_stores(table.find_uri(), table.storage_options, run_id=run_id)
        claim, broken = stores.leases.current(), None
        try:
            version = stores.views.table_version()
        except NotATable:
            if claim is None:
                raise
            version = None  # a place of backups
        if claim is not None and stores.leases.is_live(claim):
            stores.prove_store()
            broken = stores.leases.break_(reason)
        made = LeaseTableReport(
            table=table.name,
            outcome=NOTHING_TO_DO if broken is None else DONE,
            version_before=version,
            version_after=version,
            lease=describe_lease(broken or claim, stores.clock.now_nanos()),
        )
        trail = make_trail(table, stores, "lease break", run_id)
        report = finish(trail, made)
    except MemWalError as error:
        report = failed_report(table.name, error)
    return job_report("lease break", [report])
