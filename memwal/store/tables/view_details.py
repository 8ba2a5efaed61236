"""What a view gains beyond its look: sizes that writers left out, ages, and the causes of holes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from memwal.errors import MemWalError
from memwal.model import FlushedGeneration, ShardId, ShardView, TableView
from memwal.rows.holes import find_holes
from memwal.store.shards.manifests import ShardManifests
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.lineage import StoredLineage
from memwal.threads import side_by_side

# How many generations of unknown size are looked into for one view.
_SIZES_MAX = 1000
# A hole's cause is for people: it is looked up in so many shards, for so many holes of each.
_HOLED_SHARDS_MAX = 20
_HOLES_MAX = 8


@dataclass(frozen=True, slots=True)
class ViewDetails:
    """Reads the details of one table's views. Sizes are remembered."""

    _tables: LanceTables
    _manifests: ShardManifests
    _lineage: StoredLineage
    _readers_max: int
    _sizes: dict[str, FlushedGeneration | None] = field(init=False, default_factory=dict)

    def add_sizes(self, view: TableView) -> TableView:
        """With the sizes of pending generations whose writers recorded none, oldest first."""
        unsized = [
            (shard.shard_id, g)
            for shard in view.shards
            for g in shard.pending
            if None in (g.in_memory_bytes, g.physical_rows)
        ]
        if not unsized:
            return view
        new = [(shard, g) for shard, g in unsized if g.path not in self._sizes][:_SIZES_MAX]
        found = side_by_side(
            lambda pair: self._tables.generation_size(*pair), new, self._readers_max
        )
        self._sizes.update((g.path, size) for (_, g), size in zip(new, found, strict=True))
        by_shard: dict[ShardId, dict[int, FlushedGeneration]] = {}
        for shard_id, g in unsized:
            size = self._sizes.get(g.path)
            if size is not None:
                by_shard.setdefault(shard_id, {})[g.generation] = size
        shards = (replace(s, sized=by_shard.get(s.shard_id, {})) for s in view.shards)
        return replace(view, shards=tuple(shards))

    def add_ages(self, view: TableView) -> TableView:
        """With the time at which each shard's oldest pending generation was flushed."""
        waiting = [shard for shard in view.shards if shard.pending]
        aged = side_by_side(self._add_age, waiting, self._readers_max)
        return _replace_shards(view, aged)

    def add_causes(self, view: TableView) -> TableView:
        """With what earlier manifests say of missing generations."""
        holed = [s for s in view.shards if any(find_holes(s))][:_HOLED_SHARDS_MAX]
        found = side_by_side(self._add_cause, holed, self._readers_max)
        return _replace_shards(view, found)

    def _add_age(self, shard: ShardView) -> ShardView:
        try:
            at = self._lineage.flushed_at_nanos(shard.shard_id, shard.pending[0])
        except MemWalError:
            at = None  # an age is for people and triggers; what is wrong shows when it is merged
        return replace(shard, oldest_pending_flushed_at_nanos=at)

    def _add_cause(self, shard: ShardView) -> ShardView:
        holes = islice(find_holes(shard), _HOLES_MAX)
        ends = {number for hole in holes for number in (hole.first, hole.last)}
        listed = {number: self._manifests.was_listed(shard.manifest, number) for number in ends}
        return replace(
            shard, listed_before={n: was for n, was in listed.items() if was is not None}
        )


def _replace_shards(view: TableView, shards: Sequence[ShardView]) -> TableView:
    """With these shards in place of those that they were made of."""
    by_id = {shard.shard_id: shard for shard in shards}
    return replace(view, shards=tuple(by_id.get(s.shard_id, s) for s in view.shards))
