"""What a look at a table shows, what a plan of garbage says, and the ports of its collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypeAlias

from pydantic import Field

from memwal.format import layout
from memwal.jobs.garbage.request import CURSOR_AGE_SECONDS
from memwal.model import (
    GRACE_SECONDS,
    BrokenShard,
    Checkpoint,
    ShardId,
    ShardManifest,
    StoredFile,
    TableView,
)
from memwal.ports import Views
from memwal.rows.progress import SettledRecord

_UNREPORTED = Field(exclude=True)
_Content: TypeAlias = bytes

ORPHAN = "orphan"
"""The report's word for whatever belongs to nothing that is live."""


class UntilGrace(str):
    """A reason to keep something that lapses by itself when the grace is over."""

    __slots__ = ()


class Action(StrEnum):
    """What is to happen to a candidate."""

    DROP = "drop"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageLimits:
    """Bounds and switches of a run.

    For `sweep_seconds` after a full sweep, passes look only at shards that changed; tables with
    fewer objects than `sweep_objects_min` are always swept in full. `wal_entries_per_shard_max`
    bounds how many WAL entries of a shard are read that no earlier run remembers.
    `numbered_kept_min` of a shard's newest manifests, and of a table's newest lease claims, always
    stay; at most `numbered_deletes_max` of either are deleted in one run.
    """

    grace_seconds: float = GRACE_SECONDS
    wal: bool = False
    adopt_orphans: bool = False
    leftover_age_seconds: float = 86_400.0
    ingest_idle_seconds: float = 14 * 86_400.0
    cursor_age_seconds: float = CURSOR_AGE_SECONDS
    sweep_seconds: float = 86_400.0
    sweep_objects_min: int = 10_000
    wal_entries_per_shard_max: int = 20_000
    drop_attempts_max: int = 20
    drop_wait_seconds_max: float = 2.0
    drops_in_flight_max: int = 16
    delete_call_objects_max: int = 4000
    unit_objects_max: int = 5000
    numbered_kept_min: int = 8
    numbered_deletes_max: int = 5000


