"""`memwal status` over tables."""

from __future__ import annotations

from jobs._launch import (
    OpenTable,
    RunOptions,
    check_lance_version,
    error_of,
    failed_report,
    job_report,
    open_tables,
)
from memwal.apply.status import lease_report, table_status
from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.report import DONE, JobReport, TableReport


def run_status(options: RunOptions) -> JobReport:
    """The status of each table."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    with open_tables(options, lambda stores: stores.views.table(ages=True)) as tables:
        reports = [_status(table) for table in tables]
    return job_report(
        "status",
        reports,
        clock.monotonic_seconds() - started,
        stores=[t.stores for t in tables],
        otherwise=DONE,
    )


def _status(table: OpenTable) -> TableReport:
    if table.error is not None or table.view is None or table.stores is None:
        return failed_report(table.resolved.name, error_of(table))
    stores, view = table.stores, table.view
    try:
        return table_status(
            table.resolved.name,
            view,
            wal_entries=lambda shard: len(stores.wal.listed(shard)),
            unindexed_rows=lambda name: stores.tables.unindexed_rows(view.version, name),
            lease=lease_report(stores.leases.current(), stores.clock.now_nanos()),
        )
    except MemWalError as error:
        return failed_report(table.resolved.name, error)
