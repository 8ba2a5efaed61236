"""`memwal checkpoint`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.console import RunProgress
from memwal.cli.flags import JobFlags, ReadFlags, command
from memwal.cli.options import OneTable
from memwal.cli.parse import parse_duration
from memwal.cli.shared import App
from memwal.report import JobReport

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Letters, digits, '-', '_', and dots between them.")
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="7d", help="Keep it for this long. Default: until dropped."),
]
Holder = Annotated[
    str | None, typer.Option("--holder", metavar="TEXT", help="Who needs it. Default: user@host.")
]

checkpoint_app = App(help="Keep moments of a table, to be read later.", no_args_is_help=True)


@checkpoint_app.command()
@command(JobFlags, job="checkpoint")
def create(
    table: OneTable,
    name: Name,
    expires: Expires = None,
    holder: Holder = None,
    *,
    flags: JobFlags,
    progress: RunProgress,
) -> JobReport:
    """Keep this moment of a table, pending rows included.

    It is read by `memwal read --checkpoint NAME`.
    """
    from memwal.jobs.checkpoint.job import CreateOptions, make_request, run_create

    seconds = None if expires is None else parse_duration(expires, "--expires")
    request = make_request(name, expires_seconds=seconds, holder=holder)
    options = flags.run_options(CreateOptions, [flags.table(table)], request=request)
    return run_create(options, progress)


@checkpoint_app.command("list")
@command(job="checkpoint")
def list_(table: OneTable, *, flags: ReadFlags) -> JobReport:
    """Show a table's checkpoints, and what each keeps."""
    from memwal.jobs.checkpoint.job import run_list

    return run_list(flags.table(table))


@checkpoint_app.command()
@command(JobFlags, job="checkpoint")
def drop(table: OneTable, name: Name, *, flags: JobFlags) -> JobReport:
    """Drop a checkpoint: what it alone keeps is garbage from then on."""
    from memwal.jobs.checkpoint.job import run_drop

    return run_drop(flags.table(table), name, dry_run=flags.dry_run, run_id=flags.run_id)