# ---- evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedVersion:
    """What one stored version of the base table says.

    `merged` is None for a version without a MemWAL index. `problem` is set when the version could
    not be read: it then holds everything. `settled_ids` are the ids of the records it names, which
    say what an earlier MemWAL index had merged in a version that this one descends from.
    """

    name: str
    version: int
    on_main: bool
    timestamp_nanos: int = 0
    merged: Mapping[ShardId, int] | None = None
    index_uuids: frozenset[str] = frozenset()
    settled_ids: frozenset[str] = frozenset()
    problem: str | None = None

    def needs_record(self, shard_id: ShardId) -> bool:
        """Whether only a settled record can tell how far this version has merged the shard."""
        return bool(self.settled_ids) and not (self.merged or {}).get(shard_id)

    def may_need_record(self, shard_id: ShardId) -> bool:
        """Whether, after restoring this version, only a record could tell what it has merged."""
        return self.on_main and self.needs_record(shard_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationFolder:
    """A folder below a shard that is named like a generation's."""

    name: str
    generation: int
    files: tuple[StoredFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WalFile:
    """A WAL entry. `read` is False where its head was not looked at.

    `inferred` is set where the sentinels around an unread entry already tell which epoch wrote it.
    `problem` says why it could not be read; `generation` is None where its writer left it out.
    """

    position: int
    file: StoredFile
    read: bool = False
    inferred: bool = False
    generation: int | None = None
    writer_epoch: int | None = None
    fence_sentinel: bool = False
    problem: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether it is known which epoch wrote the entry, and whether it is a fence sentinel."""
        if self.problem is not None or self.writer_epoch is None:
            return False
        return self.read or self.inferred


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredManifest:
    """One stored version of a shard manifest, with the time it was written."""

    version: int
    modified_at_nanos: int
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnd:
    """Versions of the last manifest by an epoch's own writer and the first of a later epoch.

    Any versions between the two are drops. `next_first` is None for the present epoch.
    """

    last_own: int
    next_first: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestHistory:
    """What decides which older manifests of a shard may go; read only where some may.

    `hinted` is the version hint's target, None if it can't be read. `ends` are the ends of the
    epochs that may have manifests below the floor, ascending; the present epoch's is last.
    """

    hinted: int | None
    ends: tuple[EpochEnd, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEvidence:
    """What a listing of one shard's folder shows, and what was read of its manifests.

    `past` is the manifest that was the latest when the grace began. `cover` is the newest one from
    before the grace whose generations are all gone, folders included; it is looked up only where
    WAL entries may go. `staged` are files that had yet to take the name of an entry or a manifest.
    `stoppers` keep the names of collected manifests taken. `astray` is set
    where the version hint leads to no readable manifest. `settled` maps a record's id to the
    highest generation of this very shard that any version naming the record contains. `files` is
    everything recognised, for adoption; it is empty unless that was asked for.
    """

    shard_id: ShardId
    objects: int = 0
    folders: tuple[GenerationFolder, ...] = ()
    wal: tuple[WalFile, ...] = ()
    manifests: tuple[StoredManifest, ...] = ()
    stoppers: tuple[StoredManifest, ...] = ()
    history: ManifestHistory | None = None
    astray: bool = False
    past: ShardManifest | None = None
    cover: ShardManifest | None = None
    settled: Mapping[str, int] = field(default_factory=dict)
    staged: tuple[StoredFile, ...] = ()
    others: tuple[StoredFile, ...] = ()
    files: tuple[StoredFile, ...] = ()
    problem: Exception | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything that a plan is made from, besides the view.

    `settled` has, by id, the records that retained versions name and may need; None for one that
    can't be understood. A record that was never stored proves nothing and is left out.
    `adopted` has the ranges of progress that adoptions gave up, by shard: a version's progress in
    such a range proves no merge. It is read only while a shard still lists its generation 1.
    `outside` has the evidence of kinds of garbage that lie outside the shards, by the kind's name.
    """

    versions: tuple[RetainedVersion, ...] = ()
    shards: Mapping[ShardId, ShardEvidence] = field(default_factory=dict)
    outside: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    checkpoints: Sequence[Checkpoint] = ()
    settled: Mapping[str, SettledRecord | None] = field(default_factory=dict)
    adopted: Mapping[ShardId, Sequence[range]] = field(default_factory=dict)
    problems: tuple[Exception, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SweptShard:
    """What a sweep remembers of a shard, to tell whether it has to be looked at again.

    Nothing in it can have become garbage until `next_generation`, the lowest that is stored or
    comes next, passes the gates, or the grace that began at `waits_since_nanos` is over (0:
    nothing waits for the grace).
    """

    next_generation: int = 1
    waits_since_nanos: int = 0
    merged_generation: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What passes remember of a table's shards since a full sweep.

    It only tells where to look, and never lets anything go. `version` and `version_at_nanos` are
    the table's latest version at the time of writing, and that version's timestamp.
    """

    swept_at_nanos: int
    version: int
    version_at_nanos: int
    wal: bool
    shards: Mapping[ShardId, SweptShard] = field(default_factory=dict)


# ---- plans


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One candidate, what happens to it, and the reason.

    `kind` is the report's word for it. `done` tells whether this run did what `action` says, and
    `error` why an item could not be deleted whole: the next run finds it again.

    `stages` are the objects to delete; a stage begins only when all of the one before is gone.
    Items that are `in_order` go one by one, in the order of the plan. An item with a `replacement`
    is overwritten with it before anything in its folder goes.
    """

    kind: str
    shard_id: ShardId | None
    path: str
    bytes: int
    action: Action
    reason: str
    done: bool = False
    error: str | None = None
    generation: Annotated[int | None, _UNREPORTED] = None
    stages: Annotated[tuple[tuple[StoredFile, ...], ...], _UNREPORTED] = ()
    in_order: Annotated[bool, _UNREPORTED] = False
    replacement: Annotated[_Content | None, _UNREPORTED] = None

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(len(stage) for stage in self.stages)

    @property
    def is_mend(self) -> bool:
        """Whether it is only overwritten, not to make room for a delete: a broken version hint."""
        return self.replacement is not None and not self.stages


def plan_delete(
    kind: str,
    path: str,
    *stages: Sequence[StoredFile],
    why: str,
    held: str | None,
    shard_id: ShardId | None = None,
    generation: int | None = None,
) -> Item:
    """An item that is deleted stage by stage, or kept if `held` gives a reason."""
    return Item(
        kind=kind,
        shard_id=shard_id,
        path=path,
        bytes=sum(size_of(stage) for stage in stages),
        action=Action.DELETE if held is None else Action.KEEP,
        reason=held or why,
        generation=generation,
        stages=() if held else tuple(tuple(stage) for stage in stages if stage),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbagePlan:
    """Every candidate and what happens to it, and the problems that kept evidence from being read.

    `refusal` is set when a guard keeps all of the table's shards.
    """

    items: tuple[Item, ...]
    refusal: str | None = None
    broken: tuple[BrokenShard, ...] = ()
    problems: tuple[Exception, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def drops(self) -> Mapping[ShardId, tuple[Item, ...]]:
        """What to drop, by shard."""
        found: dict[ShardId, list[Item]] = {}
        for item in self.items:
            if item.action is Action.DROP and item.shard_id is not None:
                found.setdefault(item.shard_id, []).append(item)
        return {shard: tuple(items) for shard, items in found.items()}

    @property
    def has_mends(self) -> bool:
        """Whether any item only has to be overwritten."""
        return any(item.is_mend for item in self.items)

    @property
    def deletes(self) -> tuple[Item, ...]:
        """What to delete."""
        return tuple(item for item in self.items if item.action is Action.DELETE)


# ---- sizes and ages


def size_of(files: Iterable[StoredFile]) -> int:
    """The size of all files together, in bytes."""
    return sum(f.size_bytes for f in files)


def newest_of(files: Iterable[StoredFile]) -> int:
    """When the newest file was written; `U64_MAX` for no files, so that none counts as old."""
    return max((f.modified_at_nanos for f in files), default=layout.U64_MAX)


def cutoff_nanos(limits: GarbageLimits, now_nanos: int) -> int:
    """When the grace time began; whatever is younger stays."""
    return now_nanos - round(limits.grace_seconds * 1e9)


def past_version(manifests: Sequence[StoredManifest], cutoff_nanos: int) -> int | None:
    """The manifest version that was the latest at `cutoff_nanos`; None when there was none yet.

    Versions are taken in order up to the first that is younger. So a file with a wrong time can
    only lead to an older version, which names more generations and thus keeps more.
    """
    found = None
    for stored in sorted(manifests, key=lambda m: m.version):
        if stored.modified_at_nanos > cutoff_nanos:
            break
        found = stored.version
    return found


# ---- ports

FindDeciding: TypeAlias = Callable[[Evidence], Mapping[ShardId, int]]


class GarbageViews(Views, Protocol):
    """Views of a table whose shards can be looked up one by one."""

    def table(self, *, probed: bool = False) -> TableView:
        """The latest version with its shards.

        With `probed`, each shard's newest manifest is found without trusting a listing.
        """
        ...

    def base(self) -> TableView:
        """The latest version, without its shards."""
        ...

    def list_shards(self, view: TableView) -> tuple[TableView, Sequence[ShardId]]:
        """The view, with strangers among the shard folders added, and the shards with a folder."""
        ...

    def add_shards(
        self,
        view: TableView,
        shard_ids: Iterable[ShardId],
        listed: Mapping[ShardId, Sequence[StoredFile]],
    ) -> TableView:
        """The view with these shards added; manifests are probed for, unless in `listed`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Expired:
    """What Lance's own cleanup removed."""

    versions: int
    size_bytes: int


class VersionExpiry(Protocol):
    """Lance's own cleanup of old versions."""

    def check_expirable(self) -> None:
        """Raise Refused where the cleanup could reach files of another table."""
        ...

    def expire_versions(self, versions: Set[int]) -> Expired:
        """Remove these versions of main.

        The latest, tagged and branched-off ones stay. Raises Refused, StoreUnavailable.
        """
        ...
