"""`memwal backup`."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.console import RunProgress
from memwal.cli.flags import DefaultGroup, Job, RescueFlags, command
from memwal.cli.options import OneTable
from memwal.cli.shared import App
from memwal.config import ResolvedTable
from memwal.errors import Usage
from memwal.jobs.backup.request import BackupRequest, PlaceRequest, parse_keep
from memwal.report import JobReport

Dest = Annotated[
    str,
    typer.Argument(
        metavar="DEST", help="A place of backups, or a table whose place is configured."
    ),
]
NewDest = Annotated[
    str | None,
    typer.Argument(
        metavar="DEST",
        help="A folder of its own for the table's backups: path or address. Default: configured.",
    ),
]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Default: all that are there.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Backups to drop.")]
Keep = Annotated[
    str | None,
    typer.Option(
        "--keep", metavar="N|7d", help="Drop all beyond the newest N, or older; never the newest."
    ),
]


backup_app = App(
    cls=DefaultGroup,
    help="Copy one moment of a table to another place.\n\nmemwal backup TABLE DEST is short for "
    "memwal backup create TABLE DEST.",
    no_args_is_help=True,
)


@backup_app.command()
@command(RescueFlags, job="backup")
def create(
    table: OneTable, dest: NewDest = None, *, request: BackupRequest, flags: RescueFlags
) -> Job:
    """Copy this moment of a table, pending rows and WAL included.

    Writers and jobs go on beside it. What DEST has is not copied again. Killed, it leaves no
    backup; run again, it goes on.
    """
    from memwal.jobs.backup.job import BackupOptions, run_backup

    def work(progress: RunProgress) -> JobReport:
        options = flags.run_options(
            BackupOptions,
            [flags.table(table)],
            dest=None if dest is None else flags.table(dest),
            request=request,
        )
        return run_backup(options, progress)

    return work


@backup_app.command("list")
@command(RescueFlags, job="backup")
def list_(dest: Dest, *, request: PlaceRequest, flags: RescueFlags) -> Job:
    """Show the backups of a place, oldest first."""
    from memwal.jobs.backup.job import run_list

    return lambda progress: run_list(_find(dest, flags, request))


@backup_app.command()
@command(RescueFlags, job="backup")
def verify(dest: Dest, name: Name = None, *, request: PlaceRequest, flags: RescueFlags) -> Job:
    """Read all that backups need, and compare it with their lists.

    Exit code 8: something is damaged or gone.
    """
    from memwal.jobs.backup.job import run_verify

    return lambda progress: run_verify(_find(dest, flags, request), name, progress=progress)


@backup_app.command()
@command(RescueFlags, job="backup")
def drop(
    dest: Dest,
    names: Names = None,
    keep: Keep = None,
    *,
    request: PlaceRequest,
    flags: RescueFlags,
) -> Job:
    """Drop backups, and the objects that no other one needs."""
    from memwal.jobs.backup.job import run_drop

    if keep is not None:
        parse_keep(keep)
    elif not names:
        raise Usage("name the backups to drop, or say with --keep which stay")
    return lambda progress: run_drop(
        _find(dest, flags, request),
        names or (),
        keep=keep,
        dry_run=flags.dry_run,
        run_id=flags.run_id,
        progress=progress,
    )


def _find(dest: str, flags: RescueFlags, request: PlaceRequest) -> ResolvedTable:
    found = flags.table(dest)
    if found.backup is not None:
        found = found.find_backup_place()
    options = {**found.storage_options, **dict(request.dest_storage_options)}
    return found.model_copy(update={"storage_options": options})
