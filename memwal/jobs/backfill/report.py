"""What `memwal backfill` reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from rich.console import RenderableType
from rich.text import Text

from memwal.config import ResolvedTable
from memwal.errors import StandDown
from memwal.grid import Column, build_table, format_size, numbers, style_outcome, words
from memwal.jobs.backfill.plan import Backlog
from memwal.jobs.merge.plan import MergeLimits
from memwal.model import ShardId
from memwal.report import DONE, NOTHING_TO_DO, JobOnTable, JobReport, Section, TableReport
from memwal.run.reports import sum_up_jobs

State = Literal["waiting", "running", "finished"]
WAITING: Final = "waiting"
RUNNING: Final = "running"
FINISHED: Final = "finished"


class TableBacklogReport(Section):
    """What a table had before it when the run began; bytes are in memory, None: not known.

    Rows count once for each index that lacks them; rows that are yet to be merged are not in it.
    """

    generations: int
    bytes: int | None
    unindexed_rows: int
    indexes_behind: int


class BackfillTableReport(TableReport):
    """One table of a backfill; `jobs` holds the jobs' own reports of it, in the order they ran.

    `state` tells what was finished when the document was written. A killed run leaves one in which
    tables are waiting or running; their outcome is `held`, and a run of the same command goes on.
    """

    jobs: tuple[JobOnTable, ...] = ()
    state: State = FINISHED
    backlog: TableBacklogReport | None = None
    seconds: float = 0.0


class BackfillReport(JobReport):
    """The document of a backfill; its tables stand in the order in which they were begun."""

    finished: bool = True


@dataclass(kw_only=True)
class TableBackfill:
    """One table on its way. `shards` are those that it merges, of the ones that were asked for."""

    resolved: ResolvedTable
    backlog: Backlog | None = None
    limits: MergeLimits = MergeLimits()
    shards: tuple[ShardId, ...] = ()
    state: State = WAITING
    jobs: list[JobOnTable] = field(default_factory=list)
    seconds: float = 0.0

    def report(self, *, dry_run: bool) -> BackfillTableReport:
        """How the table stands."""
        # The thread that works on it may change it meanwhile: the state is looked at first.
        state, backlog, jobs = self.state, self.backlog, list(self.jobs)
        fields = sum_up_jobs(jobs)
        if dry_run and backlog is not None:
            fields["outcome"] = NOTHING_TO_DO if backlog.is_empty else DONE
        elif state != FINISHED:
            left = StandDown("running when this was written; run again to go on")
            fields |= {"outcome": left.outcome, "exit_code": left.exit_code}
            fields["error"] = str(left) if state == RUNNING else None
        return BackfillTableReport(
            table=self.resolved.name,
            state=state,
            backlog=None if backlog is None else _report_backlog(backlog),
            seconds=round(self.seconds, 3),
            **fields,
        )


def _report_backlog(backlog: Backlog) -> TableBacklogReport:
    return TableBacklogReport(
        generations=backlog.generations,
        bytes=backlog.in_memory_bytes,
        unindexed_rows=backlog.unindexed_rows,
        indexes_behind=backlog.indexes_behind,
    )


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
