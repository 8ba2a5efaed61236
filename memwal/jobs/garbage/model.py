"""What a garbage plan is made of and what it consists of: evidence, limits, items. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from memwal.format import layout
from memwal.model import BrokenShard, ShardId, ShardManifest
from memwal.model import StoredFile as StoredFile


class Kind(Enum):
    """What a candidate is."""

    GENERATION = "generation"
    WAL_ENTRY = "wal_entry"
    ORPHAN = "orphan"
    INGEST = "ingest"


class Action(Enum):
    """What is to happen to it."""

    DROP = "drop"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageLimits:
    """Bounds and switches of a run.

    `wal_entries_per_shard_max` is how many entries of a shard are looked at that no run remembers.
    """

    grace_seconds: float = 3600.0
    wal: bool = False
    adopt_orphans: bool = False
    leftover_age_seconds: float = 86_400.0
    ingest_idle_seconds: float = 14 * 86_400.0
    wal_entries_per_shard_max: int = 20_000
    drop_attempts_max: int = 20
    drop_wait_seconds_max: float = 2.0
    drops_in_flight_max: int = 16
    delete_call_objects_max: int = 4000
    unit_objects_max: int = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedVersion:
    """What one stored version of the base table says.

    `merged` is None for a version without a MemWAL index. `problem` is set when the version could
    not be read: it then holds everything.
    """

    name: str
    version: int
    on_main: bool
    timestamp_nanos: int = 0
    merged: Mapping[ShardId, int] | None = None
    index_uuids: frozenset[str] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationFolder:
    """A folder of a generation's form that was found below a shard.

    `was_listed` tells whether a stored manifest version is known to have named it.
    """

    name: str
    generation: int
    files: tuple[StoredFile, ...]
    was_listed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class WalFile:
    """A WAL entry. `read` is False where its head was not looked at.

    `problem` tells why it could not be read; `generation` is None where its writer left it out.
    """

    position: int
    file: StoredFile
    read: bool = False
    generation: int | None = None
    writer_epoch: int | None = None
    fence_sentinel: bool = False
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredManifest:
    """One stored shard manifest version, and when it was written."""

    version: int
    modified_at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterClaim:
    """A shard's present writer epoch, and when the manifest that it first stands in was written."""

    shard_id: ShardId
    writer_epoch: int
    claimed_at_nanos: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardEvidence:
    """What a listing of one shard's folder shows, and its manifest from before the grace.

    `files` is everything recognised, for adoption; it is empty unless that was asked for.
    """

    shard_id: ShardId
    folders: tuple[GenerationFolder, ...] = ()
    wal: tuple[WalFile, ...] = ()
    manifests: tuple[StoredManifest, ...] = ()
    past: ShardManifest | None = None
    others: tuple[StoredFile, ...] = ()
    files: tuple[StoredFile, ...] = ()
    problem: Exception | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotFolder:
    """A folder of `_indices/` that holds an external shard snapshot and nothing else."""

    index_uuid: str
    file: StoredFile


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedRows:
    """The folder of rows that one run of an ingest stored for its plan."""

    path: str
    files: tuple[StoredFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestRound:
    """One round of an ingest: what it remembers, and what is staged for it.

    `finished` and `named`, the staged files that its plan names, are known only where something is
    staged; `problem` is set where they could not be.
    """

    ingest_id: str
    number: int
    records: tuple[StoredFile, ...] = ()
    staged: tuple[StagedRows, ...] = ()
    planned: bool = False
    finished: bool = False
    named: frozenset[str] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything that a plan is made of besides the view."""

    versions: tuple[RetainedVersion, ...]
    shards: Mapping[ShardId, ShardEvidence]
    leftovers: tuple[StoredFile, ...] = ()
    snapshots: tuple[SnapshotFolder, ...] = ()
    ingests: tuple[IngestRound, ...] = ()
    problems: tuple[Exception, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One candidate, what happens to it, and the evidence for that.

    `stages` are the objects to delete: a stage begins when the one before it is gone whole.
    """

    kind: Kind
    shard_id: ShardId | None
    path: str
    size_bytes: int
    action: Action
    reason: str
    generation: int | None = None
    stages: tuple[tuple[StoredFile, ...], ...] = ()

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(len(stage) for stage in self.stages)


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
    def deletes(self) -> tuple[Item, ...]:
        """What to delete."""
        return tuple(item for item in self.items if item.action is Action.DELETE)


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


def coverable_wal_positions(
    positions: Sequence[int], latest: ShardManifest, past: ShardManifest | None
) -> tuple[int, ...]:
    """Positions whose entries are worth reading, newest first: covered and seen, then and now.

    Not the highest, by which the next writer finds its place. Newest first, because what stays for
    good are sentinels, which would fill a bounded run sooner or later.
    """
    if past is None or not positions:
        return ()
    last = min(wal_floor(latest), wal_floor(past))
    highest = max(positions)
    return tuple(sorted((p for p in positions if p <= last and p != highest), reverse=True))


def wal_floor(manifest: ShardManifest) -> int:
    """The last position that is both covered by a generation and recorded as seen.

    pylance 14.0.2 takes the first free position after the last one seen for the tip, so that a
    hole above it would draw the next sentinel away from the tip, and fence nobody there.
    """
    return min(manifest.replay_after_wal_entry_position, manifest.wal_entry_position_last_seen)


def held_by_claims(wal: Sequence[WalFile], current_epoch: int) -> Mapping[int, int]:
    """Positions that have to stay for claims that may still be under way, each with its epoch.

    A writer that has committed its epoch works from the manifest that it claimed: it writes its
    sentinel at the tip, and then replays upwards from what its manifest covers, until a position is
    missing or holds a newer epoch. If it stalls before that, only the entries below a newer
    sentinel lead it there; without them it takes a hole for the tip, and acknowledges writes that
    are lost (seen on 14.0.2, before and after its sentinel; `make model` shows it). An epoch of
    which a row is stored is past that point; one of which only a sentinel is stored need not be.

    What such an epoch needs ends at the first newer entry, and begins above the highest missing
    position below that: by this same rule nothing is deleted that it needs, so that a position that
    is missing is covered by its manifest. An epoch's first entry is its sentinel. Where a bounded
    run has not read as far down, the lowest row that it knows stands for it, so that a long WAL is
    collected from its newer end. Where nothing newer is known, everything stays.
    """
    known = [w for w in wal if _is_known(w)]
    with_rows = {w.writer_epoch for w in known if not w.fence_sentinel}
    first: dict[int, int] = {}
    for entry in known:
        epoch = entry.writer_epoch or 0
        first[epoch] = min(entry.position, first.get(epoch, entry.position))
    stored = {w.position for w in wal}
    held: dict[int, int] = {}
    # Epochs between two that are known have the same first newer entry. Newest first.
    newer: int | None = None
    above = current_epoch
    for low in [*sorted((e for e in first if e > 1), reverse=True), 1]:
        epoch = min(above, current_epoch) - 1
        while epoch in with_rows and epoch >= low:
            epoch -= 1
        if epoch >= low and newer is None:
            return dict.fromkeys(stored, epoch)
        if epoch >= low and newer is not None:
            _hold_down_from(newer, epoch, stored, held)
        position = first.get(low, layout.U64_MAX)
        newer = position if newer is None else min(newer, position)
        above = low
    return held


def unknown_below(wal: Sequence[WalFile]) -> int:
    """The highest position that was not read although a higher one was; 0 when there is none.

    It may be the sentinel that ends a claim, and what it is above may be what leads there.
    """
    top = max((w.position for w in wal if _is_known(w)), default=0)
    return max((w.position for w in wal if w.position < top and not _is_known(w)), default=0)


def wal_needed(plan: GarbagePlan, evidence: Evidence) -> Mapping[ShardId, int]:
    """From which position on the heads of a shard's WAL entries decide about its deletes.

    Whether an entry may go hangs on those above it (`held_by_claims`, `unknown_below`), and on
    where its own epoch begins.
    """
    deleted = {item.path for item in plan.deletes if item.kind is Kind.WAL_ENTRY}
    needed: dict[ShardId, int] = {}
    for shard_id, shard in evidence.shards.items() if deleted else ():
        going = [entry for entry in shard.wal if entry.file.path in deleted]
        if going:
            epoch = min(going, key=lambda entry: entry.position).writer_epoch
            mine = (e.position for e in shard.wal if _is_known(e) and e.writer_epoch == epoch)
            needed[shard_id] = min(mine)
    return needed


def _is_known(entry: WalFile) -> bool:
    return entry.read and entry.problem is None and entry.writer_epoch is not None


def _hold_down_from(last: int, epoch: int, stored: set[int], held: dict[int, int]) -> None:
    position = last
    while position in stored and position not in held:
        held[position] = epoch
        position -= 1


def unreadable_text(evidence: Evidence, version: int) -> str | None:
    """Why the retained versions prove nothing; None when all of them were read."""
    for found in evidence.versions:
        if found.problem is not None:
            return f"{found.name} can't be read: {found.problem}"
    for problem in evidence.problems:
        return f"not every retained version is known: {problem}"
    if not any(v.on_main and v.version == version for v in evidence.versions):
        return f"version {version} is missing in the listing of versions"
    return None


def size_of(files: Iterable[StoredFile]) -> int:
    """All of them together."""
    return sum(f.size_bytes for f in files)


def newest_of(files: Iterable[StoredFile]) -> int:
    """When the newest file was written; the end of time when there is none to judge by."""
    return max((f.modified_at_nanos for f in files), default=layout.U64_MAX)
