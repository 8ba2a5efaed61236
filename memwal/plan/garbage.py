"""Decides what of a table's MemWAL tier may be dropped or deleted, and why not. Pure.

A generation leaves in two passes. The first drops it from the shard manifest, the second deletes
its folder once it was unreferenced for the grace time. Every gate fails closed: evidence that is
missing, unreadable or ambiguous keeps the candidate (invariant 6), and each candidate carries the
reason.

The gates of a generation g of shard s
--------------------------------------
1. Merged at EVERY retained version of the base table: main, branches, detached ones. A version
   without a MemWAL index holds nothing; one with an index that does not know s holds everything.
2. Every index that must cover it has caught up at the latest version. An index or shard that is
   absent from `index_catchup` is not known to be caught up.
3. It is merged at the latest version (which 1 implies: the latest version is retained).

A folder that no manifest names is deleted if its NUMBER passes the gates and
4. its number is below `current_generation`, both now and in the manifest that was the latest one
   when the grace began: a flush of that number was decided before the grace, so none is in
   progress, and none was listed and dropped again within it;
5. that older manifest does not name it either;
6. its newest file is older than the grace.

A failed flush leaves a folder whose retry has the same number, so it goes by the same gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from memwal import layout
from memwal.errors import Refused
from memwal.model import BrokenShard, ShardId, ShardManifest, ShardStatus, ShardView, TableView

RETENTION_SECONDS_MIN = 86_400.0
GRACE_SECONDS_MIN = 600.0

# Indexes that Lance keeps for itself: no generation is read through them.
_SYSTEM_INDEXES = frozenset({layout.MEM_WAL_INDEX_NAME, "__lance_frag_reuse"})


class Kind(Enum):
    """What a candidate is."""

    GENERATION = "generation"
    WAL_ENTRY = "wal_entry"
    ORPHAN = "orphan"


class Action(Enum):
    """What is to happen to it."""

    DROP = "drop"
    DELETE = "delete"
    KEEP = "keep"


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageLimits:
    """Bounds and switches of a run."""

    grace_seconds: float = 3600.0
    wal: bool = False
    adopt_orphans: bool = False
    leftover_age_seconds: float = 86_400.0
    wal_entries_per_shard_max: int = 20_000
    drop_attempts_max: int = 20
    drop_wait_seconds_max: float = 2.0
    drops_in_flight_max: int = 16
    delete_call_objects_max: int = 4000
    unit_objects_max: int = 5000


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One object below the table's root."""

    path: str
    size_bytes: int
    modified_at_nanos: int


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
    fence_sentinel: bool = False
    problem: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredManifest:
    """One stored shard manifest version, and when it was written."""

    version: int
    modified_at_nanos: int


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
class Evidence:
    """Everything that a plan is made of besides the view."""

    versions: tuple[RetainedVersion, ...]
    shards: Mapping[ShardId, ShardEvidence]
    leftovers: tuple[StoredFile, ...] = ()
    snapshots: tuple[SnapshotFolder, ...] = ()
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
        found: dict[ShardId, tuple[Item, ...]] = {}
        for item in self.items:
            if item.action is Action.DROP and item.shard_id is not None:
                found[item.shard_id] = (*found.get(item.shard_id, ()), item)
        return found

    @property
    def deletes(self) -> tuple[Item, ...]:
        """What to delete."""
        return tuple(item for item in self.items if item.action is Action.DELETE)


def check_limits(
    *, grace_seconds: float, retention_seconds: float | None, short_allowed: bool
) -> None:
    """Raise Refused for a retention under a day or a grace under ten minutes."""
    if short_allowed:
        return
    if retention_seconds is not None and retention_seconds < RETENTION_SECONDS_MIN:
        raise Refused(
            f"a retention of {retention_seconds:g} s is shorter than a day: readers and time "
            "travel lose versions that they may still use; pass --allow-short-retention if not"
        )
    if grace_seconds < GRACE_SECONDS_MIN:
        raise Refused(
            f"a grace of {grace_seconds:g} s is shorter than ten minutes: readers that hold an "
            "older shard manifest would find generations gone; pass --allow-short-retention if "
            "there are none"
        )


