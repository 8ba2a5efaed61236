"""What people see of a backfill: one table for all tables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_size, numbers, style_outcome, words
from memwal.jobs.backfill.report import FINISHED, WAITING, BackfillReport, BackfillTableReport

TABLES: tuple[Column[BackfillTableReport], ...] = (
    words("table", lambda table: table.table),
    words("outcome", lambda table: _format_standing(table)),
    numbers("generations", lambda table: _read_backlog(table, "generations")),
    numbers("bytes", lambda table: format_size(_read_backlog(table, "bytes"))),
    numbers("unindexed rows", lambda table: _read_backlog(table, "unindexed_rows")),
)
SECONDS: Column[BackfillTableReport] = numbers("seconds", lambda table: _format_seconds(table))


def show_job(report: BackfillReport) -> list[RenderableType]:
    """Render a line for each table, in the order they are begun, then errors and warnings."""
    tables = [table for table in report.tables if isinstance(table, BackfillTableReport)]
    names = dict.fromkeys(job.job for table in tables for job in table.jobs)
    columns = (*TABLES, *map(_make_column, names), SECONDS)
    errors = [Text(f"{table.table}: {table.error}", style="red") for table in tables if table.error]
    warnings = [
        Text(f"{table.table}: {job.job}: warning: {text}", style="yellow")
        for table in tables
        for job in table.jobs
        for text in getattr(job.report, "warnings", ())
    ]
    return [build_table(tables, columns), *errors, *warnings]


def _make_column(name: str) -> Column[BackfillTableReport]:
    def value(table: BackfillTableReport) -> Text:
        outcomes = (job.report.outcome for job in table.jobs if job.job == name)
        return next(map(style_outcome, outcomes), Text("-"))

    return numbers(name, value)


def _format_standing(table: BackfillTableReport) -> Text:
    return style_outcome(table.outcome if table.state == FINISHED else table.state)


def _format_seconds(table: BackfillTableReport) -> str:
    return "-" if table.state == WAITING else f"{table.seconds:.2f}"


def _read_backlog(table: BackfillTableReport, what: str) -> int | None:
    return getattr(table.backlog, what, None)
