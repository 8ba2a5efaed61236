"""What `memwal restore` reports."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_generations, format_size, numbers, words
from memwal.report import Part, TableReport
from memwal.text import count_of


class RestoredShardReport(Part):
    """A shard; `generations` and `wal_entries` wait to be merged and flushed."""

    shard_id: str
    epoch: int
    generations: tuple[int, ...] = ()
    wal_entries: int = 0


class RestoreTableReport(TableReport):
    """One table. Of a dry run, what would be done: the shards are left out.

    `backup_version` is the base's version that the backup holds, `version_after` the one that has
    its rows from now on. `objects_copied` leaves out what a killed run had copied.
    """

    backup: str | None = None
    backup_made_at: str | None = None
    backup_version: int | None = None
    objects_copied: int = 0
    bytes_copied: int = 0
    shards: tuple[RestoredShardReport, ...] = ()
    requests_backup: dict[str, int] = {}

    SUMMARISED: ClassVar = ("objects_copied", "bytes_copied")


SHARDS: tuple[Column[RestoredShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("epoch", lambda shard: str(shard.epoch)),
    numbers("generations", lambda shard: format_generations(shard.generations)),
    numbers("WAL entries", lambda shard: shard.wal_entries),
)


def show_table(report: RestoreTableReport) -> list[RenderableType]:
    """Render what was restored, and a line for each shard."""
    if report.backup is None:
        return []
    copied = "to copy" if report.version_after is None else "copied"
    line = (
        f"  backup {report.backup} of {report.backup_made_at}, version {report.backup_version}: "
        f"{count_of(report.objects_copied, 'object')} ({format_size(report.bytes_copied)}) {copied}"
    )
    return [Text(line), *([build_table(report.shards, SHARDS)] if report.shards else [])]
