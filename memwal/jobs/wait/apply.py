"""Waits until what was flushed is merged, indexed or collected. Changes nothing.

A look costs a few requests: the table's latest version, its manifest when it is a new one, and only
for `collected` the shards that are merged and not collected yet. No generation is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from memwal.errors import Missing, NotATable, StoreUnavailable
from memwal.jobs.wait.plan import Until, find_collected, find_indexed, find_merged, find_missing
from memwal.model import MemWalState, ShardId, VersionManifest
from memwal.ports import Clock, ShardCommits, Views
from memwal.threads import side_by_side

_READERS_MAX = 16
_EXPIRED_MAX = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitLimits:
    """How often to look: pauses grow from the first to the longest, randomised by a quarter."""

    first_wait_seconds: float = 0.5
    wait_seconds_max: float = 10.0
    growth: float = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Waited:
    """The result of a wait. `missing` are shards short of their target, and how far each is."""

    missing: Mapping[ShardId, int]
    version: int
    looks: int


@dataclass(kw_only=True)
class Waiter:
    """Waits on one table. `folders` returns the numbers of a shard's generation folders.

    `tell` is called with what is missing after each look that found a change. `readers_max` shards
    are looked at side by side.
    """

    views: Views
    shards: ShardCommits
    folders: Callable[[ShardId], Iterable[int]]
    clock: Clock
    limits: WaitLimits = WaitLimits()
    tell: Callable[[Mapping[ShardId, int]], None] = lambda missing: None
    readers_max: int = _READERS_MAX
    _manifest: VersionManifest | None = field(init=False, default=None)
    _reached: dict[ShardId, int] = field(init=False, default_factory=dict)

    def run(self, until: Until, target: Mapping[ShardId, int], *, timeout_seconds: float) -> Waited:
        """Look until nothing is missing or the time is over: at least once, and once at the end.

        A store that does not answer is tried again. Raises StoreUnavailable if it does not answer
        at the end, and NotATable if the table or its MemWAL index goes away.
        """
        deadline = self.clock.monotonic_seconds() + timeout_seconds
        wait = self.limits.first_wait_seconds
        missing: dict[ShardId, int] | None = None
        looks = expired = 0
        while True:
            looks += 1
            try:
                now = find_missing(target, self._look(until, target))
            except (Missing, StoreUnavailable) as error:
                # For Missing the store did answer: the version expired between two requests. So it
                # gets a few more looks after the deadline.
                if self.clock.monotonic_seconds() >= deadline:
                    expired += 1
                    if not isinstance(error, Missing) or expired > _EXPIRED_MAX:
                        raise StoreUnavailable(str(error)) from None
            else:
                if now != missing:
                    self.tell(now)
                missing = now
                over = self.clock.monotonic_seconds() >= deadline
                if over or not missing:
                    version = 0 if self._manifest is None else self._manifest.version
                    return Waited(missing=missing, version=version, looks=looks)
            left = deadline - self.clock.monotonic_seconds()
            self.clock.sleep(max(0.0, min(wait * (0.75 + self.clock.random() / 2), left)))
            wait = min(wait * self.limits.growth, self.limits.wait_seconds_max)

    def _look(self, until: Until, target: Mapping[ShardId, int]) -> Mapping[ShardId, int]:
        version = self.views.table_version()
        if self._manifest is None or self._manifest.version != version:
            self._manifest = self.views.manifest(version)
        manifest, state = self._manifest, self._manifest.mem_wal
        if state is None:
            raise NotATable(f"version {version} has no MemWAL index any more")
        match until:
            case Until.MERGED:
                return {shard: find_merged(state, shard) for shard in target}
            case Until.INDEXED:
                return {shard: find_indexed(manifest, state, shard) for shard in target}
            case Until.COLLECTED:
                return self._look_for_collected(state, target)

    def _look_for_collected(
        self, state: MemWalState, target: Mapping[ShardId, int]
    ) -> Mapping[ShardId, int]:
        """How far each shard is collected.

        Only shards whose target is merged are asked about, and none again that reached it.
        """
        asked = [
            shard
            for shard, wanted in target.items()
            if self._reached.get(shard, 0) < wanted <= find_merged(state, shard)
        ]

        def look(shard: ShardId) -> int:
            manifest = self.shards.latest(shard)
            listed = () if manifest is None else manifest.flushed_generations
            left = {*(g.generation for g in listed), *self.folders(shard)}
            return find_collected(find_merged(state, shard), left)

        found = side_by_side(look, asked, self.readers_max)
        self._reached.update(zip(asked, found, strict=True))
        return self._reached
