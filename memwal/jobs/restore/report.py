"""What `memwal restore` reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.format import layout
from memwal.grid import Column, build_table, format_generations, format_size, numbers, words
from memwal.jobs.restore.apply import Restored
from memwal.report import DONE, AuditItem, Part, TableReport
from memwal.text import count_of, iso_time, name_some

_NAMED_MAX = 10


class RestoredShardReport(Part):
    """A shard. One that the backup does not know is emptied (`known` is false).

    `epoch_before` is what was found in the place; `generations` and `wal_entries` wait to be merged
    and flushed.
    """

    shard_id: str
    known: bool
    epoch_before: int
    epoch_after: int
    generations: tuple[int, ...] = ()
    wal_entries: int = 0


class RestoreTableReport(TableReport):
    """One table. Of a dry run, what would be done: the shards are left out.

    `backup_version` is the base's version that the backup holds, `version_after` the one that has
    its rows from now on. `replaced` are objects that were damaged, or others than the backup's;
    of `removed` the restored table must not know. Both are kept in `replaced_folder`, with copies
    of what stays and is read no more (`put_aside`). `kept_checkpoint` has the rows of before.
    """

    backup: str | None = None
    backup_made_at: str | None = None
    backup_version: int | None = None
    objects_copied: int = 0
    bytes_copied: int = 0
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    put_aside: tuple[str, ...] = ()
    replaced_folder: str | None = None
    kept_checkpoint: str | None = None
    ingests_put_aside: tuple[str, ...] = ()
    shards: tuple[RestoredShardReport, ...] = ()
    warnings: tuple[str, ...] = ()
    requests_backup: dict[str, int] = {}

    SUMMARISED: ClassVar = ("objects_copied", "bytes_copied")

    def audited(self) -> Iterable[AuditItem]:
        """What was replaced or put aside, and the version that has the backup's rows."""
        if self.version_after is not None and self.backup is not None:
            yield from _list_items(
                self.backup, self.version_after, self.replaced, self.removed, done=True
            )


def list_replaced(done: Restored) -> list[AuditItem]:
    """What a restore is about to replace and remove, as far as it is known so far."""
    return _list_items(done.backup.name, done.version, done.replaced, done.removed, done=None)


def _list_items(
    backup: str,
    version: int,
    replaced: Iterable[str],
    removed: Iterable[str],
    *,
    done: bool | None,
) -> list[AuditItem]:
    paths = dict.fromkeys(replaced, "replace") | dict.fromkeys(removed, "delete")
    paths[f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}"] = "replace"
    why = f"restored from backup {backup!r}"
    return [
        AuditItem(action=action, kind="object", path=path, reason=why, done=done)
        for path, action in paths.items()
    ]


def report_restore(name: str, done: Restored, *, dry_run: bool) -> RestoreTableReport:
    """What was done, or would be."""
    backup = done.backup
    aside = (*done.replaced, *done.removed, *done.aside)
    return RestoreTableReport(
        table=name,
        outcome=DONE,
        version_before=done.version_before,
        version_after=None if dry_run else done.version,
        backup=backup.name,
        backup_made_at=iso_time(backup.made_at_nanos),
        backup_version=backup.version,
        objects_copied=done.copied,
        bytes_copied=done.copied_bytes,
        replaced=tuple(sorted(done.replaced)),
        removed=tuple(sorted(done.removed)),
        put_aside=tuple(sorted(done.aside)),
        replaced_folder=layout.replaced_folder(done.restore_id) if aside and not dry_run else None,
        kept_checkpoint=done.kept,
        ingests_put_aside=tuple(done.ingests),
        shards=tuple(
            RestoredShardReport(
                outcome=DONE,
                shard_id=shard.shard_id,
                known=shard.is_known,
                epoch_before=shard.epoch_before,
                epoch_after=shard.epoch_after,
                generations=shard.generations,
                wal_entries=shard.entries,
            )
            for shard in done.shards
        ),
        warnings=tuple(done.warnings),
    )


SHARDS: tuple[Column[RestoredShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id if shard.known else f"{shard.shard_id} (emptied)"),
    numbers("epoch", lambda shard: f"{shard.epoch_before} -> {shard.epoch_after}"),
    numbers("generations", lambda shard: format_generations(shard.generations)),
    numbers("WAL entries", lambda shard: shard.wal_entries),
)


def show_table(report: RestoreTableReport) -> list[RenderableType]:
    """Render what was restored, what was kept of the old table, and a line for each shard."""
    if report.backup is None:
        return []
    planned = report.version_after is None
    copied = count_of(report.objects_copied, "object")
    lines = [
        f"backup {report.backup} of {report.backup_made_at}, version {report.backup_version}: "
        f"{copied} ({format_size(report.bytes_copied)}) {'to copy' if planned else 'copied'}"
    ]
    if report.replaced:
        some = ", ".join(name_some(report.replaced, _NAMED_MAX, "objects"))
        lines.append(f"{'to be replaced' if planned else 'replaced'}: {some}")
    if report.ingests_put_aside:
        names = ", ".join(report.ingests_put_aside)
        lines.append(
            f"ingests that may have gone on after the backup: {names}. Run them again: their "
            f"progress {'would be' if planned else 'was'} put aside, as the table lacks those rows"
        )
    if report.kept_checkpoint:
        name = report.kept_checkpoint
        lines.append(
            "the rows from before, but those that only the WAL had: memwal read "
            f"{report.table} --checkpoint {name}, until memwal checkpoint drop {report.table} "
            f"{name}"
        )
    if report.replaced_folder:
        lines.append(
            f"what was replaced or put aside is in {report.replaced_folder}: delete that once "
            "nobody needs it"
        )
    shown: list[RenderableType] = [Text(f"  {line}") for line in lines]
    if report.shards:
        shown.append(build_table(report.shards, SHARDS))
    return shown
