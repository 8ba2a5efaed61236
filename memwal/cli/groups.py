"""Commands with commands below them: `memwal backup`, `checkpoint`, `erase`, `inspect`, `lease`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from memwal.cli.commands import App
from memwal.cli.completion import offer_checkpoints
from memwal.cli.console import RunProgress
from memwal.cli.flags import (
    AuditFlags,
    DefaultGroup,
    Job,
    JobFlags,
    OneTable,
    ReadFlags,
    RescueFlags,
    Tables,
    Version,
    command,
)
from memwal.cli.jobs import ask_to_claim, check_terminal
from memwal.cli.output import Document
from memwal.cli.requests import parse_duration
from memwal.config import ResolvedTable
from memwal.errors import Usage
from memwal.format.layout import parse_shard
from memwal.jobs.backup.request import BackupRequest, PlaceRequest, parse_keep
from memwal.jobs.erase.request import EraseRequest, ResumeRequest
from memwal.report import JobReport

# ---- backup

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
BackupName = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Default: all that are there.")
]
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


@backup_app.command("create")
@command(RescueFlags, job="backup")
def backup_create(
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
def backup_list(dest: Dest, *, request: PlaceRequest, flags: RescueFlags) -> Job:
    """Show the backups of a place, oldest first."""
    from memwal.jobs.backup.job import run_list

    return lambda progress: run_list(_find_place(dest, flags, request))


@backup_app.command("verify")
@command(RescueFlags, job="backup")
def backup_verify(
    dest: Dest, name: BackupName = None, *, request: PlaceRequest, flags: RescueFlags
) -> Job:
    """Read all that backups need, and compare it with their lists.

    Exit code 8: something is damaged or gone.
    """
    from memwal.jobs.backup.job import run_verify

    return lambda progress: run_verify(_find_place(dest, flags, request), name, progress=progress)


@backup_app.command("drop")
@command(RescueFlags, job="backup")
def backup_drop(
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
        _find_place(dest, flags, request),
        names or (),
        keep=keep,
        dry_run=flags.dry_run,
        run_id=flags.run_id,
        progress=progress,
    )


def _find_place(dest: str, flags: RescueFlags, request: PlaceRequest) -> ResolvedTable:
    found = flags.table(dest)
    if found.backup is not None:
        found = found.find_backup_place()
    options = {**found.storage_options, **dict(request.dest_storage_options)}
    return found.model_copy(update={"storage_options": options})


# ---- checkpoint

CheckpointName = Annotated[
    str, typer.Argument(metavar="NAME", help="Letters, digits, '-', '_', and dots between them.")
]
KnownCheckpoint = Annotated[
    str, typer.Argument(metavar="NAME", autocompletion=offer_checkpoints, help="As list shows it.")
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="7d", help="Keep it for this long. Default: until dropped."),
]
Holder = Annotated[
    str | None, typer.Option("--holder", metavar="TEXT", help="Who needs it. Default: user@host.")
]

checkpoint_app = App(help="Keep moments of a table, to be read later.", no_args_is_help=True)


@checkpoint_app.command("create")
@command(JobFlags, job="checkpoint")
def checkpoint_create(
    table: OneTable,
    name: CheckpointName,
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
def checkpoint_list(table: OneTable, *, flags: ReadFlags) -> JobReport:
    """Show a table's checkpoints, and what each keeps."""
    from memwal.jobs.checkpoint.job import run_list

    return run_list(flags.table(table))


@checkpoint_app.command("drop")
@command(JobFlags, job="checkpoint")
def checkpoint_drop(table: OneTable, name: KnownCheckpoint, *, flags: JobFlags) -> JobReport:
    """Drop a checkpoint: what it alone keeps is garbage from then on."""
    from memwal.jobs.checkpoint.job import run_drop

    return run_drop(flags.table(table), name, dry_run=flags.dry_run, run_id=flags.run_id)


# ---- erase

erase_app = App(
    cls=DefaultGroup,
    help="Erase rows for good, and prove it.\n\nmemwal erase TABLE --key K=V lists what holds the "
    "row; with --execute it is erased.",
    no_args_is_help=True,
)


@erase_app.command("run")
@command(JobFlags, job="erase")
def erase_run(table: OneTable, *, request: EraseRequest, flags: JobFlags) -> Job:
    """Erase the rows of keys from all that holds them.

    That is base, indexes, versions, generations and WAL. Without --execute, list what holds them.
    With it, shards are claimed to delete the keys there (asking first): writers of these shards
    are fenced, and have to be opened again. What must wait for the retention is finished by a
    later run of the same command, or by `erase resume`.
    """
    from memwal.jobs.erase.job import EraseOptions, run_erase

    return flags.job(run_erase, EraseOptions, table, request=request, confirm=_confirm_erasure)


@erase_app.command("resume")
@command(JobFlags, job="erase")
def erase_resume(tables: Tables, *, request: ResumeRequest, flags: JobFlags) -> Job:
    """Go on with all erasures of tables that are open.

    Where none is open there is nothing to do (exit code 0). What must still wait stays open.
    """
    from memwal.jobs.erase.job import EraseOptions, run_resume

    return flags.job(run_resume, EraseOptions, tables, request=request, confirm=_confirm_erasure)


def _confirm_erasure(name: str, shards: Sequence[str]) -> bool:
    check_terminal()
    return ask_to_claim(name, [f"  shard {shard}" for shard in shards])


@erase_app.command("list")
@command(job="erase")
def erase_list(tables: Tables, *, flags: ReadFlags) -> Job:
    """Show the erasures of tables, the open ones too."""
    from memwal.jobs.erase.job import run_list
    from memwal.run.options import RunOptions

    return flags.job(run_list, RunOptions, tables)


# ---- inspect

Shard = Annotated[str | None, typer.Option("--shard", metavar="ID", help="Only this shard.")]
EntriesMax = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, help="The newest N entries of a shard.")
]

inspect_app = App(help="Show what is stored, decoded.", no_args_is_help=True)


@inspect_app.command("index")
@command(job="inspect index")
def inspect_index(table: OneTable, *, version: Version = None, flags: ReadFlags) -> Document:
    """The MemWAL index details of a table version."""
    return _inspect("index", table, flags, version=version)


@inspect_app.command("manifest")
@command(job="inspect manifest")
def inspect_manifest(table: OneTable, *, version: Version = None, flags: ReadFlags) -> Document:
    """A table version's manifest file, as far as memwal reads it."""
    return _inspect("manifest", table, flags, version=version)


@inspect_app.command("shard")
@command(job="inspect shard")
def inspect_shard(
    table: OneTable,
    *,
    shard: Shard = None,
    version: Version = None,
    flags: ReadFlags,
) -> Document:
    """Shard manifests, next to merge progress.

    Which shard a key's rows go to: `memwal.shard_of` in Python.
    """
    return _inspect("shard", table, flags, shard=shard, version=version)


@inspect_app.command("wal")
@command(job="inspect wal")
def inspect_wal(
    table: OneTable, *, shard: Shard = None, limit: EntriesMax = 1000, flags: ReadFlags
) -> Document:
    """WAL entries: position, epoch, rows, age, what covers them."""
    return _inspect("wal", table, flags, shard=shard, shown_max=limit)


def _inspect(
    what: str, table: str, flags: ReadFlags, *, shard: str | None = None, **more: Any
) -> Document:
    from memwal.jobs.inspect import run_inspect

    found = run_inspect(
        what,
        flags.table(table),
        shard=None if shard is None else parse_shard(shard),
        untested_lance_allowed=flags.allow_untested_lance,
        **more,
    )
    return Document(content=found.to_json())


# ---- lease

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
