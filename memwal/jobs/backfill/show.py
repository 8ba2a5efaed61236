"""How `memwal backfill` looks to people: one table for all tables."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import STYLE, count_text, grid_of, size_text
from memwal.jobs.backfill.report import FINISHED, BackfillReport, BackfillTableReport


def backfill_parts(report: BackfillReport) -> list[RenderableType]:
    """A row a table, in the order in which they are begun, then what went wrong with any."""
    tables = [table for table in report.tables if isinstance(table, BackfillTableReport)]
    names = list(dict.fromkeys(job["job"] for table in tables for job in table.jobs))
    grid = grid_of("table", "outcome", "generations", "bytes", "unindexed rows", *names, "seconds")
    for table in tables:
        outcomes = {job["job"]: job["outcome"] for job in table.jobs}
        backlog = table.backlog
        grid.add_row(
            table.table,
            _word(table.outcome if table.state == FINISHED else table.state),
            "?" if backlog is None else count_text(backlog.generations),
            "?" if backlog is None else size_text(backlog.bytes),
            "?" if backlog is None else count_text(backlog.unindexed_rows),
            *(_word(outcomes[name]) if name in outcomes else Text("-") for name in names),
            f"{table.seconds:.2f}",
        )
    errors: list[RenderableType] = [
        Text(f"{table.table}: {table.error}", style="red") for table in tables if table.error
    ]
    warnings = [
        Text(f"{table.table}: {job['job']}: warning: {text}", style="yellow")
        for table in tables
        for job in table.jobs
        for text in job.get("warnings", ())
    ]
    return [grid, *errors, *warnings]


def _word(outcome: str) -> Text:
    return Text(outcome, style=STYLE.get(outcome, "red"))