def cutoff_nanos(limits: GarbageLimits, now_nanos: int) -> int:
    """When the grace began: what is younger stays."""
    return now_nanos - round(limits.grace_seconds * 1e9)


def expirable(
    evidence: Evidence, latest: int, retention_seconds: float, now_nanos: int
) -> frozenset[int]:
    """Versions of main that are older than the retention; tags and branches may hold some."""
    cutoff = now_nanos - round(retention_seconds * 1e9)
    return frozenset(
        v.version
        for v in evidence.versions
        if v.on_main
        and v.version != latest
        and not layout.is_detached(v.version)
        and v.problem is None
        and v.timestamp_nanos < cutoff
    )


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
    last = min(_wal_floor(latest), _wal_floor(past))
    highest = max(positions)
    return tuple(sorted((p for p in positions if p <= last and p != highest), reverse=True))


def _wal_floor(manifest: ShardManifest) -> int:
    """The last position that is both covered by a generation and recorded as seen.

    pylance 14.0.2 takes the first free position after the last one seen for the tip, so that a
    hole above it would draw the next sentinel away from the tip, and fence nobody there.
    """
    return min(manifest.replay_after_wal_entry_position, manifest.wal_entry_position_last_seen)


def plan_garbage(
    view: TableView, evidence: Evidence, limits: GarbageLimits, now_nanos: int
) -> GarbagePlan:
    """What to drop and delete of a table that has a MemWAL index."""
    gates = _Gates(view, evidence)
    cutoff = cutoff_nanos(limits, now_nanos)
    items: list[Item] = []
    broken = {str(b.shard_id): b for b in view.broken}
    for shard in view.shards:
        found = evidence.shards.get(shard.shard_id)
        if found is None:
            found = ShardEvidence(
                shard_id=shard.shard_id, problem=Refused("its folder was not listed")
            )
        if found.problem is not None:
            broken[shard.shard_id] = BrokenShard(shard_id=shard.shard_id, error=found.problem)
        planner = _Shard(shard, found, gates, limits, cutoff)
        items += planner.items()
    known = {s.shard_id for s in view.shards}
    for shard_id, found in evidence.shards.items():
        if shard_id not in known:
            why = broken.get(shard_id)
            items += _untouchable(
                found,
                "the shard has no manifest"
                if why is None
                else (f"the shard's manifest can't be used: {why.error}"),
            )
    items += _leftovers(evidence, limits, now_nanos)
    items += _snapshots(evidence, gates.unreadable, cutoff)
    return GarbagePlan(
        items=tuple(items),
        broken=tuple(broken.values()),
        problems=evidence.problems,
        warnings=gates.warnings,
    )


class _Gates:
    """Gates 1 and 2 for one table."""

    def __init__(self, view: TableView, evidence: Evidence) -> None:
        self._view = view
        self._versions = evidence.versions
        self.unreadable = unreadable_text(evidence, view.version)
        state = view.mem_wal
        there = {entry.name for entry in view.manifest.indexes} - _SYSTEM_INDEXES
        named = set(state.maintained_indexes)
        everything = bool(state.maintain_all_indexes) or not named
        self._indexes = sorted(there if everything else there & named)
        self.warnings = tuple(
            f"maintained index {name!r} is gone from the table: it holds no generation back"
            for name in sorted(named - there - _SYSTEM_INDEXES)
        )
        self._lowest: dict[ShardId, RetainedVersion | None] = {}

    def held(self, shard_id: ShardId, generation: int) -> str | None:
        """Why the generation is still needed; None when nothing holds it."""
        return self.version_holds(shard_id, generation) or self.index_holds(shard_id, generation)

    def version_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """Gate 1 (and with it 3)."""
        if self.unreadable is not None:
            return self.unreadable
        merged = self._view.mem_wal.merged.get(shard_id, 0)
        if generation > merged:
            return f"pending: merged up to {merged} only"
        lowest = self._lowest_version(shard_id)
        if lowest is None or lowest.merged is None:
            return "no retained version shows that it was merged"
        merged = lowest.merged.get(shard_id, 0)
        if generation > merged:
            return f"{lowest.name} is retained and has merged up to {merged} only"
        return None

    def index_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """Gate 2."""
        for name in self._indexes:
            reached = self._view.mem_wal.index_catchup.get(name, {}).get(shard_id)
            if reached is None:
                return f"index {name!r} is not known to have caught up"
            if reached < generation:
                return f"index {name!r} has caught up to {reached} only"
        return None

    def _lowest_version(self, shard_id: ShardId) -> RetainedVersion | None:
        if shard_id not in self._lowest:
            holding = [v for v in self._versions if v.merged is not None]
            self._lowest[shard_id] = min(
                holding,
                key=lambda v: 0 if v.merged is None else v.merged.get(shard_id, 0),
                default=None,
            )
        return self._lowest[shard_id]


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


