"""`memwal runs`: what ran on tables. Opens no table, and imports neither Lance nor Spark."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.ports import Objects
from memwal.report import DONE, JobReport, RunsTableReport, TableReport, sum_up_tables
from memwal.store.objects import open_objects
from memwal.store.run_records import StoredRunRecords
from memwal.store.table_manifests import check_table_folder


def run_runs(tables: Sequence[ResolvedTable], limit: int) -> JobReport:
    """The newest `limit` run records of each table."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    requests: dict[str, int] = {}
    reports: list[TableReport] = []
    for table in tables:
        try:
            objects = open_objects(table.uri, table.storage_options, clock)
        except MemWalError as error:
            reports.append(_failed(table, error))
            continue
        reports.append(_runs(table, objects, limit))
        for key, value in objects.counts.as_dict().items():
            requests[key] = requests.get(key, 0) + value
    outcome, code = sum_up_tables(reports, otherwise=DONE)
    return JobReport(
        job="runs",
        outcome=outcome,
        exit_code=code,
        seconds=round(clock.monotonic_seconds() - started, 3),
        tables=tuple(reports),
        requests=requests,
    )


def _runs(table: ResolvedTable, objects: Objects, limit: int) -> TableReport:
    try:
        found = StoredRunRecords(objects).newest(limit)
        if not (found.records or found.unreadable):
            # Only then: no table, or one on which nothing ran yet?
            check_table_folder(objects)
    except MemWalError as error:
        return _failed(table, error)
    return RunsTableReport(
        table=table.name, outcome=DONE, runs=found.records, unreadable=found.unreadable
    )


def _failed(table: ResolvedTable, error: MemWalError) -> TableReport:
    return TableReport(
        table=table.name, outcome=error.outcome, error=str(error), exit_code=error.exit_code
    )
