"""What `memwal backup` reports."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_count, format_size, numbers, words
from memwal.jobs.backup.plan import Damage
from memwal.model import Backup
from memwal.report import Section, TableReport
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
    damaged: tuple[Damage, ...] = ()
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
