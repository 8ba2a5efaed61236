"""What `memwal backup` reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.grid import Column, build_table, format_count, format_size, numbers, words
from memwal.jobs.backup.apply import MadeBackup
from memwal.jobs.backup.plan import CopyPlan, Damage, name_damage
from memwal.model import Backup, BackupMark
from memwal.ports import Objects
from memwal.report import (
    DONE,
    FAILED,
    NOTHING_TO_DO,
    JobReport,
    Section,
    TableReport,
    failed_report,
)
from memwal.run.reports import job_report
from memwal.text import count_of, iso_time, name_some

_SHOWN_MAX = 20


class BackupReport(Section):
    """A backup. `state` is made, planned (a dry run), kept, expired, dropped, sound or damaged.

    `objects` and `bytes` are what it needs, which others of its place may need as well.
    """

    name: str
    state: str
    made_at: str | None
    source: str
    version: int
    shards: int
    objects: int
    bytes: int


class DamageReport(Section):
    """An object that backups need and that is gone, or is not what their lists say."""

    path: str
    problem: str
    backups: tuple[str, ...]


class BackupTableReport(TableReport):
    """A table that was backed up, or a place of backups that was looked after.

    What was copied, and what was there already, are objects; `moments` is how often the table was
    looked at until a moment could be copied whole. `requests_dest` are those to the place: all
    are in the document's `requests`.
    """

    SUMMARISED: ClassVar[tuple[str, ...]] = ("objects_copied", "bytes_copied", "objects_kept")

    dest: str
    backups: tuple[BackupReport, ...] = ()
    objects_copied: int = 0
    bytes_copied: int = 0
    objects_kept: int = 0
    moments: int = 0
    objects_deleted: int = 0
    objects_read: int = 0
    damaged: tuple[DamageReport, ...] = ()
    unfinished: str | None = None
    requests_dest: dict[str, int] = {}


def describe_backup(backup: Backup, state: str) -> BackupReport:
    """The report of a backup."""
    return BackupReport(
        name=backup.name,
        state=state,
        made_at=iso_time(backup.made_at_nanos),
        source=backup.source,
        version=backup.version,
        shards=len(backup.shards),
        objects=backup.num_objects,
        bytes=backup.num_bytes,
    )


def report_made(table: str, dest: str, made: MadeBackup) -> BackupTableReport:
    """The report of a backup that was made."""
    dropped = (describe_backup(backup, "dropped") for backup in made.dropped)
    return BackupTableReport(
        table=table,
        outcome=DONE,
        version_before=made.backup.version,
        version_after=made.backup.version,
        dest=dest,
        backups=(describe_backup(made.backup, "made"), *dropped),
        objects_copied=made.copied,
        bytes_copied=made.bytes_copied,
        objects_kept=made.kept,
        moments=made.moments,
        objects_read=made.read,
        objects_deleted=made.objects_deleted,
    )


def report_planned(table: str, dest: str, backup: Backup, plan: CopyPlan) -> BackupTableReport:
    """The report of a dry run."""
    sums = {"objects": plan.num_objects, "bytes": plan.num_bytes + plan.bytes_there}
    return BackupTableReport(
        table=table,
        outcome=DONE,
        version_before=backup.version,
        version_after=backup.version,
        dest=dest,
        backups=(describe_backup(backup, "planned").model_copy(update=sums),),
        objects_copied=len(plan.copied),
        bytes_copied=plan.num_bytes,
        objects_kept=plan.num_objects - len(plan.copied),
    )


def report_listed(
    table: str, dest: str, backups: Sequence[Backup], mark: BackupMark | None
) -> BackupTableReport:
    """The backups of a place, and whether a run is under way, or was killed."""
    unfinished = mark and (
        f"a backup of {mark.source} was begun {iso_time(mark.begun_at_nanos)} and is not finished: "
        "it is under way, or was killed, and the next one goes on from there"
    )
    return BackupTableReport(
        table=table,
        outcome=DONE if backups else NOTHING_TO_DO,
        dest=dest,
        backups=tuple(describe_backup(backup, "kept") for backup in backups),
        unfinished=unfinished or None,
    )


def report_dropped(
    table: str, dest: str, dropped: Sequence[Backup], objects: int, *, dry_run: bool
) -> BackupTableReport:
    """What was dropped, or would be."""
    state = "planned" if dry_run else "dropped"
    return BackupTableReport(
        table=table,
        outcome=DONE if dropped or objects else NOTHING_TO_DO,
        dest=dest,
        backups=tuple(describe_backup(backup, state) for backup in dropped),
        objects_deleted=objects,
    )


def report_verified(
    table: str, dest: str, backups: Sequence[Backup], read: int, damaged: Sequence[Damage]
) -> BackupTableReport:
    """What was compared, and what is wrong."""
    spoiled = {name for damage in damaged for name in damage.backups}
    error = name_damage(dest, damaged) if damaged else None
    return BackupTableReport(
        table=table,
        outcome=FAILED if error else DONE if backups else NOTHING_TO_DO,
        exit_code=error.exit_code if error else 0,
        error=str(error) if error else None,
        cause=error,
        dest=dest,
        backups=tuple(
            describe_backup(b, "damaged" if b.name in spoiled else "sound") for b in backups
        ),
        objects_read=read,
        damaged=tuple(
            DamageReport(path=d.path, problem=d.problem, backups=d.backups) for d in damaged
        ),
    )


def report_place(
    name: str,
    open_place: Callable[[], Objects],
    work: Callable[[Objects], BackupTableReport],
    *,
    dry_run: bool = False,
) -> JobReport:
    """The document of work on a place, which may be no table, or fail."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    counts: dict[str, int] = {}
    report: TableReport
    try:
        objects = open_place()
        report = work(objects)
        counts = objects.counts.as_dict()
        report = report.model_copy(update={"requests_dest": counts})
    except MemWalError as error:
        report = failed_report(name, error)
    seconds = clock.monotonic_seconds() - started
    return job_report("backup", [report], seconds=seconds, requests=[counts], dry_run=dry_run)


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
    if report.unfinished:
        parts.append(Text(f"  {report.unfinished}", style="yellow"))
    return parts
