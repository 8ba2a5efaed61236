"""`memwal erase`."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from memwal.cli.flags import DefaultGroup, Job, JobFlags, ReadFlags, command
from memwal.cli.jobs import check_terminal
from memwal.cli.options import OneTable, Tables
from memwal.cli.shared import App
from memwal.jobs.erase.request import EraseRequest, ResumeRequest

erase_app = App(
    cls=DefaultGroup,
    help="Erase rows for good, and prove it.\n\nmemwal erase TABLE --key K=V lists what holds the "
    "row; with --execute it is erased.",
    no_args_is_help=True,
)


@erase_app.command("run")
@command(JobFlags, job="erase")
def erase(table: OneTable, *, request: EraseRequest, flags: JobFlags) -> Job:
    """Erase the rows of keys from all that holds them.

    That is base, indexes, versions, generations and WAL. Without --execute, list what holds them.
    With it, shards are claimed to delete the keys there (asking first): writers of these shards
    are fenced, and have to be opened again. What must wait for the retention is finished by a
    later run of the same command, or by `erase resume`.
    """
    from memwal.jobs.erase.job import EraseOptions, run_erase

    return flags.job(run_erase, EraseOptions, table, request=request, confirm=_confirm)


@erase_app.command()
@command(JobFlags, job="erase")
def resume(tables: Tables, *, request: ResumeRequest, flags: JobFlags) -> Job:
    """Go on with all erasures of tables that are open.

    Where none is open there is nothing to do (exit code 0). What must still wait stays open.
    """
    from memwal.jobs.erase.job import EraseOptions, run_resume

    return flags.job(run_resume, EraseOptions, tables, request=request, confirm=_confirm)


def _confirm(name: str, shards: Sequence[str]) -> bool:
    check_terminal()
    typer.echo(f"{name}: to be claimed, which fences their writers:", err=True)
    for shard in shards:
        typer.echo(f"  shard {shard}", err=True)
    return typer.confirm("Erase?", default=False, err=True)


@erase_app.command("list")
@command(job="erase")
def list_(tables: Tables, *, flags: ReadFlags) -> Job:
    """Show the erasures of tables, the open ones too."""
    from memwal.jobs.erase.job import run_list
    from memwal.run.options import RunOptions

    return flags.job(run_list, RunOptions, tables)
