"""What a look at a table shows, and what still needs a generation in it. Pure.

Every gate fails closed: evidence that is missing, unreadable or ambiguous keeps the candidate
(invariant 6), and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import cache, cached_property

from memwal.errors import Refused
from memwal.indexes import covering_indexes
from memwal.jobs.garbage.model import (
    Evidence,
    GarbageLimits,
    RetainedVersion,
    ShardEvidence,
    cutoff_nanos,
    past_version,
)
from memwal.model import (
    Checkpoint,
    ShardId,
    ShardManifest,
    ShardStatus,
    ShardView,
    TableView,
)
from memwal.rows.progress import is_unrecorded
from memwal.text import iso_time


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The state of a table from which every kind of garbage is planned.

    `view` is None for a table whose MemWAL index is gone.
    """

    view: TableView | None
    version: int
    evidence: Evidence = Evidence()
    limits: GarbageLimits = GarbageLimits()
    now_nanos: int
    checkpointed: frozenset[int] = frozenset()
    """Versions of main that only checkpoints keep: they hold the checkpoints' cuts, no more."""

    @property
    def cutoff_nanos(self) -> int:
        """When the grace time began; whatever is younger stays."""
        return cutoff_nanos(self.limits, self.now_nanos)

    @property
    def manifests(self) -> Mapping[ShardId, ShardManifest]:
        """The shards' latest manifests."""
        return {} if self.view is None else {s.shard_id: s.manifest for s in self.view.shards}

    @cached_property
    def unreadable(self) -> str | None:
        """Why the retained versions prove nothing; None when all of them were read."""
        for found in self.evidence.versions:
            if found.problem is not None:
                return f"{found.name} can't be read: {found.problem}"
        for problem in self.evidence.problems:
            return f"not every retained version is known: {problem}"
        if not any(v.on_main and v.version == self.version for v in self.evidence.versions):
            return f"version {self.version} is missing in the listing of versions"
        return None

    @cached_property
    def shards(self) -> tuple[ShardSurvey, ...]:
        """The shards that have a manifest."""
        if self.view is None:
            return ()
        return tuple(self._shard(shard, self.gates) for shard in self.view.shards)

    @cached_property
    def gates(self) -> Gates:
        """What may need a generation; raises ValueError for a table whose MemWAL index is gone."""
        if self.view is None:
            raise ValueError("no MemWAL index: nothing tells what may need a generation")
        kept = [c for c in self.evidence.checkpoints if self.is_kept(c)]
        return Gates(self.view, self.evidence, self.unreadable, kept, self.checkpointed)

    def _shard(self, shard: ShardView, gates: Gates) -> ShardSurvey:
        found = self.evidence.shards.get(shard.shard_id)
        if found is None:
            problem = Refused("MW-G04", "its folder was not listed")
            found = ShardEvidence(shard_id=shard.shard_id, problem=problem)
        return ShardSurvey(
            manifest=shard.manifest,
            found=found,
            gates=gates,
            cutoff_nanos=self.cutoff_nanos,
            unrecorded=is_unrecorded(shard),
            cited_version=self._find_cited(shard.shard_id),
        )

    def _find_cited(self, shard_id: ShardId) -> int | None:
        """The lowest manifest version of the shard that a needed record cites; None for none.

        0, which keeps all manifests, if one of the records can't be understood.
        """
        versions = (v for v in self.evidence.versions if v.may_need_record(shard_id))
        named = {record_id for version in versions for record_id in version.settled_ids}
        records = [r for i, r in self.evidence.settled.items() if i in named]
        if None in records:  # one that this build does not understand
            return 0
        found = (r.shards.get(shard_id) for r in records if r is not None)
        return min((s.manifest_version for s in found if s is not None), default=None)

    def is_kept(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint has not expired, and is ready or may still become so."""
        leftover_nanos = round(self.limits.leftover_age_seconds * 1e9)
        may_go_on = checkpoint.created_at_nanos > self.now_nanos - leftover_nanos
        return not checkpoint.is_expired(self.now_nanos) and (checkpoint.ready or may_go_on)

    def without_versions(self, expired: Set[int]) -> Survey:
        """The look as it would be if these versions of main were gone."""
        versions = self.evidence.versions
        left = tuple(v for v in versions if not (v.on_main and v.version in expired))
        return replace(self, evidence=replace(self.evidence, versions=left))


class Gates:
    """Decides for one table whether anything still needs a generation of a shard."""

    def __init__(
        self,
        view: TableView,
        evidence: Evidence,
        unreadable: str | None,
        kept: Iterable[Checkpoint] = (),
        checkpointed: Set[int] = frozenset(),
    ) -> None:
        self._state = view.mem_wal
        self._settled_ids = frozenset(view.settled_ids)
        self._latest = view.version
        self._adopted = evidence.adopted
        self._shards = evidence.shards
        self._indexes = covering_indexes(view.manifest, view.mem_wal)
        self._versions = [
            v
            for v in evidence.versions
            if v.merged is not None and not (v.on_main and v.version in checkpointed)
        ]
        self._unreadable = unreadable
        self._lowest = cache(self._lowest_version)
        self._cuts: dict[ShardId, list[tuple[range, str]]] = {}
        for checkpoint in kept:
            until = iso_time(checkpoint.expires_at_nanos) or "it is dropped"
            why = f"checkpoint {checkpoint.name!r} of {checkpoint.holder} needs it until {until}"
            for cut in checkpoint.shards:
                needed = range(cut.merged_generation + 1, cut.generation + 1)
                self._cuts.setdefault(cut.shard_id, []).append((needed, why))

    def merged(self, shard_id: ShardId) -> int:
        """The shard's merged watermark at the latest version; 0 without one."""
        return self._state.merged.get(shard_id, 0)

    def settled(self, shard_id: ShardId, named: Set[str]) -> int:
        """Up to which generation a former MemWAL index had merged the shard; 0 if unknown.

        `named` are the ids of the records that a version names, which alone count. Records never
        cover generations that the shard's manifest still lists.
        """
        shard = self._shards.get(shard_id)
        known = {} if shard is None else shard.settled
        return max((upto for record_id, upto in known.items() if record_id in named), default=0)

    def held(self, shard_id: ShardId, generation: int) -> str | None:
        """Why the generation is still needed; None when nothing holds it.

        Indexes don't hold settled generations: an index that has yet to catch up reads only what
        the manifest lists, and settled generations are no longer listed.
        """
        held = self.checkpoint_holds(shard_id, generation)
        held = held or self.version_holds(shard_id, generation)
        if held is None and generation > self.settled(shard_id, self._settled_ids):
            held = self.index_holds(shard_id, generation)
        return held

    def checkpoint_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """Why a checkpoint needs the generation; None when it is in no checkpoint's cut.

        The checkpoint's version may be the only one that has not merged it.
        """
        cuts = self._cuts.get(shard_id, ())
        return next((why for needed, why in cuts if generation in needed), None)

    def version_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """Why a retained version needs it; None when all, the latest included, have merged it."""
        if self._unreadable is not None:
            return self._unreadable
        merged = self.merged(shard_id) or self.settled(shard_id, self._settled_ids)
        if generation > merged:
            known = f"merged up to {merged} only" if merged else "not known to be merged"
            return f"pending: {known}"
        lowest = self._lowest(shard_id)
        if lowest is None:
            return "no retained version shows that it was merged"
        name, merged = lowest
        if generation > merged:
            return f"{name} is retained and has merged up to {merged} only"
        return None

    def index_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """Why an index needs it; None when all that must cover it have caught up.

        That is judged at the latest version.
        """
        for name in self._indexes:
            reached = self._state.index_catchup.get(name, {}).get(shard_id)
            if reached is None:
                return f"index {name!r} is not known to have caught up"
            if reached < generation:
                return f"index {name!r} has caught up to {reached} only"
        return None

    def _lowest_version(self, shard_id: ShardId) -> tuple[str, int] | None:
        found = ((v.name, self._merged_at(v, shard_id)) for v in self._versions)
        return min(found, key=lambda lowest: lowest[1], default=None)

    def _merged_at(self, version: RetainedVersion, shard_id: ShardId) -> int:
        """Up to which generation the version is known to have merged the shard; 0 if it isn't.

        Progress in a range that an adoption gave up proves no merge. The latest version is exempt:
        the view has already judged its progress.
        """
        merged = (version.merged or {}).get(shard_id, 0)
        is_latest = version.on_main and version.version == self._latest
        if not is_latest and any(merged in r for r in self._adopted.get(shard_id, ())):
            return 0
        return merged or self.settled(shard_id, version.settled_ids)


@dataclass(frozen=True, kw_only=True)
class ShardSurvey:
    """One shard that has a manifest."""

    manifest: ShardManifest
    found: ShardEvidence
    gates: Gates
    cutoff_nanos: int
    unrecorded: bool = False
    """Whether its settled generations are unrecorded: only old versions and manifests show them."""
    cited_version: int | None = None
    """The lowest manifest version that settled records cite; it and all above stay. None: none."""

    @property
    def shard_id(self) -> ShardId:
        """The shard's id."""
        return self.manifest.shard_id

    @property
    def shut(self) -> str | None:
        """Why nothing of the shard may be touched; None when it may."""
        if self.found.problem is not None:
            return f"the shard can't be read: {self.found.problem}"
        if self.manifest.status is not ShardStatus.ACTIVE:
            return f"the shard is {self.manifest.status.name}"
        return None

    @cached_property
    def past(self) -> ShardManifest | None:
        """The manifest that was the latest when the grace began; None if it is missing or another.

        Which version that is follows from the listing (`past_version`).
        """
        past = self.found.past
        wanted = past_version(self.found.manifests, self.cutoff_nanos)
        return past if past is not None and past.version == wanted else None
