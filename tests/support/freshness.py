"""How fresh a table is, seen from outside: by what is stored, never by what a job tells."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.indexes import covering_indexes
from memwal.model import MemWalState, ShardId, TableView, VersionManifest
from memwal.run.stores import Stores

Generation = tuple[ShardId, int]


# ---- while it happens


@dataclass(frozen=True, kw_only=True)
class Lag:
    """Of one table at one time: how long its oldest generation has waited, since it was seen."""

    at: float
    table: str
    merged_seconds: float
    indexed_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.merged_seconds, self.indexed_seconds)


class LagSampler(threading.Thread):
    """Looks at tables again and again, until it is told to `stop`.

    At those in `every`, by name, it looks at one time of so many.
    """

    def __init__(
        self,
        tables: Mapping[str, Stores],
        every_seconds: float = 0.5,
        every: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(name="lag sampler", daemon=True)
        self.samples: list[Lag] = []
        self.failures: list[MemWalError] = []
        self._tables = tables
        self._every_seconds = every_seconds
        self._every = every or {}
        self._seen: dict[tuple[str, Generation], float] = {}
        self._indexed: dict[str, set[Generation]] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        for turn in count():
            if self._stopped.wait(self._every_seconds):
                return
            for name, stores in self._tables.items():
                if turn % self._every.get(name, 1):
                    continue
                try:
                    self.samples.append(self._look(name, stores))
                except MemWalError as error:  # it changed faster than it could be looked at
                    self.failures.append(error)

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def latest(self, table: str) -> Lag | None:
        return next((lag for lag in reversed(self.samples) if lag.table == table), None)

    def _look(self, name: str, stores: Stores) -> Lag:
        began = time.time()
        view = stores.views.table()
        pending, unindexed = waiting(view)
        # Lance forgets for a moment how far an index has come, as when fragments are rewritten.
        listed = {
            (s.shard_id, g.generation) for s in view.shards for g in s.manifest.flushed_generations
        }
        indexed = self._indexed.setdefault(name, set())
        indexed |= listed - pending - unindexed
        unindexed -= indexed
        waits = {}
        for generation in {*pending, *unindexed}:
            waits[generation] = began - self._seen.setdefault((name, generation), began)
        return Lag(
            at=began,
            table=name,
            merged_seconds=max((waits[g] for g in pending), default=0.0),
            indexed_seconds=max((waits[g] for g in unindexed), default=0.0),
        )


def waiting(view: TableView) -> tuple[set[Generation], set[Generation]]:
    """Generations that are not merged; and those listed and merged that an index lacks."""
    names = covering_indexes(view.manifest, view.mem_wal)
    pending, unindexed = set(), set()
    for shard in view.shards:
        indexed = _indexed(view.mem_wal, names, shard.shard_id)
        for found in shard.manifest.flushed_generations:
            generation = shard.shard_id, found.generation
            if found.generation > shard.merged_generation:
                pending.add(generation)
            elif found.generation > indexed:
                unindexed.add(generation)
    return pending, unindexed


def _indexed(state: MemWalState, names: Iterable[str], shard: ShardId) -> int:
    """Up to which generation every index has caught up."""
    merged = state.merged.get(shard, 0)
    return min((state.index_catchup.get(n, {}).get(shard, 0) for n in names), default=merged)


# ---- afterwards


@dataclass(frozen=True, kw_only=True)
class Times:
    """When a table's generations were flushed, merged, indexed; by the store's clock, seconds."""

    flushed: Mapping[Generation, float]
    merged: Mapping[Generation, float] = field(default_factory=dict)
    indexed: Mapping[Generation, float] = field(default_factory=dict)

    def seconds(self, stage: Mapping[Generation, float], until: float) -> list[float]:
        """From flush to that stage; what never came there has waited until then."""
        return [stage.get(g, until) - at for g, at in self.flushed.items()]


def read_times(stores: Stores, since: float) -> Times:
    """Of the generations flushed since then. All versions and generations have to be there still.

    A generation was flushed when the last of its files was stored, which is just before its
    shard's manifest lists it.
    """
    view = stores.views.table()
    flushed = {g: at for g, at in _flush_times(stores, view).items() if at >= since}
    merged: dict[Generation, float] = {}
    indexed: dict[Generation, float] = {}
    missing = {shard: sorted(n for s, n in flushed if s == shard) for shard, _ in flushed}
    behind = {shard: list(numbers) for shard, numbers in missing.items()}
    for at, manifest in _versions(stores, since):
        state = manifest.mem_wal
        if state is None:
            continue
        names = covering_indexes(manifest, state)
        for shard in missing:
            _advance(merged, missing[shard], shard, state.merged.get(shard, 0), at)
            _advance(indexed, behind[shard], shard, _indexed(state, names, shard), at)
    return Times(flushed=flushed, merged=merged, indexed=indexed)


def _advance(
    times: dict[Generation, float], left: list[int], shard: ShardId, up_to: int, at: float
) -> None:
    while left and left[0] <= up_to:
        times[shard, left.pop(0)] = at


def _flush_times(stores: Stores, view: TableView) -> dict[Generation, float]:
    found: dict[Generation, float] = {}
    for shard in view.shards:
        shard_id = shard.shard_id
        listed = {
            layout.generation_folder(shard_id, g.path, g.generation): (shard_id, g.generation)
            for g in shard.manifest.flushed_generations
        }
        for file in stores.objects.list(layout.shard_folder(shard_id)) if listed else ():
            generation = listed.get("/".join(file.path.split("/")[:3]))
            if generation is not None:
                at = file.modified_at_nanos / 1e9
                found[generation] = max(found.get(generation, 0.0), at)
    return found


def _versions(stores: Stores, since: float) -> list[tuple[float, VersionManifest]]:
    """The versions committed since then, oldest first, with the time at which each was stored."""
    found = []
    for file in stores.objects.list(layout.VERSIONS):
        version = layout.parse_table_manifest_name(file.path.rsplit("/", 1)[-1])
        at = file.modified_at_nanos / 1e9
        if version is not None and not layout.is_detached(version) and at >= since:
            found.append((version, at))
    return [(at, stores.table_manifests.read(version)) for version, at in sorted(found)]


def lag_over_time(times: Sequence[Times], stage: str, points: Sequence[float]) -> list[float]:
    """At each of these times, how long the oldest flushed generation had waited for the stage."""
    spans = [
        (at, getattr(table, stage).get(generation, float("inf")))
        for table in times
        for generation, at in table.flushed.items()
    ]
    return [
        max((point - start for start, end in spans if start <= point < end), default=0.0)
        for point in points
    ]
