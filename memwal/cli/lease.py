"""`memwal lease`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.flags import AuditFlags, command
from memwal.cli.options import OneTable
from memwal.cli.shared import App
from memwal.errors import Usage
from memwal.report import JobReport

Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Recorded with the break.")]

lease_app = App(help="Break the lease of a run that is gone.", no_args_is_help=True)


@lease_app.command("break")
@command(job="lease break")
def lease_break(table: OneTable, reason: Reason, *, flags: AuditFlags) -> JobReport:
    """Take a dead run's lease away.

    If the run is alive after all, it stops before its next commit.
    """
    from memwal.jobs.lease import run_lease_break

    if not reason.strip():
        raise Usage("--reason must say something: it is the record of why the lease was broken")
    return run_lease_break(flags.table(table), reason, flags.run_id)
