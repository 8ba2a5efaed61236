"""The commands of the jobs that declare their options in requests, or have next to none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from memwal.cli.commands import SHARED, App
from memwal.cli.console import RunProgress
from memwal.cli.flags import (
    AuditFlags,
    Job,
    JobFlags,
    OneTable,
    ReadFlags,
    RescueFlags,
    Tables,
    command,
    load,
)
from memwal.config import read_environment_settings
from memwal.errors import Usage
from memwal.grid import format_size
from memwal.ingest.request import IngestRequest
from memwal.jobs.audit.request import AuditRequest
from memwal.jobs.backup.request import RestoreRequest
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.init.request import InitRequest
from memwal.jobs.maintain.request import BackfillRequest, MaintainRequest, QuiesceRequest
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.repair.request import RepairRequest
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.verify.request import VerifyRequest
from memwal.report import JobReport
from memwal.text import count_of, format_age

if TYPE_CHECKING:
    from memwal.jobs.repair.model import Damage
    from memwal.jobs.rescue.plan import ShardRescue

Sources = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders, patterns, Lance tables; local, s3://, gs:// or az://. -: stdin.",
    ),
]
Place = Annotated[
    str,
    typer.Argument(metavar="URI|TABLE", help="A table, or any folder of a store."),
]
BackupPlace = Annotated[
    str,
    typer.Argument(metavar="BACKUP", help="A place of backups: an address, or a table's name."),
]
RunsMax = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=4000, help="The newest N.")
]

Trails = Annotated[
    list[str],
    typer.Argument(
        metavar="TABLE...|verify [TABLE...]",
        help="As for other commands. After the word verify: check that the trails of these tables "
        "are whole; without a table, all that are in the place configured.",
    ),
]
Topic = Annotated[str, typer.Argument(metavar="COMMAND|options")]
_VERIFY = "verify"


@command(JobFlags)
def init(table: OneTable, *, request: InitRequest, flags: JobFlags) -> Job:
    """Make a Lance table ready for MemWAL writers.

    Or says what is in the way. A rerun finishes what a killed run began, and
    changes nothing if the table already is as requested; an existing, different MemWAL is exit 5.
    """
    from memwal.jobs.init.job import InitOptions, run_init

    return flags.job(run_init, InitOptions, table, request=request)


@command(JobFlags)
def merge(tables: Tables, *, request: MergeRequest, flags: JobFlags) -> Job:
    """Fold flushed generations into the base table, oldest first."""
    from memwal.jobs.merge.job import MergeOptions, run_merge

    return flags.job(run_merge, MergeOptions, tables, request=request)


@command(JobFlags)
def index_catchup(tables: Tables, *, request: CatchupRequest, flags: JobFlags) -> Job:
    """Extend every index over the rows that merging added."""
    from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup

    return flags.job(run_index_catchup, IndexCatchupOptions, tables, request=request)


@command(JobFlags)
def compaction(tables: Tables, *, flags: JobFlags) -> Job:
    """Rewrite the small fragments that merging leaves.

    Indexes are caught up before and after.
    """
    from memwal.jobs.compaction.job import CompactionOptions, run_compaction

    return flags.job(run_compaction, CompactionOptions, tables)


@command(JobFlags)
def snapshot(tables: Tables, *, flags: JobFlags) -> Job:
    """Refresh the shard snapshot in the MemWAL index."""
    from memwal.jobs.snapshot.job import run_snapshot
    from memwal.run.options import RunOptions

    return flags.job(run_snapshot, RunOptions, tables)


@command(JobFlags)
def garbage(tables: Tables, *, request: GarbageRequest, flags: JobFlags) -> Job:
    """List what is provably unused, or delete it.

    Garbage is generations, their WAL, staged rows, old manifests and claims. A configured retention
    permits deleting by it, and options may keep more. To delete sooner takes --execute and
    --allow-short-retention. Without a configured one all deleting takes --execute.
    """
    from memwal.jobs.garbage.job import GarbageOptions, run_garbage

    return flags.job(run_garbage, GarbageOptions, tables, request=request)


@command(JobFlags)
def maintain(tables: Tables, *, request: MaintainRequest, flags: JobFlags) -> Job:
    """Merge, index-catchup, snapshot and garbage, in this order.

    Garbage is deleted as by memwal garbage.
    """
    from memwal.jobs.maintain.job import MaintainOptions, run_maintain

    return flags.job(run_maintain, MaintainOptions, tables, request=request)


@command(JobFlags)
def backfill(tables: Tables, *, request: BackfillRequest, flags: JobFlags) -> Job:
    """Merge and index-catchup on many tables, several at a time.

    Run it again after a failure, a kill or a deadline: it continues with what is left.
    """
    from memwal.jobs.maintain.job import BackfillOptions, run_backfill

    return flags.job(run_backfill, BackfillOptions, tables, request=request)


@command(JobFlags)
def ingest(table: OneTable, sources: Sources, *, request: IngestRequest, flags: JobFlags) -> Job:
    """Write files into the MemWAL, each row once.

    After a crash, run it again to continue.
    """
    from memwal.ingest.job import run_ingest
    from memwal.ingest.plan import IngestOptions

    if request.check:
        flags = replace(flags, dry_run=True)
    request = replace(request, sources=tuple(sources))
    return flags.job(run_ingest, IngestOptions, table, request=request)


@command()
def verify(tables: Tables, *, request: VerifyRequest, flags: ReadFlags) -> Job:
    """Check the invariants on a table at rest. Changes nothing; exit code 8 when one is broken."""
    from memwal.jobs.verify.job import run_verify
    from memwal.run.options import RunOptions

    return flags.job(partial(run_verify, deep=request.deep), RunOptions, tables)


@command()
def doctor(table: Place, *, flags: ReadFlags) -> Job:
    """Try whether a store keeps what MemWAL writers and jobs need."""
    from memwal.jobs.doctor import run_doctor
    from memwal.run.options import RunOptions

    return flags.job(run_doctor, RunOptions, table)


@command()
def runs(tables: Tables, limit: RunsMax = 50, *, flags: ReadFlags) -> JobReport:
    """Show what ran on a table, newest first."""
    from memwal.jobs.runs import run_runs

    return run_runs(flags.tables(tables), limit)


@command(AuditFlags)
def audit(tables: Trails, *, request: AuditRequest, flags: AuditFlags) -> JobReport:
    """Show what was done to a table, by whom and on what evidence.

    The audit trail is where `audit` in memwal.toml says. `memwal audit verify` finds documents that
    are missing or were changed.
    """
    from memwal.jobs.audit.job import run_audit, run_audit_verify, run_audit_verify_place
    from memwal.read.job import find_other_shards

    if tables[:1] != [_VERIFY]:
        return run_audit(flags.tables(tables), request, find_other_shards)
    if request != AuditRequest():
        raise Usage("audit verify checks whole trails: it takes no --path, --key, --run or --limit")
    if len(tables) > 1 or flags.everything:
        return run_audit_verify(flags.tables(tables[1:]))
    config, options = load(flags.config, flags.storage_option)
    place = flags.audit or read_environment_settings().get("audit") or config.defaults.audit
    if place is None:
        raise Usage(
            "audit verify: no place for audit trails is configured: set `audit` below [defaults] "
            "in memwal.toml, MEMWAL_AUDIT or --audit PLACE, or name a table"
        )
    return run_audit_verify_place(place, {**config.defaults.storage_options, **options})


@command(RescueFlags)
def rescue(tables: Tables, *, request: RescueRequest, flags: RescueFlags) -> Job:
    """Flush what a writer that has gone left in the WAL.

    It claims the shard: if the writer is alive after all, it is fenced and has to be opened again.
    No acknowledged row is lost either way. Run `memwal merge` afterwards.
    """
    from memwal.jobs.rescue.job import RescueOptions, run_rescue

    if not (request.yes or flags.dry_run):
        check_terminal()
    return flags.job(
        run_rescue,
        RescueOptions,
        tables,
        request=request,
        confirm=(lambda table, shards: True) if request.yes else ask,
    )


@command(JobFlags)
def restore(
    source: BackupPlace, table: OneTable, *, request: RestoreRequest, flags: JobFlags
) -> Job:
    """Make a table out of a backup, where none is.

    To replace a broken table, move it aside first. Writers can open the new one at once. One that
    still has the old table open is fenced: no row of its is taken for the new table's. After a
    kill, run it again to continue.
    """
    from memwal.jobs.restore.job import RestoreOptions, run_restore

    def work(progress: RunProgress) -> JobReport:
        found, tables = flags.table(source), [flags.table(table)]
        options = flags.run_options(RestoreOptions, tables, source=found, request=request)
        return run_restore(options, progress)

    return work


@command(JobFlags)
def quiesce(tables: Tables, *, request: QuiesceRequest, flags: JobFlags) -> Job:
    """Bring a table to rest, to change its write spec or indexes.

    It flushes what writers that have gone left in the WAL (asking first), merges, catches indexes
    up and drops what is merged. Then it says whether the write spec may be changed, or what is in
    the way. A generation is dropped once it is merged at every retained version: --retention
    expires older versions.
    """
    from memwal.jobs.quiesce.job import QuiesceOptions, run_quiesce

    def confirm(table: str, shards: Sequence[ShardRescue]) -> bool:
        check_terminal()
        return ask(table, shards)

    return flags.job(
        run_quiesce,
        QuiesceOptions,
        tables,
        request=request,
        confirm=(lambda table, shards: True) if request.yes else confirm,
    )


@command(RescueFlags)
def repair(tables: Tables, *, request: RepairRequest, flags: RescueFlags) -> Job:
    """Say what is damaged; with --execute, mend it.

    Of each thing it says from what it can be mended, or what to do instead and what is lost then.
    Nothing is deleted: what is replaced goes to _maintenance/quarantine/. Mending a shard's
    manifest fences its writer, and asks first. Exit code 8 as long as something is damaged.
    """
    from memwal.jobs.repair.job import RepairOptions, run_repair

    return flags.job(
        run_repair,
        RepairOptions,
        tables,
        request=request,
        find_place=replace(flags, everything=False).table,
        confirm=(lambda table, damages: True) if request.yes else ask_repair,
    )


def check_terminal() -> None:
    """Raise Usage where nobody can be asked."""
    if not sys.stdin.isatty():
        raise Usage("claiming a shard has to be confirmed: off a terminal, pass --yes")


def ask(table: str, shards: Sequence[ShardRescue]) -> bool:
    """Ask the user whether these shards may be claimed."""
    lines = []
    for plan in shards:
        lines.append(
            f"  shard {plan.shard_id}: {count_of(plan.rows, 'row')} in {plan.entries} WAL entries "
            f"({format_size(plan.bytes)}), silent for {format_age(plan.idle_seconds)}"
        )
        lines += [f"    warning: {text}" for text in plan.warnings]
    return ask_to_claim(table, lines)


def ask_repair(table: str, damages: Sequence[Damage]) -> bool:
    """Ask the user whether the shards of these damages may be claimed."""
    check_terminal()
    lines = [f"  shard {d.shard_id}: {d.finding}\n    {d.evidence}" for d in damages]
    return ask_to_claim(table, lines)


def ask_to_claim(table: str, lines: Sequence[str]) -> bool:
    """Ask the user whether shards may be claimed, those of the lines."""
    typer.echo(f"{table}: to be claimed, which fences a writer that is alive after all:", err=True)
    for line in lines:
        typer.echo(line, err=True)
    try:
        return typer.confirm("Claim?", default=False, err=True)
    except typer.Abort:
        return False


def help(topic: Topic = "options") -> None:
    """Explain a command, or the options that commands share."""
    # Any other topic has become `COMMAND --help` before (`memwal.cli`).
    app = App()
    app.command()(merge)
    shown: Any = get_command(app)
    context = typer.Context(shown, help_option_names=[])
    formatter = context.make_formatter()
    shown.show(context, formatter, hidden=[p for p in shown.params if p.name not in SHARED])
    typer.echo(formatter.getvalue().strip())
