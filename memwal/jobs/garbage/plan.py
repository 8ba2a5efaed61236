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

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

from memwal.errors import Refused
from memwal.format import layout
from memwal.format.layout import SYSTEM_INDEXES
from memwal.indexes import covering_indexes
from memwal.jobs.garbage.kinds.ingest import ingests
from memwal.jobs.garbage.kinds.orphan import kept_stranger, leftovers, snapshots
from memwal.jobs.garbage.model import (
    Action,
    Evidence,
    GarbageLimits,
    GarbagePlan,
    GenerationFolder,
    Item,
    Kind,
    RetainedVersion,
    ShardEvidence,
    WalFile,
    cutoff_nanos,
    held_by_claims,
    newest_of,
    past_version,
    size_of,
    unknown_below,
    unreadable_text,
    wal_floor,
)
from memwal.model import (
    BrokenShard,
    ShardId,
    ShardManifest,
    ShardStatus,
    ShardView,
    StoredFile,
    TableView,
)

RETENTION_SECONDS_MIN = 86_400.0
GRACE_SECONDS_MIN = 600.0
INGEST_IDLE_SECONDS_MIN = 86_400.0


def check_limits(
    limits: GarbageLimits, *, retention_seconds: float | None, short_allowed: bool
) -> None:
    """Raise Refused for a retention or idle time under a day, or a grace under ten minutes."""
    if short_allowed:
        return
    if retention_seconds is not None and retention_seconds < RETENTION_SECONDS_MIN:
        raise Refused(
            f"a retention of {retention_seconds:g} s is shorter than a day: readers and time "
            "travel lose versions that they may still use; pass --allow-short-retention if not"
        )
    if limits.grace_seconds < GRACE_SECONDS_MIN:
        raise Refused(
            f"a grace of {limits.grace_seconds:g} s is shorter than ten minutes: readers that hold "
            "an older shard manifest would find generations gone; pass --allow-short-retention if "
            "there are none"
        )
    if limits.ingest_idle_seconds < INGEST_IDLE_SECONDS_MIN:
        raise Refused(
            f"ingests idle for {limits.ingest_idle_seconds:g} s, less than a day, may be resumed "
            "yet, and could not be any more; pass --allow-short-retention if none will be"
        )


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


def without_versions(evidence: Evidence, expired: Set[int]) -> Evidence:
    """The evidence as it will be once these versions of main are gone."""
    left = tuple(v for v in evidence.versions if not (v.on_main and v.version in expired))
    return replace(evidence, versions=left)


def never_merged(view: TableView) -> tuple[str, ...]:
    """Shards with work that no merge has recorded yet, and shards that can't be read.

    The merger takes them only while a retained version shows that the MemWAL index existed when
    they were flushed (`memwal.rows.lineage`), so no version may be expired until they are
    merged: live rows would be refused.
    """
    waiting = [s.shard_id for s in view.shards if s.pending and s.merged_generation == 0]
    return (*waiting, *(b.shard_id for b in view.broken))


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
    items += leftovers(evidence, limits, now_nanos)
    items += snapshots(evidence, gates.unreadable, cutoff)
    items += ingests(evidence, limits, now_nanos)
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
        there = {entry.name for entry in view.manifest.indexes}
        self._indexes = covering_indexes(view.manifest, state)
        self.warnings = tuple(
            f"maintained index {name!r} is gone from the table: it holds no generation back"
            for name in sorted(set(state.maintained_indexes) - there - SYSTEM_INDEXES)
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
        # Found once: folders and manifests are both many in a shard that was never collected.
        self._past = self._manifest_before_grace()
        past = () if self._past is None else self._past.flushed_generations
        self._listed_before = {g.path for g in past}

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
                size_bytes=size_of(folder.files) if folder else 0,
                action=Action.DROP if why is None else Action.KEEP,
                reason=why or "merged at every retained version, and every index has caught up",
                generation=generation.generation,
            )
        for folder in self._found.folders:
            if folder.name not in self._listed:
                yield self._folder(folder, shut)
        for other in self._found.others:
            yield kept_stranger(self._shard.shard_id, other)
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

    def _manifest_before_grace(self) -> ShardManifest | None:
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
            size_bytes=size_of(folder.files),
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
        past = self._past
        if past is None:
            return "no manifest is older than the grace"
        if folder.name in self._listed_before:
            return f"manifest version {past.version} named it when the grace began"
        if number >= past.current_generation:
            return "it was flushed after the grace began"
        if newest_of(folder.files) > self._cutoff:
            return "its newest file is younger than the grace"
        return None

    def _wal(self, shut: str | None) -> Iterator[Item]:
        highest = max((w.position for w in self._found.wal), default=0)
        past = self._past
        numbers = {g.generation for g in self._manifest.flushed_generations}
        numbers |= {f.generation for f in self._found.folders}
        claims = held_by_claims(self._found.wal, self._manifest.writer_epoch)
        unknown = unknown_below(self._found.wal)
        for entry in self._found.wal:
            why = (
                shut
                or self._wal_held(entry, highest, past, numbers)
                or _claim_holds(entry, claims)
                or _unknown_holds(entry, unknown)
            )
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
        if entry.position > wal_floor(past):
            return "was covered after the grace began"
        if entry.file.modified_at_nanos > self._cutoff:
            return "younger than the grace"
        if entry.problem is not None:
            return f"can't be read: {entry.problem}"
        if not entry.read:
            was = "a fence sentinel when it was last read: " if entry.fence_sentinel else ""
            return f"{was}not looked at in this run"
        if entry.fence_sentinel:
            return "a fence sentinel: it stops a stalled writer"
        if entry.generation is None or entry.generation < 1:
            return "does not say which generation covers it"
        if entry.generation in numbers:
            return f"generation {entry.generation}, which covers it, is not deleted yet"
        if entry.generation >= self._manifest.current_generation:
            return f"generation {entry.generation} is not flushed yet"
        return self._gates.version_holds(self._shard.shard_id, entry.generation)


def _claim_holds(entry: WalFile, claims: Mapping[int, int]) -> str | None:
    """Invariant 7 for a writer that may be stalled inside its claim."""
    epoch = claims.get(entry.position)
    if epoch is None:
        return None
    return f"leads the claim of epoch {epoch}, which left no row, to a newer sentinel"


def _unknown_holds(entry: WalFile, unknown: int) -> str | None:
    """Invariant 7 where what ends a claim may be what could not be looked at."""
    if entry.position >= unknown:
        return None
    return f"below position {unknown}, which was not looked at or can't be read"


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
            size_bytes=size_of(folder.files),
            action=Action.KEEP,
            reason=reason,
            generation=folder.generation,
        )
    for other in found.others:
        yield kept_stranger(found.shard_id, other)