class _Shard:
    """Plans one shard that has a manifest."""

    def __init__(
        self,
        shard: ShardView,
        found: ShardEvidence,
        gates: _Gates,
        limits: GarbageLimits,
        cutoff: int,
    ) -> None:
        self._shard = shard
        self._manifest = shard.manifest
        self._found = found
        self._gates = gates
        self._limits = limits
        self._cutoff = cutoff
        self._listed = {g.path for g in shard.manifest.flushed_generations}

    def items(self) -> Iterator[Item]:
        """Every candidate of the shard."""
        shut = self._shut()
        folders = {f.name: f for f in self._found.folders}
        for generation in self._manifest.flushed_generations:
            folder = folders.get(generation.path)
            why = shut or self._gates.held(self._shard.shard_id, generation.generation)
            yield Item(
                kind=Kind.GENERATION,
                shard_id=self._shard.shard_id,
                path=self._path(generation.path),
                size_bytes=_size(folder.files) if folder else 0,
                action=Action.DROP if why is None else Action.KEEP,
                reason=why or "merged at every retained version, and every index has caught up",
                generation=generation.generation,
            )
        for folder in self._found.folders:
            if folder.name not in self._listed:
                yield self._folder(folder, shut)
        for other in self._found.others:
            yield _kept_stranger(self._shard.shard_id, other)
        if self._limits.wal:
            yield from self._wal(shut)

    def _shut(self) -> str | None:
        """Why nothing of the shard may be touched."""
        if self._found.problem is not None:
            return f"the shard can't be read: {self._found.problem}"
        if self._manifest.status is not ShardStatus.ACTIVE:
            return f"the shard is {self._manifest.status.name}"
        return None

    def _path(self, name: str) -> str:
        return f"{layout.shard_folder(self._shard.shard_id)}/{name}"

    def _past(self) -> ShardManifest | None:
        """The manifest from before the grace, if it is the one that the listing calls for."""
        past = self._found.past
        wanted = past_version(self._found.manifests, self._cutoff)
        return past if past is not None and past.version == wanted else None

    def _folder(self, folder: GenerationFolder, shut: str | None) -> Item:
        why = shut or self._folder_held(folder)
        return Item(
            kind=Kind.GENERATION if folder.was_listed else Kind.ORPHAN,
            shard_id=self._shard.shard_id,
            path=self._path(folder.name),
            size_bytes=_size(folder.files),
            action=Action.DELETE if why is None else Action.KEEP,
            reason=why or "no manifest has named it since before the grace, and nothing needs it",
            generation=folder.generation,
            stages=() if why else generation_stages(folder),
        )

    def _folder_held(self, folder: GenerationFolder) -> str | None:
        number = folder.generation
        if number < 1:
            return "generations are numbered from 1"
        current = self._manifest.current_generation
        if number >= current:
            return f"may be a flush in progress: the current generation is {current}"
        held = self._gates.held(self._shard.shard_id, number)
        if held is not None:
            return held
        past = self._past()
        if past is None:
            return "no manifest is older than the grace"
        if any(g.path == folder.name for g in past.flushed_generations):
            return f"manifest version {past.version} named it when the grace began"
        if number >= past.current_generation:
            return "it was flushed after the grace began"
        if _newest(folder.files) > self._cutoff:
            return "its newest file is younger than the grace"
        return None

    def _wal(self, shut: str | None) -> Iterator[Item]:
        highest = max((w.position for w in self._found.wal), default=0)
        past = self._past()
        numbers = {g.generation for g in self._manifest.flushed_generations}
        numbers |= {f.generation for f in self._found.folders}
        for entry in self._found.wal:
            why = shut or self._wal_held(entry, highest, past, numbers)
            yield Item(
                kind=Kind.WAL_ENTRY,
                shard_id=self._shard.shard_id,
                path=entry.file.path,
                size_bytes=entry.file.size_bytes,
                action=Action.DELETE if why is None else Action.KEEP,
                reason=why or f"generation {entry.generation}, which covered it, is deleted",
                generation=entry.generation,
                stages=() if why else ((entry.file,),),
            )

    def _wal_held(
        self, entry: WalFile, highest: int, past: ShardManifest | None, numbers: Iterable[int]
    ) -> str | None:
        """Invariant 7, in the order in which it costs least to tell."""
        replay = self._manifest.replay_after_wal_entry_position
        if entry.position > replay:
            return f"not covered: the replay position is {replay}"
        if entry.position > self._manifest.wal_entry_position_last_seen:
            return "above the last position seen: the next writer may look for the tip there"
        if entry.position == highest:
            return "the highest position: the next writer finds its place by it"
        if past is None:
            return "no manifest is older than the grace"
        if entry.position > _wal_floor(past):
            return "was covered after the grace began"
        if entry.file.modified_at_nanos > self._cutoff:
            return "younger than the grace"
        if entry.problem is not None:
            return f"can't be read: {entry.problem}"
        if not entry.read:
            return "not looked at in this run"
        if entry.fence_sentinel:
            return "a fence sentinel: it stops a stalled writer"
        if entry.generation is None or entry.generation < 1:
            return "does not say which generation covers it"
        if entry.generation in numbers:
            return f"generation {entry.generation}, which covers it, is not deleted yet"
        if entry.generation >= self._manifest.current_generation:
            return f"generation {entry.generation} is not flushed yet"
        return self._gates.version_holds(self._shard.shard_id, entry.generation)


