"""Chooses what a backup copies, what a drop deletes, and what may not be touched. Pure.

Lance gives data, deletion and index files names that it gives no other file, and so do flushes to
their folders. Table manifests, shard manifests and WAL entries are numbered: after a restore, or
when a table was made again, a number stands for something else. So those are compared by content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from memwal.errors import Corruption, MemWalError, Refused
from memwal.format import layout
from memwal.format.replay import hole_text
from memwal.jobs.backup.request import Keep
from memwal.model import (
    Backup,
    BackupObject,
    BackupShard,
    ShardId,
    ShardManifest,
    ShardView,
)
from memwal.report import Section, TableReport
from memwal.text import count_of, iso_time, name_some

_NAMED_MAX = 3


class Phase(IntEnum):
    """The order in which objects are copied: what names others comes after them."""

    DATA = 0
    GENERATION = 1
    WAL = 2
    SHARD_MANIFEST = 3
    BASE_MANIFEST = 4


NUMBERED = frozenset({Phase.WAL, Phase.SHARD_MANIFEST, Phase.BASE_MANIFEST})
"""What has a number for a name, by which something else may have been stored before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Needed:
    """An object that a backup needs."""

    path: str
    size_bytes: int
    phase: Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class DestinationState:
    """What is at the destination: backups, what they need, and all objects with their sizes.

    `known` has what some backup's list says of each object. `ours` are paths that no backup needs,
    of runs and drops that were killed.
    """

    uri: str
    backups: Sequence[Backup] = ()
    known: Mapping[str, BackupObject]
    ours: frozenset[str] = frozenset()
    sizes: Mapping[str, int]
    marked_for: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyPlan:
    """What a backup still has to do.

    `kept` is there, as a list says. What is `there` has to be read: it was left by a killed run, or
    may be something else under the same number.
    """

    kept: tuple[BackupObject, ...]
    there: tuple[Needed, ...]
    copied: tuple[Needed, ...]


def check_place(place: DestinationState, source: str) -> None:
    """Raise Refused for a place that is not this table's, or that somebody else wrote to."""
    strange = [path for path in sorted(place.sizes) if not _is_expected(path, place)]
    named = ", ".join(name_some(strange, _NAMED_MAX, "objects"))
    if strange and not place.backups and not place.ours:
        raise Refused(
            "MW-A05",
            f"{place.uri} is not empty, and holds no backups ({named}): choose a folder that is "
            "empty, or that only `memwal backup` writes to",
        )
    if strange:
        raise Refused(
            "MW-A06",
            f"{place.uri}: somebody else wrote there: no backup has {named}. Backups are restored "
            "before they are written to; move away what is not theirs, or choose another place",
        )
    if not place.backups and place.marked_for not in (None, source):
        raise Refused(
            "MW-A03",
            f"{place.uri}: a backup of {place.marked_for} was begun there, and this is {source}: "
            "choose another place",
        )


def _is_expected(path: str, place: DestinationState) -> bool:
    if path in place.known or path in place.ours or path.startswith(f"{layout.MAINTENANCE}/"):
        return True
    name = path.rsplit("/", 1)[-1]
    if layout.is_litter(name):
        return True
    shards = {shard.shard_id for backup in place.backups for shard in backup.shards}
    # A hint is ours to change, so no list has it.
    return name == "version_hint.json" and (
        path in {layout.version_hint_path(shard) for shard in shards}
        or any(other.startswith(path.removesuffix(name)) for other in place.ours)
    )


def check_history(
    place: DestinationState, source: str, version: int, former_at_nanos: int | None
) -> None:
    """Raise Refused if the place's newest backup is of another table, or of another history.

    `former_at_nanos` is when the source committed that backup's version, None if it has expired.
    """
    if not place.backups:
        return
    newest = place.backups[-1]
    where = f"{place.uri}: its newest backup {newest.name!r} is of version {newest.version} of"
    if former_at_nanos not in (None, newest.version_at_nanos):
        at = iso_time(newest.version_at_nanos)
        raise Refused(
            "MW-A03",
            f"{where} {newest.source}, committed {at}, and {source} has another version of that "
            "number: it is another table, or was made again since. Choose another place",
        )
    if former_at_nanos is None and newest.source != source:
        raise Refused(
            "MW-A03",
            f"{where} {newest.source}, which {source} does not have: choose another place",
        )
    if version < newest.version:
        raise Refused(
            "MW-A03",
            f"{where} {newest.source}, and {source} has only {version} now: it was "
            "restored or made again since. Choose another place",
        )


def plan_copies(place: DestinationState, wanted: Iterable[Needed]) -> CopyPlan:
    """Choose what to copy. Raises Refused for another object under one of the paths."""
    kept: list[BackupObject] = []
    there: list[Needed] = []
    copied: list[Needed] = []
    for needed in sorted(wanted, key=lambda n: (n.phase, n.path)):
        size, known = place.sizes.get(needed.path), place.known.get(needed.path)
        if size is None:
            copied.append(needed)
        elif size != needed.size_bytes:
            raise Refused(
                "MW-A03",
                f"{place.uri}: {needed.path} is there with {size} bytes, and the table has "
                f"{needed.size_bytes}: it is another table's, or damaged (`memwal backup verify`)",
            )
        elif needed.phase in NUMBERED or known is None or known.size_bytes != size:
            there.append(needed)
        else:
            kept.append(known)
    return CopyPlan(kept=tuple(kept), there=tuple(there), copied=tuple(copied))


