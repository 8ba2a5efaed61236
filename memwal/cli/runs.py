"""`memwal runs`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Tables
from memwal.report import JobReport

RunsMax = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=4000, help="The newest N.")
]


@command()
def runs(tables: Tables, limit: RunsMax = 50, *, flags: ReadFlags) -> JobReport:
    """Show what ran on a table, newest first."""
    from memwal.jobs.runs.job import run_runs

    return run_runs(flags.tables(tables), limit)