def generation_stages(folder: GenerationFolder) -> tuple[tuple[StoredFile, ...], ...]:
    """`_versions/` first: what is left of a half-deleted folder no longer opens as a table.

    A reader that still holds an older manifest then finds no table, instead of one whose rows
    vanish while it scans.
    """
    marker = f"/{folder.name}/{layout.VERSIONS}/"
    first = tuple(f for f in folder.files if marker in f.path)
    rest = tuple(f for f in folder.files if marker not in f.path)
    return tuple(stage for stage in (first, rest) if stage)


def _untouchable(found: ShardEvidence, reason: str) -> Iterator[Item]:
    for folder in found.folders:
        yield Item(
            kind=Kind.ORPHAN,
            shard_id=found.shard_id,
            path=f"{layout.shard_folder(found.shard_id)}/{folder.name}",
            size_bytes=_size(folder.files),
            action=Action.KEEP,
            reason=reason,
            generation=folder.generation,
        )
    for other in found.others:
        yield _kept_stranger(found.shard_id, other)


def _kept_stranger(shard_id: ShardId, other: StoredFile) -> Item:
    return Item(
        kind=Kind.ORPHAN,
        shard_id=shard_id,
        path=other.path,
        size_bytes=other.size_bytes,
        action=Action.KEEP,
        reason="neither a generation, nor a manifest, nor a WAL entry: left alone",
    )


# ---- leftovers of ours


def _leftovers(evidence: Evidence, limits: GarbageLimits, now_nanos: int) -> Iterator[Item]:
    cutoff = now_nanos - round(limits.leftover_age_seconds * 1e9)
    for file in evidence.leftovers:
        old = file.modified_at_nanos <= cutoff
        yield Item(
            kind=Kind.ORPHAN,
            shard_id=None,
            path=file.path,
            size_bytes=file.size_bytes,
            action=Action.DELETE if old else Action.KEEP,
            reason=(
                "staged by a run that was killed" if old else "may be staged by a run that goes on"
            ),
            stages=((file,),) if old else (),
        )


