"""`memwal runs`: what ran on tables. Opens no table, and imports neither Lance nor Spark."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.runs.report import RunsTableReport
from memwal.ports import Objects
from memwal.report import DONE, JobReport, TableReport, failed_report
from memwal.run.reports import job_report
from memwal.store.objects.opening import open_objects
from memwal.store.records.runs import StoredRunRecords
from memwal.store.tables.manifests import check_table_folder


def run_runs(tables: Sequence[ResolvedTable], limit: int) -> JobReport:
    """Report the newest `limit` run records of each table."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    reports: list[TableReport] = []
    opened: list[Objects] = []
    for table in tables:
        try:
            opened.append(open_objects(table.find_uri(), table.storage_options, clock))
            reports.append(_report(table, opened[-1], limit))
        except MemWalError as error:
            reports.append(failed_report(table.name, error))
    return job_report(
        "runs",
        reports,
        seconds=clock.monotonic_seconds() - started,
        requests=[objects.counts.as_dict() for objects in opened],
        otherwise=DONE,
    )


def _report(table: ResolvedTable, objects: Objects, limit: int) -> TableReport:
    found = StoredRunRecords(objects).newest(limit)
    if not (found.records or found.unreadable):
        # Only now is it checked whether there is a table at all: one without runs is fine.
        check_table_folder(objects)
    return RunsTableReport(
        table=table.name,
        outcome=DONE,
        runs=found.records,
        unreadable=found.unreadable,
        unreadable_files=found.unreadable_files,
    )
