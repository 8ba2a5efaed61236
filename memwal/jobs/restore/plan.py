"""Decides what a restore does: which backup, which objects, and how each shard goes on. Pure.

A shard goes on above everything that the old table may have given out, so that a writer that still
believes in the old table is told, and nothing that it writes is taken for the new table's:

- Its epoch leaps. How high the old table's went can't be told where manifests are gone, and a
  writer with an epoch of its own above the stored one goes on as if nothing had happened: its
  manifest, with generations that nobody has, becomes the latest (tried with pylance 14.0.2).
- Its WAL goes on after a leap, too. Entries of the old table, and those that its writer still adds,
  lie below the replay position then; no replay takes them. Without the leap, a replay would go on
  from the restored entries to theirs.
- Where the old WAL is there, a sentinel takes its tip as well: the very next put of its writer
  fails. Where it was deleted, nothing shows where its writer stands: it is told when it flushes.

Versions of manifests don't leap: they are collected lowest first, so a gap has a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain

from memwal.errors import Corruption, Refused, Unsupported, Usage
from memwal.format import layout
from memwal.jobs.restore.request import RestoreRequest
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    RestoreMark,
    ShardId,
    ShardManifest,
    StoredFile,
)
from memwal.rows.progress import CLOCKS_APART_NANOS
from memwal.text import iso_time


class Part(Enum):
    """What becomes of an object of the backup."""

    COPIED = "copied"
    """It goes to its own path."""
    BASE = "base"
    """The base's manifest: once its version is held by a mark."""
    SHARD = "shard"
    """A shard's manifest or hint: to its own path, in a place that has none of that shard."""
    WAL = "wal"
    """It is put again, after the leap."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a table is to be.

    `files` are all objects by their paths; `mark` is that of a restore under way, which holds the
    name of version `marked_version`. `version` is the latest of the base below that, 0 for none.
    `other_names` says that the base's versions have names of another scheme than the backup's.
    """

    uri: str
    files: Mapping[str, StoredFile]
    version: int = 0
    mark: RestoreMark | None = None
    marked_version: int = 0
    other_names: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing but what memwal leaves in any place where it looks."""
        return all(path.startswith(f"{layout.MAINTENANCE}/") for path in self.files)

    @property
    def has_backups(self) -> bool:
        """Whether it is a place of backups."""
        return any(layout.parse_backup_path(path) for path in self.files)


def choose_backup(backups: Sequence[Backup], request: RestoreRequest, uri: str) -> Backup:
    """The backup that is asked for; `backups` are oldest first. Raises Usage."""
    found = [
        backup
        for backup in backups
        if request.backup in (None, backup.name) and request.version in (None, backup.version)
    ]
    if found:
        return found[-1]
    said = [f"named {request.backup!r}"] if request.backup is not None else []
    said += [f"of version {request.version}"] if request.version is not None else []
    there = ", ".join(
        f"{b.name} (version {b.version}, {iso_time(b.made_at_nanos)})"
        for b in backups[-_NAMED_MAX:]
    )
    wanted = " ".join(("no backup", *said))
    raise Usage(f"{uri}: there is {wanted}; {f'there are: {there}' if there else 'it has none'}")


_NAMED_MAX = 10


def check_place(place: Place, backup: Backup, request: RestoreRequest) -> None:
    """Raise Refused for a place that is not to be written to; Unsupported where it can't be."""
    if place.has_backups:
        raise Refused("MW-A21", f"{place.uri}: is a place of backups; restore to another one")
    if place.other_names:
        raise Unsupported(
            "MW-A22",
            f"{place.uri}: its versions are named by another scheme than the backup's, and Lance "
            "mixes none: restore to an empty place",
        )
    mark = place.mark
    if request.over or (place.is_empty and mark is None):
        return
    if mark is None:
        raise Refused(
            "MW-A20",
            f"{place.uri}: there is something already: restore to an empty place, or pass --over "
            "to put the backup in place of it",
        )
    if (mark.backup, mark.objects_sha256) != (backup.name, backup.objects_sha256):
        raise Refused(
            "MW-A20",
            f"{place.uri}: a restore of backup {mark.backup!r} was not finished here: run it again "
            f"(--backup {mark.backup}), or pass --over to put {backup.name!r} in place of it",
        )


def find_next_version(place: Place, backup: Backup) -> int:
    """The version that the restored table gets."""
    return place.marked_version or max(place.version, backup.version) + 1


def find_version_path(backup: Backup, version: int) -> str:
    """The path of a version's manifest, by the scheme of the backup's."""
    names = layout.table_manifest_names(version)
    return f"{layout.VERSIONS}/{names[1 if is_first_scheme(backup.manifest_path) else 0]}"


def is_first_scheme(path: str) -> bool:
    """Whether a version's manifest is named by Lance's first scheme, its plain number."""
    name = path.rpartition("/")[2]
    version = layout.parse_table_manifest_name(name)
    return version is not None and name == f"{version}.manifest"


