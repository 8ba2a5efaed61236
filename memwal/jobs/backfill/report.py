"""What `memwal backfill` reports."""

from __future__ import annotations

from typing import Final, Literal

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, numbers, style_outcome, words
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.report import JobReport

Stage = Literal["waiting", "running", "finished"]
WAITING: Final = "waiting"
RUNNING: Final = "running"
FINISHED: Final = "finished"


class BackfillTableReport(MaintainTableReport):
    """One table of a backfill; `jobs` holds the jobs' own reports of it, in the order they ran.

    `stage` tells what was finished when the document was written. A killed run leaves one in which
    tables are waiting or running; their outcome is `held`, and a run of the same command goes on.
    """

    stage: Stage = FINISHED
    seconds: float = 0.0


class BackfillReport(JobReport):
    """The document of a backfill; its tables stand in the order in which they were begun."""

    finished: bool = True


TABLES: tuple[Column[BackfillTableReport], ...] = (
    words("table", lambda table: table.table),
    words("outcome", lambda t: style_outcome(t.outcome if t.stage == FINISHED else t.stage)),
)
SECONDS: Column[BackfillTableReport] = numbers(
    "seconds", lambda table: "-" if table.stage == WAITING else f"{table.seconds:.2f}"
)


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
