"""`memwal lease break`: take a dead run's lease away, leaving a record of it."""

from __future__ import annotations

from jobs._wiring import open_stores
from memwal.apply.status import lease_report
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.report import DONE, JobReport, LeaseTableReport, TableReport


def run_lease_break(table: ResolvedTable, reason: str) -> JobReport:
    """Supersede the table's newest claim. The record is the claim file with the reason in it.

    A holder that is alive after all stops before its next commit, where it finds the newer token.
    """
    report: TableReport
    try:
        stores = open_stores(table.uri, table.storage_options)
        version = stores.views.table_version()
        stores.prove_store()
        claim = stores.leases.break_(reason)
        report = LeaseTableReport(
            table=table.name,
            outcome=DONE,
            version_before=version,
            version_after=version,
            lease=lease_report(claim, stores.clock.now_nanos()),
        )
    except MemWalError as error:
        report = TableReport(
            table=table.name, outcome=error.outcome, error=str(error), exit_code=error.exit_code
        )
    return JobReport(
        job="lease break",
        outcome=report.outcome,
        exit_code=report.exit_code,
        tables=(report,),
    )