def check_same(where: str, there: BackupObject, ours: BackupObject) -> None:
    """Raise Refused if something else has the number of an object of ours."""
    if there != ours:
        raise Refused(
            "MW-A03",
            f"{where}: {there.path} is there, with other bytes than the table has: it is another "
            "table's, or the table was restored or made again since. Choose another place",
        )


def describe_shard(shard: ShardView, wal: Sequence[int]) -> BackupShard:
    """A shard in a backup's document; `wal` has the positions of the entries that it needs."""
    manifest = shard.manifest
    return BackupShard(
        shard_id=shard.shard_id,
        manifest_version=manifest.version,
        writer_epoch=manifest.writer_epoch,
        replay_after_wal_entry_position=manifest.replay_after_wal_entry_position,
        current_generation=manifest.current_generation,
        merged_generation=shard.merged_generation,
        wal_first=wal[0] if wal else 0,
        wal_last=wal[-1] if wal else 0,
    )


def choose_entries(
    where: str, manifest: ShardManifest, positions: Collection[int], sentinels: Mapping[int, int]
) -> list[int]:
    """The WAL entries that a shard's copy needs.

    They are those that a replay takes; the sentinel of the manifest's epoch; and the highest, by
    which the next writer finds its place: without it, rows would be put at positions that count as
    flushed. `sentinels` maps positions to epochs, of the newest ones. What a writer put who has
    claimed the shard since is of a later moment, as the manifest does not know that epoch. Raises
    Refused for a hole.
    """
    newer = [p for p, epoch in sentinels.items() if epoch > manifest.writer_epoch]
    positions = {p for p in positions if p < min(newer, default=layout.U64_MAX)}
    highest = max(positions, default=0)
    tip = manifest.replay_after_wal_entry_position + 1
    while tip in positions:
        tip += 1
    hole = hole_text(tip, manifest, highest)
    if hole is not None:
        raise Refused(
            "MW-A04", f"{where}: no backup of rows that are missing: the WAL has a hole: {hole}"
        )
    kept = {p for p in positions if p > manifest.replay_after_wal_entry_position}
    kept |= {p for p, epoch in sentinels.items() if epoch == manifest.writer_epoch}
    return sorted(kept | ({highest} if highest else set()))


def check_there(where: str, paths: Iterable[str], stored: Collection[str]) -> None:
    """Raise Corruption where the table names an object that is not stored."""
    gone = [path for path in paths if path not in stored]
    if gone:
        named = ", ".join(name_some(gone, _NAMED_MAX, "files"))
        raise Corruption(
            "MW-A09",
            f"{where}: the table needs {named}, and it is not there: no backup of a table that "
            "has lost files. An earlier backup may have it",
        )


# ---- what is damaged


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """An object that backups need, and that is not what their lists say."""

    path: str
    problem: str
    backups: tuple[str, ...]


def name_damage(dest: str, damaged: Sequence[Damage]) -> Corruption:
    """The error of a place in which objects are damaged."""
    spoiled = sorted({name for damage in damaged for name in damage.backups})
    return Corruption(
        "MW-A07",
        f"{dest}: {count_of(len(damaged), 'object')} damaged or gone, the first "
        f"{damaged[0].path}: not whole is {', '.join(spoiled)}",
    )


# ---- what goes


def choose_expired(backups: Sequence[Backup], keep: Keep | None, now_nanos: int) -> list[Backup]:
    """The backups, oldest first, that `keep` does not keep. The newest always stays."""
    if keep is None:
        return []
    older = list(backups[:-1])
    if keep.newest is not None:
        return older[: max(0, len(backups) - keep.newest)]
    oldest = now_nanos - round((keep.seconds or 0.0) * 1e9)
    return [backup for backup in older if backup.made_at_nanos < oldest]


def choose_deleted(
    dropped: Iterable[Sequence[BackupObject]],
    remaining: Iterable[Sequence[BackupObject]],
    ours: Iterable[str] = (),
) -> list[str]:
    """The paths that only what is dropped needs: what names others first, so that no reader of the
    place finds a version some of whose files are gone.
    """
    needed = {found.path for listed in remaining for found in listed}
    paths = {found.path for listed in dropped for found in listed} | set(ours)
    return sorted(paths - needed, key=lambda path: (-phase_of(path), path))


def phase_of(path: str) -> Phase:
    """When an object of that path is copied."""
    if path.startswith(f"{layout.VERSIONS}/"):
        return Phase.BASE_MANIFEST
    parts = path.split("/")
    if parts[0] != layout.MEM_WAL or len(parts) < 3:
        return Phase.DATA
    return {"manifest": Phase.SHARD_MANIFEST, "wal": Phase.WAL}.get(parts[2], Phase.GENERATION)


def find_shards(paths: Iterable[str]) -> set[ShardId]:
    """The shards whose folders the paths lie in."""
    return {found[0] for path in paths if (found := layout.parse_shard_path(path)) is not None}


def list_hints(backups: Sequence[Backup]) -> dict[ShardId, int]:
    """The manifest version that each shard's hint names in the place: its newest backup's."""
    return {shard.shard_id: shard.manifest_version for backup in backups for shard in backup.shards}


def is_passing(error: MemWalError) -> bool:
    """Whether what is missing may just have been merged and collected: look again."""
    return isinstance(error, Refused | Corruption) and error.code in ("MW-A04", "MW-A09")


# ---- what is reported


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
    looked at until a moment could be copied whole.
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
