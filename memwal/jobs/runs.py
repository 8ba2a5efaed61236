"""`memwal runs`: what ran on tables. Opens no table, and imports neither Lance nor Spark."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.grid import (
    Column,
    build_table,
    format_count,
    format_size,
    numbers,
    prose,
    style_outcome,
    words,
)
from memwal.ports import Objects
from memwal.report import DONE, JobReport, RunRecord, TableReport, failed_report
from memwal.run.reports import job_report
from memwal.store.objects.opening import open_objects
from memwal.store.records.runs import StoredRunRecords
from memwal.store.tables.manifests import check_table_folder
from memwal.text import name_some

_ERROR_CHARACTERS_MAX = 160
_FILES_SHOWN_MAX = 3
AIRFLOW: Column[RunRecord] = prose(
    "started by Airflow", lambda run: run.airflow.describe() if run.airflow else "-"
)


class RunsTableReport(TableReport):
    """One table of `runs`, newest first.

    `unreadable` counts documents that are no record, or a newer memwal's; `unreadable_files` has
    their paths.
    """

    runs: tuple[RunRecord, ...] = ()
    unreadable: int = 0
    unreadable_files: tuple[str, ...] = ()


RUNS: tuple[Column[RunRecord], ...] = (
    words("finished", lambda run: run.finished_at[:19].replace("T", " ")),
    words("job", lambda run: run.job),
    words("outcome", lambda run: style_outcome(run.outcome)),
    numbers("seconds", lambda run: f"{run.seconds:.2f}"),
    words("engine", lambda run: run.engine or "-"),
    numbers("backlog", lambda run: _format_backlog(run)),
    prose("what", lambda run: _format_what(run)),
)


def show_table(report: RunsTableReport) -> list[RenderableType]:
    """Render a line for each run."""
    columns = (*RUNS, AIRFLOW) if any(run.airflow for run in report.runs) else RUNS
    none = Text("  no runs recorded", style="dim")
    parts: list[RenderableType] = [build_table(report.runs, columns) if report.runs else none]
    if report.unreadable:
        named = name_some(report.unreadable_files, _FILES_SHOWN_MAX, "files")
        text = f"  {report.unreadable} run records can't be read: {', '.join(named)}"
        parts.append(Text(text, style="yellow"))
    return parts


def _format_backlog(run: RunRecord) -> str:
    before, after = run.backlog.generations_before, run.backlog.generations_after
    if before is None:
        return "?"
    return str(before) if after is None else f"{before} -> {after}"


def _format_what(run: RunRecord) -> str:
    """The run's error, or else the numbers in its summary that are not 0."""
    if text := run.error:
        return text if len(text) <= _ERROR_CHARACTERS_MAX else text[:_ERROR_CHARACTERS_MAX] + "…"
    return ", ".join(
        f"{name.replace('_', ' ')} {format_size(value) if 'bytes' in name else format_count(value)}"
        for name, value in run.summary.items()
        if value
    )


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
