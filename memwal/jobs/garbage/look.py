"""One look at a table, and what still needs a generation in it. Pure.

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
from memwal.rows.former_merges import is_unrecorded
from memwal.text import iso_time


@dataclass(frozen=True, kw_only=True)
class Look:
    """What every kind of garbage plans by.

    `view` is None for a table whose MemWAL index is gone.
    """

    view: TableView | None
    version: int
    evidence: Evidence = Evidence()
    limits: GarbageLimits = GarbageLimits()
    now_nanos: int
    checkpointed: frozenset[int] = frozenset()
    """Versions of main that are there for checkpoints alone: these hold their cuts, and no more."""

    @property
    def cutoff_nanos(self) -> int:
        """When the grace began: what is younger stays."""
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
    def shards(self) -> tuple[ShardLook, ...]:
        """The shards that have a manifest."""
        if self.view is None:
            return ()
        return tuple(self._shard(shard, self.gates) for shard in self.view.shards)

    @cached_property
    def gates(self) -> Gates:
        """What may need a generation. Not of a table whose MemWAL index is gone."""
        if self.view is None:
            raise ValueError("no MemWAL index: nothing tells what may need a generation")
        kept = [c for c in self.evidence.checkpoints if self.is_kept(c)]
        return Gates(self.view, self.evidence, self.unreadable, kept, self.checkpointed)

    def _shard(self, shard: ShardView, gates: Gates) -> ShardLook:
        found = self.evidence.shards.get(shard.shard_id)
        if found is None:
            problem = Refused("MW-G04", "its folder was not listed")
            found = ShardEvidence(shard_id=shard.shard_id, problem=problem)
        return ShardLook(
            manifest=shard.manifest,
            found=found,
            gates=gates,
            cutoff_nanos=self.cutoff_nanos,
            unrecorded=is_unrecorded(shard),
            cited_version=self._find_cited(shard.shard_id),
        )

    def _find_cited(self, shard_id: ShardId) -> int | None:
        """The shard's lowest manifest version that a record cites; 0 where that isn't known."""
        versions = (v for v in self.evidence.versions if v.may_need_record(shard_id))
        named = {record_id for version in versions for record_id in version.settled_ids}
        records = [r for i, r in self.evidence.settled.items() if i in named]
        if None in records:  # one that this build does not understand
            return 0
        found = (r.shards.get(shard_id) for r in records if r is not None)
        return min((s.manifest_version for s in found if s is not None), default=None)

    def is_kept(self, checkpoint: Checkpoint) -> bool:
        """Whether it has not expired, and is, or may yet get, ready."""
        leftover_nanos = round(self.limits.leftover_age_seconds * 1e9)
        may_go_on = checkpoint.created_at_nanos > self.now_nanos - leftover_nanos
        return not checkpoint.is_expired(self.now_nanos) and (checkpoint.ready or may_go_on)

    def without_versions(self, expired: Set[int]) -> Look:
        """The same table once these versions of main are gone."""
        versions = self.evidence.versions
        left = tuple(v for v in versions if not (v.on_main and v.version in expired))
        return replace(self, evidence=replace(self.evidence, versions=left))


class Gates:
    """What may need a generation that a shard has, in one table."""

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
        """Up to where it is merged at the latest version."""
        return self._state.merged.get(shard_id, 0)

    def settled(self, shard_id: ShardId, named: Set[str]) -> int:
        """Up to where a former MemWAL index had merged it, by the records that a version names.

        Never what is listed.
        """
        shard = self._shards.get(shard_id)
        known = {} if shard is None else shard.settled
        return max((upto for record_id, upto in known.items() if record_id in named), default=0)

    def held(self, shard_id: ShardId, generation: int) -> str | None:
        """Why the generation is still needed; None when nothing holds it.

        An index that is yet to catch up reads what is listed: what is settled it waits for no more.
        """
        held = self.checkpoint_holds(shard_id, generation)
        held = held or self.version_holds(shard_id, generation)
        if held is None and generation > self.settled(shard_id, self._settled_ids):
            held = self.index_holds(shard_id, generation)
        return held

    def checkpoint_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """In no checkpoint's cut, whose version may be the only one that has not merged it."""
        cuts = self._cuts.get(shard_id, ())
        return next((why for needed, why in cuts if generation in needed), None)

    def version_holds(self, shard_id: ShardId, generation: int) -> str | None:
        """Merged at every retained version, which the latest is one of."""
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
        """Every index that has to cover it has caught up at the latest version."""
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
        """Nothing, where its progress may be what an adoption let go of later; the latest's is
        judged by the view.
        """
        merged = (version.merged or {}).get(shard_id, 0)
        is_latest = version.on_main and version.version == self._latest
        if not is_latest and any(merged in r for r in self._adopted.get(shard_id, ())):
            return 0
        return merged or self.settled(shard_id, version.settled_ids)


@dataclass(frozen=True, kw_only=True)
class ShardLook:
    """One shard that has a manifest."""

    manifest: ShardManifest
    found: ShardEvidence
    gates: Gates
    cutoff_nanos: int
    unrecorded: bool = False
    """Whether only older versions and manifests show what is settled of it."""
    cited_version: int | None = None
    """The manifest from which on all stay for records of what is settled of it; None: for none."""

    @property
    def shard_id(self) -> ShardId:
        """The shard's own."""
        return self.manifest.shard_id

    @property
    def shut(self) -> str | None:
        """Why nothing of the shard may be touched."""
        if self.found.problem is not None:
            return f"the shard can't be read: {self.found.problem}"
        if self.manifest.status is not ShardStatus.ACTIVE:
            return f"the shard is {self.manifest.status.name}"
        return None

    @cached_property
    def past(self) -> ShardManifest | None:
        """The manifest from before the grace, if it is the one that the listing calls for."""
        past = self.found.past
        wanted = past_version(self.found.manifests, self.cutoff_nanos)
        return past if past is not None and past.version == wanted else None