def _snapshots(evidence: Evidence, unreadable: str | None, cutoff: int) -> Iterator[Item]:
    for found in evidence.snapshots:
        named = next((v for v in evidence.versions if found.index_uuid in v.index_uuids), None)
        if unreadable is not None:
            why: str | None = unreadable
        elif named is not None:
            why = f"{named.name} names it"
        elif found.file.modified_at_nanos > cutoff:
            why = "younger than the grace"
        else:
            why = None
        yield Item(
            kind=Kind.ORPHAN,
            shard_id=None,
            path=found.file.path,
            size_bytes=found.file.size_bytes,
            action=Action.DELETE if why is None else Action.KEEP,
            reason=why or "a shard snapshot whose index entry no retained version has",
            stages=() if why else ((found.file,),),
        )


# ---- a table whose MemWAL index is gone


def plan_adoption(
    version: int, evidence: Evidence, limits: GarbageLimits, now_nanos: int
) -> GarbagePlan:
    """What to delete of a table whose latest version has no MemWAL index: whole shards.

    Not while any retained version has one. Restoring that version brings its progress back, and a
    writer that starts a removed shard at generation 1 under old progress would lose its rows.
    """
    cutoff = cutoff_nanos(limits, now_nanos)
    unreadable = unreadable_text(evidence, version)
    holding = next((v for v in evidence.versions if v.merged is not None), None)
    if not limits.adopt_orphans:
        shut: str | None = (
            "the table has no MemWAL index any more; --adopt-orphans deletes what it left"
        )
    elif unreadable is not None:
        shut = unreadable
    elif holding is not None:
        shut = f"{holding.name} is retained and has the MemWAL index; expire it (--retention) first"
    else:
        shut = None
    items: list[Item] = []
    for found in evidence.shards.values():
        why = shut or _adoption_held(found, cutoff)
        items.append(
            Item(
                kind=Kind.ORPHAN,
                shard_id=found.shard_id,
                path=layout.shard_folder(found.shard_id),
                size_bytes=_size(found.files),
                action=Action.DELETE if why is None else Action.KEEP,
                reason=why or "the table has no MemWAL index at any retained version",
                stages=() if why else _shard_stages(found),
            )
        )
        items += [_kept_stranger(found.shard_id, other) for other in found.others]
    items += _leftovers(evidence, limits, now_nanos)
    items += _snapshots(evidence, unreadable, cutoff)
    broken = tuple(
        BrokenShard(shard_id=s.shard_id, error=s.problem)
        for s in evidence.shards.values()
        if s.problem is not None
    )
    return GarbagePlan(
        items=tuple(items),
        refusal=None if unreadable is not None and limits.adopt_orphans else shut,
        broken=broken,
        problems=evidence.problems,
    )


def _adoption_held(found: ShardEvidence, cutoff: int) -> str | None:
    if found.problem is not None:
        return f"the shard can't be read: {found.problem}"
    if not found.files:
        return "nothing in it is known"
    if _newest(found.files) > cutoff:
        return "its newest file is younger than the grace: a writer may be at work"
    return None


def _shard_stages(found: ShardEvidence) -> tuple[tuple[StoredFile, ...], ...]:
    """Manifests last: without them, a writer that comes back would replay what is left of the WAL.

    With them, a killed deletion leaves a shard that lists what is gone: an error, not old rows.
    """
    first: list[StoredFile] = []
    second: list[StoredFile] = []
    wal: list[StoredFile] = []
    last: list[StoredFile] = []
    below = layout.shard_folder(found.shard_id) + "/"
    for file in found.files:
        top, _, rest = file.path.removeprefix(below).partition("/")
        if top == "manifest":
            last.append(file)
        elif top == "wal":
            wal.append(file)
        elif rest.startswith(f"{layout.VERSIONS}/"):
            first.append(file)
        else:
            second.append(file)
    return tuple(tuple(stage) for stage in (first, second, wal, last) if stage)


def _size(files: Iterable[StoredFile]) -> int:
    return sum(f.size_bytes for f in files)


def _newest(files: Iterable[StoredFile]) -> int:
    """When the newest file was written; the end of time when there is none to judge by."""
    return max((f.modified_at_nanos for f in files), default=layout.U64_MAX)
