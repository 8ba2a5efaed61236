"""`memwal runs` and `memwal wait`: what ran on a table, and waiting for it."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.console import RunProgress
from memwal.options import ReadFlags, Tables, with_flags
from memwal.report import JobReport


@with_flags(ReadFlags)
def runs(
    tables: Tables,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=4000, help="The newest N.")
    ] = 50,
    *,
    flags: ReadFlags,
) -> None:
    """Show what ran on a table, newest first."""

    def work(progress: RunProgress) -> JobReport:
        from jobs._runs import run_runs

        return run_runs(flags.tables(tables), limit)

    flags.output("runs").run(work)
