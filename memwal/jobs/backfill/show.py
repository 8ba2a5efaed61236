"""What people see of a backfill: one table for all tables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, numbers, outcome_text, size_text, table_of, words
from memwal.jobs.backfill.report import FINISHED, BackfillReport, BackfillTableReport

TABLES: tuple[Column[BackfillTableReport], ...] = (
    words("table", lambda table: table.table),
    words("outcome", lambda table: _standing_text(table)),
    numbers("generations", lambda table: _backlog_of(table, "generations")),
    numbers("bytes", lambda table: size_text(_backlog_of(table, "bytes"))),
    numbers("unindexed rows", lambda table: _backlog_of(table, "unindexed_rows")),
)
SECONDS: Column[BackfillTableReport] = numbers("seconds", lambda table: f"{table.seconds:.2f}")


def show_job(report: BackfillReport) -> list[RenderableType]:
    """A line for each table, in the order in which they are begun, then what went wrong."""
    tables = [table for table in report.tables if isinstance(table, BackfillTableReport)]
    names = dict.fromkeys(job.job for table in tables for job in table.jobs)
    columns = (*TABLES, *map(_outcome_column, names), SECONDS)
    errors = [Text(f"{table.table}: {table.error}", style="red") for table in tables if table.error]
    warnings = [
        Text(f"{table.table}: {job.job}: warning: {text}", style="yellow")
        for table in tables
        for job in table.jobs
        for text in getattr(job.report, "warnings", ())
    ]
    return [table_of(tables, columns), *errors, *warnings]


def _outcome_column(name: str) -> Column[BackfillTableReport]:
    def value(table: BackfillTableReport) -> Text:
        outcomes = (job.report.outcome for job in table.jobs if job.job == name)
        return next(map(outcome_text, outcomes), Text("-"))

    return numbers(name, value)


def _standing_text(table: BackfillTableReport) -> Text:
    return outcome_text(table.outcome if table.state == FINISHED else table.state)


def _backlog_of(table: BackfillTableReport, what: str) -> int | None:
    return getattr(table.backlog, what, None)