def find_part(found: BackupObject, backup: Backup) -> Part:
    """What becomes of an object."""
    if found.path == backup.manifest_path:
        return Part.BASE
    within = layout.parse_shard_path(found.path)
    if within is None:
        return Part.COPIED
    folder = within[1].partition("/")[0]
    return {"wal": Part.WAL, "manifest": Part.SHARD}.get(folder, Part.COPIED)


def list_copied(
    objects: Sequence[BackupObject], backup: Backup, place: Place
) -> list[BackupObject]:
    """What goes to its own path before the place is changed otherwise.

    A shard's manifests go only to a place that has none of it: versions between others that were
    collected would look like those of a writer that stalled.
    """
    there = (
        {}
        if place.version == 0
        else {
            within[0]
            for within in map(layout.parse_shard_path, place.files)
            if within and within[1].startswith("manifest/")
        }
    )

    def is_copied(found: BackupObject) -> bool:
        part = find_part(found, backup)
        within = layout.parse_shard_path(found.path)
        return part is Part.COPIED or (
            part is Part.SHARD
            and within is not None
            and within[0] not in there
            and layout.parse_shard_manifest_name(found.path.rpartition("/")[2]) is not None
        )

    return [found for found in objects if is_copied(found)]


def is_read_at_once(found: BackupObject, backup: Backup) -> bool:
    """Whether readers of a table that is there would take the object in as soon as it is copied:
    a shard's manifest, and what says which generations were merged.
    """
    records = (f"{layout.SETTLED}/", f"{layout.ADOPTED}/")
    return find_part(found, backup) is Part.SHARD or found.path.startswith(records)


def list_shard_ids(place: Place) -> set[ShardId]:
    """The shards that have an object in the place."""
    return {within[0] for within in map(layout.parse_shard_path, place.files) if within}


def check_list(objects: Sequence[BackupObject], backup: Backup, uri: str) -> None:
    """Raise Corruption for a list that lacks what the document names."""
    paths = {found.path for found in objects}
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


def find_stale_ingests(place: Place, backup: Backup) -> dict[str, list[str]]:
    """The documents of ingests that may have gone on after the backup, by the ingests' ids.

    Their progress counts rows that the restored table lacks, so that they would skip them. Those
    that ended before the backup's version, by more than clocks are apart, are in the backup whole.
    """
    found: dict[str, list[StoredFile]] = {}
    for path, file in place.files.items():
        if path.startswith(f"{layout.INGESTS}/"):
            ingest = path.removeprefix(f"{layout.INGESTS}/").partition("/")[0]
            found.setdefault(ingest, []).append(file)
    before = backup.version_at_nanos - CLOCKS_APART_NANOS
    return {
        ingest: [file.path for file in files]
        for ingest, files in found.items()
        if max(file.modified_at_nanos for file in files) >= before
    }


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """A shard as it is in the place: its newest readable manifest, and what was ever named.

    `version` is the highest version that a manifest's name has, `position` the last in the WAL.
    `waiting` are the positions of entries that the manifest does not cover.
    """

    shard_id: ShardId
    manifest: ShardManifest | None = None
    version: int = 0
    position: int = 0
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ShardRestore:
    """How a shard goes on.

    `claimed` is the manifest that raises the epoch; the one that follows it is written once the WAL
    stands. In between, sentinels go to `tip`, the end of the old WAL, or above it (None where there
    is none), and to `sentinel`, below the restored entries: into a WAL that is empty, claims of
    pylance 14.0.2 put theirs from position 1 on, where it stops no writer.
    """

    claimed: ShardManifest
    tip: int | None
    sentinel: int

    def finish(self, entries: int) -> ShardManifest:
        """The manifest of the restored shard."""
        return replace(
            self.claimed,
            version=self.claimed.version + 1,
            replay_after_wal_entry_position=self.sentinel,
            wal_entry_position_last_seen=self.sentinel + entries,
        )


def plan_shard(found: ShardState, kept: ShardManifest | None) -> ShardRestore:
    """How a shard goes on; `kept` is its manifest in the backup, None for one to be emptied.

    The first manifest has the new epoch and the restored generations already, and covers the old
    WAL: what the old writer adds until the sentinel stands is covered by the second.
    """
    old = found.manifest
    state = kept or replace(
        old
        or ShardManifest(shard_id=found.shard_id, version=0, writer_epoch=0, current_generation=1),
        current_generation=1,
        flushed_generations=(),
    )
    known = [manifest for manifest in (old, kept) if manifest is not None]
    position = max(
        found.position,
        *(m.wal_entry_position_last_seen for m in known),
        *(m.replay_after_wal_entry_position for m in known),
        0,
    )
    sentinel = position + layout.LEAP
    claimed = replace(
        state,
        version=found.version + 1,
        writer_epoch=max((m.writer_epoch for m in known), default=0) + layout.LEAP,
        replay_after_wal_entry_position=sentinel,
        wal_entry_position_last_seen=sentinel,
    )
    return ShardRestore(
        claimed=claimed, tip=found.position + 1 if found.position else None, sentinel=sentinel
    )
