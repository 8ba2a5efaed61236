"""`memwal backup`: makes a backup of a table; lists, verifies and drops those of a place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, Refused
from memwal.grid import Column, build_table, format_count, format_size, numbers, words
from memwal.jobs.backup.apply import BackupMaker, Check, Dropper, compare_objects, name_backup
from memwal.jobs.backup.plan import (
    BackupReport,
    BackupTableReport,
    describe_backup,
    name_damage,
)
from memwal.jobs.backup.request import BackupRequest, read_keep
from memwal.jobs.backup.store import BackupSource, StoredDestination, check_apart, choose_place
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import (
    DONE,
    FAILED,
    NOTHING_TO_DO,
    JobReport,
    TableReport,
    failed_report,
)
from memwal.run.fanout import Fanout
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.reports import job_report
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores, open_stores
from memwal.run.tables import OpenTable
from memwal.text import count_of, name_some

NAME = "backup"


@dataclass(frozen=True, kw_only=True)
class BackupOptions(RunOptions):
    """The options of `backup`: where to, by default as configured, and what is asked for."""

    dest: ResolvedTable | None = None
    request: BackupRequest = field(default_factory=BackupRequest)


def run_backup(options: BackupOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Back up the table to the destination, by default the one that is configured."""
    asked = options.request
    if not options.lease and not options.dry_run:
        raise Refused(
            "MW-L01", "a backup is made under the lease of its place: run it without --no-lease"
        )

    def one(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        place, keep = choose_place(options.dest, asked.keep, table.resolved)
        given = {**place.storage_options, **dict(asked.dest_storage_options)}
        opened = open_stores(place.uri, given, clock=stores.clock, run_id=options.run_id)
        objects, name = opened.objects, table.resolved.name
        check_apart(stores.objects, objects)
        with ChainLeases(NAME, table.warn) as leases:
            maker = BackupMaker(
                name=asked.name or name_backup(stores.clock),
                source=BackupSource(name=name, stores=stores, dest=objects.uri),
                dest=StoredDestination(name=name, objects=objects, source=stores.objects),
                clock=stores.clock,
                show=progress,
                claim=partial(claim_place, opened, leases, table.warn),
                verify=asked.verify,
                steps=steps,
            )
            try:
                return maker.plan() if options.dry_run else maker.make(keep)
            finally:
                table.unit_requests.append(objects.counts.as_dict())

    runner = JobRunner(
        name=NAME, read=lambda stores, fanout: stores.views.base(), engine=lambda fanout: None
    )
    return runner.run_each(options, one, progress)


def claim_place(place: Stores, leases: ChainLeases, warn: Callable[[str], None]) -> Check:
    """Prove a place's store, and claim it, once there is something to write."""
    place.prove_store()
    return leases.take(place.uri, place.leases, NAME, warn).check


# ---- a place, without its table


def run_list(dest: ResolvedTable) -> JobReport:
    """List the backups of a place, oldest first."""

    def look(place: StoredDestination) -> BackupTableReport:
        found = place.backups.list()
        return BackupTableReport(
            table=place.name,
            outcome=DONE if found else NOTHING_TO_DO,
            dest=place.uri,
            backups=tuple(describe_backup(backup, "kept") for backup in found),
        )

    return _report_place(dest, lambda place, stores: look(place))


def run_verify(
    dest: ResolvedTable, name: str | None = None, *, progress: Progress = SILENT
) -> JobReport:
    """Read every object that the backups need, or the one of that name, and compare its digest."""

    def verify(place: StoredDestination) -> BackupTableReport:
        chosen = place.backups.list() if name is None else [place.backups.find(name)]
        needed = {backup.name: place.backups.objects_of(backup) for backup in chosen}
        read, damaged = compare_objects(place, needed, progress)
        spoiled = {name for damage in damaged for name in damage.backups}
        error = name_damage(place.uri, damaged) if damaged else None
        return BackupTableReport(
            table=place.name,
            outcome=FAILED if error else DONE if chosen else NOTHING_TO_DO,
            exit_code=error.exit_code if error else 0,
            error=str(error) if error else None,
            cause=error,
            dest=place.uri,
            backups=tuple(
                describe_backup(b, "damaged" if b.name in spoiled else "sound") for b in chosen
            ),
            objects_read=read,
            damaged=tuple(damaged),
        )

    return _report_place(dest, lambda place, stores: verify(place))


def run_drop(
    dest: ResolvedTable,
    names: Sequence[str] = (),
    *,
    keep: str | None = None,
    dry_run: bool = False,
    run_id: str | None = None,
    progress: Progress = SILENT,
    steps: Steps = no_steps,
) -> JobReport:
    """Drop backups of these names and, with `keep`, those that it does not keep."""

    def drop(place: StoredDestination, stores: Stores) -> BackupTableReport:
        with ChainLeases(NAME, progress.warn) as leases:
            claim = None if dry_run else partial(claim_place, stores, leases, progress.warn)
            stay = None if keep is None else read_keep(keep)
            dropper = Dropper(dest=place, steps=steps)
            return dropper.run(names, stay, SystemClock().now_nanos(), claim)

    return _report_place(dest, drop, dry_run=dry_run, run_id=run_id)


def _report_place(
    dest: ResolvedTable,
    work: Callable[[StoredDestination, Stores], BackupTableReport],
    *,
    dry_run: bool = False,
    run_id: str | None = None,
) -> JobReport:
    """The document of work on a place, which may be no table, or fail."""
    clock = SystemClock()
    started, counts = clock.monotonic_seconds(), dict[str, int]()
    report: TableReport
    try:
        stores = open_stores(dest.find_uri(), dest.storage_options, clock=clock, run_id=run_id)
        report = work(StoredDestination(name=dest.name, objects=stores.objects), stores)
        counts = stores.objects.counts.as_dict()
    except MemWalError as error:
        report = failed_report(dest.name, error)
    seconds = clock.monotonic_seconds() - started
    return job_report(NAME, [report], seconds=seconds, requests=[counts], dry_run=dry_run)


# ---- what people see


_SHOWN_MAX = 20


BACKUPS: tuple[Column[BackupReport], ...] = (
    words("backup", lambda found: found.name),
    words("state", lambda found: found.state),
    words("made (UTC)", lambda found: (found.made_at or "-")[:16].replace("T", " ")),
    words("version", lambda found: str(found.version)),
    numbers("objects", lambda found: found.objects),
    words("size", lambda found: format_size(found.bytes)),
)


def show_table(report: BackupTableReport) -> list[RenderableType]:
    """Render a line for each backup, and what was done."""
    parts: list[RenderableType] = []
    if report.backups:
        parts.append(build_table(report.backups, BACKUPS))
    elif report.error is None:
        parts.append(Text(f"  no backups in {report.dest}", style="dim"))
    if report.objects_copied or report.objects_kept:
        planned = any(found.state == "planned" for found in report.backups)
        verb = "to copy" if planned else "copied"
        parts.append(
            Text(
                f"  {verb}: {count_of(report.objects_copied, 'object')} "
                f"({format_size(report.bytes_copied)}); "
                f"{format_count(report.objects_kept)} were there already"
            )
        )
    if report.objects_deleted:
        parts.append(Text(f"  deleted: {count_of(report.objects_deleted, 'object')}"))
    if report.objects_read:
        parts.append(Text(f"  read and compared: {count_of(report.objects_read, 'object')}"))
    lines = [f"  {found.path}: {found.problem}" for found in report.damaged]
    parts += [Text(line, style="red") for line in name_some(lines, _SHOWN_MAX, "objects")]
    return parts
