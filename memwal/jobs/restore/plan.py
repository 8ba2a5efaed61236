"""Decides what a restore does: where it may go, which objects, and how each shard goes on. Pure.

A table may have been at the address before, and its writers may not know that it has gone. A shard
goes on above everything that such a table may have given out, so that they are told, and nothing
that they write is taken for the new table's:

- Its epoch leaps. How high the old table's went can't be told, and a writer with an epoch of its
  own above the stored one goes on as if nothing had happened: its manifest, with generations that
  nobody has, becomes the latest (tried with pylance 14.0.2). It leaps to the time in microseconds,
  since the old table may have been restored, too, from the same backup or another.
- Its WAL goes on after a leap, too. Entries that an old writer still adds lie below the replay
  position then; no replay takes them. Without the leap, a replay would go on from the restored
  entries to theirs. Nothing shows where such a writer stands: it is told when it flushes.

Versions of manifests don't leap: they are collected lowest first, so a gap has a meaning.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import ClassVar

from memwal.errors import Corruption, Refused, StoreUnavailable
from memwal.format import layout
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    RestoreMark,
    ShardManifest,
    StoredFile,
)
from memwal.report import Part, TableReport
from memwal.text import name_some

_NAMED_MAX = 10
# What memwal leaves in any place where it has looked, or tried to restore.
_LEFT = tuple(f"{f}/" for f in (layout.LEASE, layout.RUNS, layout.STAGING))
_ASIDE = "move all that is there aside first (`mv`; on S3 copy it and delete it there)"


def check_place(uri: str, paths: Iterable[str], mark: RestoreMark | None, backup: Backup) -> None:
    """Raise Refused unless the place is empty, or `mark` says that this restore was begun there."""
    if mark is not None and mark != RestoreMark(
        backup=backup.name, objects_sha256=backup.objects_sha256
    ):
        raise Refused(
            "MW-A20",
            f"{uri}: a restore of backup {mark.backup!r} was not finished here: run it again "
            f"(--backup {mark.backup}), or {_ASIDE}",
        )
    if mark is None:
        there = {p.split("/")[0] for p in paths if p != layout.RESERVE and not p.startswith(_LEFT)}
        if there:
            raise Refused(
                "MW-A20",
                f"{uri}: there is something already ({', '.join(sorted(there)[:_NAMED_MAX])}): "
                f"{_ASIDE}, or restore to another place",
            )


def check_end(
    uri: str, files: Mapping[str, StoredFile], objects: Iterable[BackupObject], backup: Backup
) -> None:
    """Before the commit, raise StoreUnavailable where something that was copied is gone again.

    Raises Refused where programs of an older table put what the restored one must not know: the
    progress of an ingest, whose rows it lacks; shards that it does not have.
    """
    gone = [
        found.path
        for found in objects
        if found.path not in files or files[found.path].size_bytes != found.size_bytes
    ]
    if gone:
        raise StoreUnavailable(
            f"{uri}: what was restored is gone again ({_name(gone)}): another program deletes "
            "there; stop it, and run again"
        )
    known = {shard.shard_id for shard in backup.shards}
    strange = [path for path in files if _is_strange(path, known)]
    if strange:
        raise Refused(
            "MW-A20",
            f"{uri}: another program writes there ({_name(strange)}), which has the table from "
            "before open: stop it, delete these, and run again",
        )


def _is_strange(path: str, known: Container[str]) -> bool:
    within = layout.parse_shard_path(path)
    return path.startswith(f"{layout.INGESTS}/") or (within is not None and within[0] not in known)


def _name(paths: Sequence[str]) -> str:
    return ", ".join(name_some(paths, _NAMED_MAX // 2, "objects"))


def find_version_path(backup: Backup) -> str:
    """The path of the restored version's manifest, named as the backup's is."""
    name, first_scheme = layout.table_manifest_names(backup.version + 1)
    is_first = backup.manifest_path == f"{layout.VERSIONS}/{backup.version}.manifest"
    return f"{layout.VERSIONS}/{first_scheme if is_first else name}"


def is_copied(found: BackupObject) -> bool:
    """Whether an object goes to its own path.

    WAL entries are put again, after the leap; a shard's hint follows its last manifest.
    """
    within = layout.parse_shard_path(found.path)
    if within is None:
        return True
    folder, _, name = within[1].partition("/")
    if folder == "manifest":
        return layout.parse_shard_manifest_name(name) is not None
    return folder != "wal"


def check_list(paths: Container[str], backup: Backup, uri: str) -> None:
    """Raise Corruption for a list that lacks what the document names."""
    needed = chain(
        (backup.manifest_path,),
        (layout.shard_manifest_path(s.shard_id, s.manifest_version) for s in backup.shards),
        # As many as a document says, which may be wrong: the first that is missing ends it.
        (
            layout.wal_entry_path(s.shard_id, position)
            for s in backup.shards
            for position in list_unflushed(s)
        ),
    )
    for path in needed:
        if path not in paths:
            raise Corruption(
                "MW-A24", f"{uri}: the list of backup {backup.name!r} lacks {path}, which it needs"
            )


def list_unflushed(shard: BackupShard) -> range:
    """The positions of the WAL entries that a replay of the backup takes."""
    first = max(shard.wal_first, shard.replay_after_wal_entry_position + 1)
    return range(first, shard.wal_last + 1)


def plan_claim(
    kept: ShardManifest, latest: ShardManifest | None, position: int, now_nanos: int
) -> ShardManifest:
    """The manifest that raises a shard's epoch; `kept` is the backup's.

    `latest` is in the place, by a killed run or an old writer; `position` is the last in its WAL.
    A sentinel goes to the position that the manifest covers, below the restored entries: into a WAL
    that is empty, claims of pylance 14.0.2 put theirs from position 1 on, where it stops no writer.
    """
    known = [kept, *([latest] if latest else [])]
    now_micros = now_nanos // 1000
    seen = [
        *(m.wal_entry_position_last_seen for m in known),
        *(m.replay_after_wal_entry_position for m in known),
    ]
    sentinel = max(max(position, *seen) + layout.LEAP_MIN, now_micros)
    return replace(
        kept,
        version=max(m.version for m in known) + 1,
        writer_epoch=max(max(m.writer_epoch for m in known) + layout.LEAP_MIN, now_micros),
        replay_after_wal_entry_position=sentinel,
        wal_entry_position_last_seen=sentinel,
    )


def plan_end(claimed: ShardManifest, entries: int) -> ShardManifest:
    """The manifest of the restored shard, once its WAL stands."""
    return replace(
        claimed,
        version=claimed.version + 1,
        wal_entry_position_last_seen=claimed.replay_after_wal_entry_position + entries,
    )


# ---- what is reported


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
