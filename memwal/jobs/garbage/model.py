"""The words of garbage collection: what a look at a table shows, and what a plan says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from memwal.format import layout
from memwal.model import BrokenShard, Checkpoint, ShardId, ShardManifest, StoredFile
from memwal.rows.former_merges import SettledRecord

ORPHAN = "orphan"
"""The report's word for whatever belongs to nothing that is live."""


class UntilGrace(str):
    """A reason to keep something that ends with the grace, whatever else happens or does not."""

    __slots__ = ()


class Action(Enum):
    """What is to happen to a candidate."""

    DROP = "drop"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageLimits:
    """Bounds and switches of a run.

    `sweep_seconds` is how long after a full sweep a pass looks at what changed only; tables with
    fewer objects than `sweep_objects_min` are always swept. `wal_entries_per_shard_max` is how many
    entries of a shard are looked at that no run remembers. `numbered_kept_min` is how many of a
    shard's newest manifests stay whatever else, and of a table's newest lease claims;
    `numbered_deletes_max` how many of either go in one run.
    """

    grace_seconds: float = 3600.0
    wal: bool = False
    adopt_orphans: bool = False
    leftover_age_seconds: float = 86_400.0
    ingest_idle_seconds: float = 14 * 86_400.0
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
    not be read: it then holds everything. `settled_ids` are of the records that it names of what an
    earlier MemWAL index had merged: it descends from a version that had.
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
        """Whether only a record can tell what it has of the shard."""
        return bool(self.settled_ids) and not (self.merged or {}).get(shard_id)

    def may_need_record(self, shard_id: ShardId) -> bool:
        """Whether a restore of it would leave a record to tell what is merged of the shard."""
        return self.on_main and self.needs_record(shard_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationFolder:
    """A folder below a shard that is named like a generation's.

    `was_listed` tells whether a stored manifest version is known to have named it.
    """

    name: str
    generation: int
    files: tuple[StoredFile, ...]
    was_listed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WalFile:
    """A WAL entry. `read` is False where its head was not looked at.

    `told` is set where the sentinels around it tell whose row it is, unread. `problem` tells why it
    could not be read; `generation` is None where its writer left it out.
    """

    position: int
    file: StoredFile
    read: bool = False
    told: bool = False
    generation: int | None = None
    writer_epoch: int | None = None
    fence_sentinel: bool = False
    problem: str | None = None

    @property
    def is_known(self) -> bool:
        """Whether the epoch that wrote it is known, and what it is."""
        if self.problem is not None or self.writer_epoch is None:
            return False
        return self.read or self.told


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredManifest:
    """One stored shard manifest version, and when it was written."""

    version: int
    modified_at_nanos: int
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochEnd:
    """The last manifest that an epoch's own writer wrote, and the first one of a later epoch.

    Between them are those of drops. `next_first` is None for the present epoch.
    """

    last_own: int
    next_first: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestHistory:
    """What decides about a shard's older manifests; read only where some may go.

    `hinted` is the version hint's target. `ends` are those of the epochs that may have manifests
    below the floor, ascending; the present one's is last.
    """

    hinted: int | None
    ends: tuple[EpochEnd, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterClaim:
    """A shard's present writer epoch, and when the manifest that it first stands in was written."""

    shard_id: ShardId
    writer_epoch: int
    claimed_at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEvidence:
    """What a listing of one shard's folder shows, and its manifest from before the grace.

    `cover` is the newest manifest from before then whose flushed generations are all gone, folders
    too; it is known where WAL entries may go. `stoppers` stand for manifests that were collected
    and whose names stay taken; `astray` is set where the version hint leads to none that can be
    read. `settled` tells, by record, up to where a version that names it has what this very shard
    had. `files` is everything recognised, for adoption; it is empty unless that was asked for.
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
    others: tuple[StoredFile, ...] = ()
    files: tuple[StoredFile, ...] = ()
    problem: Exception | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything that a plan is made of besides the view.

    `settled` has the records that retained versions name and may need; None for one that can't be
    understood. One that was never stored proves nothing, and isn't there.
    `adopted` is progress that versions may have of a shard and that is not its own, while one lists
    its first generation.
    `beside` has what kinds of garbage that lie beside the shards have read, by the kind's name.
    """

    versions: tuple[RetainedVersion, ...] = ()
    shards: Mapping[ShardId, ShardEvidence] = field(default_factory=dict)
    beside: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    checkpoints: Sequence[Checkpoint] = ()
    settled: Mapping[str, SettledRecord | None] = field(default_factory=dict)
    adopted: Mapping[ShardId, Sequence[range]] = field(default_factory=dict)
    problems: tuple[Exception, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SweptShard:
    """A shard when it was last looked at, so that nothing can have become garbage since unless

    `next_generation`, the lowest that is listed or comes next, passes the gates by now, or the
    grace is over that began at `waits_since_nanos` (0: for nothing).
    """

    next_generation: int = 1
    waits_since_nanos: int = 0
    merged_generation: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What passes remember of a table's shards since a full sweep. It tells where to look only.

    `version` and its time are those of the table when it was written.
    """

    swept_at_nanos: int
    version: int
    version_at_nanos: int
    wal: bool
    shards: Mapping[ShardId, SweptShard] = field(default_factory=dict)


# ---- plans


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One candidate, what happens to it, and the evidence for that.

    `kind` is the report's word for it. `stages` are the objects to delete: a stage begins when the
    one before it is gone whole. What is `in_order` goes one by one, after those before it in the
    plan; what has a `replacement` is overwritten before any of its folder goes.
    """

    kind: str
    shard_id: ShardId | None
    path: str
    size_bytes: int
    action: Action
    reason: str
    generation: int | None = None
    stages: tuple[tuple[StoredFile, ...], ...] = ()
    in_order: bool = False
    replacement: bytes | None = None

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(len(stage) for stage in self.stages)

    @property
    def is_mend(self) -> bool:
        """Whether it is overwritten for its own sake."""
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
    """A candidate that is deleted, stage by stage, unless something holds it."""
    return Item(
        kind=kind,
        shard_id=shard_id,
        path=path,
        size_bytes=sum(size_of(stage) for stage in stages),
        action=Action.DELETE if held is None else Action.KEEP,
        reason=held or why,
        generation=generation,
        stages=() if held else tuple(tuple(stage) for stage in stages if stage),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbagePlan:
    """Every candidate with its fate, and what kept evidence from being read.

    `refusal` is set when a guard keeps the table's shards as a whole.
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
        """Whether anything is to be overwritten for its own sake."""
        return any(item.is_mend for item in self.items)

    @property
    def deletes(self) -> tuple[Item, ...]:
        """What to delete."""
        return tuple(item for item in self.items if item.action is Action.DELETE)


# ---- sizes and ages


def size_of(files: Iterable[StoredFile]) -> int:
    """All of them together."""
    return sum(f.size_bytes for f in files)


def newest_of(files: Iterable[StoredFile]) -> int:
    """When the newest file was written; the end of time when there is none to judge by."""
    return max((f.modified_at_nanos for f in files), default=layout.U64_MAX)


def cutoff_nanos(limits: GarbageLimits, now_nanos: int) -> int:
    """When the grace began: what is younger stays."""
    return now_nanos - round(limits.grace_seconds * 1e9)


def past_version(manifests: Sequence[StoredManifest], cutoff_nanos: int) -> int | None:
    """The manifest version that was the latest at `cutoff_nanos`; None when there was none yet.

    Versions are taken in order up to the first that is younger, so that a file's odd age can only
    lead to an older version, which names more.
    """
    found = None
    for stored in sorted(manifests, key=lambda m: m.version):
        if stored.modified_at_nanos > cutoff_nanos:
            break
        found = stored.version
    return found
