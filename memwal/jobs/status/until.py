"""`memwal status --until`: waits until what was flushed is merged, indexed or collected.

A look costs a few requests: the table's latest version, its manifest when it is a new one, and only
for `collected` the shards that are merged and not collected yet. No generation is opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from memwal.errors import Missing, NotATable, StoreUnavailable, Usage
from memwal.format.layout import find_shard, parse_shard
from memwal.indexes import covering_indexes
from memwal.jobs.status.request import StatusRequest
from memwal.model import MemWalState, ShardId, TableView, VersionManifest
from memwal.ports import Clock, ShardCommits, Views
from memwal.text import count_of
from memwal.threads import side_by_side

_NAMED_MAX = 10
_READERS_MAX = 16
_EXPIRED_MAX = 5
# Pauses grow from the first to the longest, randomised by a quarter.
_FIRST_WAIT_SECONDS, _WAIT_SECONDS_MAX, _GROWTH = 0.5, 10.0, 1.5


class Step(Enum):
    """What has to be true of every generation up to the target.

    MERGED: its rows are in the base table. INDEXED: it is merged, and every index has caught up
    that has to before the garbage job may take it. COLLECTED: it is merged, the shard's manifest
    no longer lists it, and its folder is gone.
    """

    MERGED = "merged"
    INDEXED = "indexed"
    COLLECTED = "collected"


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """What to wait for, and how long. `generations` has targets by shard id, or its first letters.

    Without any, the target is what was flushed when the run began.
    """

    step: Step
    timeout_seconds: float
    generations: Mapping[str, int] = field(default_factory=dict)


def choose_until(request: StatusRequest) -> Until | None:
    """What a status is asked to wait for. Raises Usage."""
    for shard, number in request.generation:
        if not re.fullmatch("[1-9][0-9]{0,18}", number):
            text = f"--generation '{shard}={number}'"
            raise Usage(f"{text}: expected SHARD=N with a generation from 1 on")
    if request.until is None:
        if request.generation:
            raise Usage("--generation says what --until waits for: give that too")
        return None
    return Until(
        step=Step(request.until),
        timeout_seconds=request.timeout_seconds,
        generations={parse_shard(shard): int(number) for shard, number in request.generation},
    )


def choose_target(view: TableView, named: Mapping[str, int]) -> Mapping[ShardId, int]:
    """The generation to wait for, by shard: those named, or each shard's highest flushed one.

    A shard may be named by the first characters of its id. Raises Usage for one that the table does
    not have, and the error of a shard whose manifest is needed and can't be read.
    """
    broken = {ShardId(b.shard_id): b.error for b in view.broken}
    there = set(view.shard_ids)
    asked: dict[ShardId, int] = {}
    for text, generation in named.items():
        shard = find_shard(text, there, view.uri)
        if shard in asked:
            raise Usage(f"--generation names shard {shard} twice")
        asked[shard] = generation
    for shard in asked or broken:
        if shard in broken:
            raise broken[shard]
    if asked:
        return asked
    highest = {
        s.shard_id: max(
            (s.merged_generation, *(g.generation for g in s.manifest.flushed_generations))
        )
        for s in view.shards
    }
    return {shard: generation for shard, generation in highest.items() if generation > 0}


def find_merged(state: MemWalState, shard: ShardId) -> int:
    """The generation up to which the shard is merged."""
    return state.merged.get(shard, 0)


def find_indexed(manifest: VersionManifest, state: MemWalState, shard: ShardId) -> int:
    """The generation up to which the shard is merged and every index has caught up."""
    return state.caught_up_to(shard, covering_indexes(manifest, state))


def find_collected(merged: int, left: Iterable[int]) -> int:
    """The generation up to which all are merged and gone; `left` are listed or have a folder."""
    return min(merged, min(left, default=merged + 1) - 1)


def find_missing(
    target: Mapping[ShardId, int], reached: Mapping[ShardId, int]
) -> dict[ShardId, int]:
    """The shards that have not reached their target, and how far each is."""
    return {s: reached.get(s, 0) for s, wanted in target.items() if reached.get(s, 0) < wanted}


def describe_missing(
    step: Step, target: Mapping[ShardId, int], missing: Mapping[ShardId, int]
) -> str:
    """Describe in one line how far the shards have got."""
    done = len(target) - len(missing)
    text = f"{step.value}: {done} of {count_of(len(target), 'shard')}"
    named = [f"shard {s} at {g} of {target[s]}" for s, g in missing.items()]
    more = [f"and {len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return "; ".join([text, *named[:_NAMED_MAX], *more])


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
    tell: Callable[[Mapping[ShardId, int]], None] = lambda missing: None
    readers_max: int = _READERS_MAX
    _manifest: VersionManifest | None = field(init=False, default=None)
    _reached: dict[ShardId, int] = field(init=False, default_factory=dict)

    @property
    def version(self) -> int:
        """The version that was looked at last."""
        return 0 if self._manifest is None else self._manifest.version

    def run(
        self, step: Step, target: Mapping[ShardId, int], *, timeout_seconds: float
    ) -> Mapping[ShardId, int]:
        """Look until nothing is missing or the time is over: at least once, and once at the end.

        Returns the shards that fall short of their target, and how far each is. A store that does
        not answer is tried again. Raises StoreUnavailable if it does not answer at the end, and
        NotATable if the table or its MemWAL index goes away. Without a target there is no wait.
        """
        if not target:
            return {}
        deadline = self.clock.monotonic_seconds() + timeout_seconds
        wait = _FIRST_WAIT_SECONDS
        missing: dict[ShardId, int] | None = None
        expired = 0
        while True:
            try:
                now = find_missing(target, self._look(step, target))
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
                    return missing
            left = deadline - self.clock.monotonic_seconds()
            self.clock.sleep(max(0.0, min(wait * (0.75 + self.clock.random() / 2), left)))
            wait = min(wait * _GROWTH, _WAIT_SECONDS_MAX)

    def _look(self, step: Step, target: Mapping[ShardId, int]) -> Mapping[ShardId, int]:
        version = self.views.table_version()
        if self._manifest is None or self._manifest.version != version:
            self._manifest = self.views.manifest(version)
        manifest, state = self._manifest, self._manifest.mem_wal
        if state is None:
            raise NotATable(f"version {version} has no MemWAL index any more")
        match step:
            case Step.MERGED:
                return {shard: find_merged(state, shard) for shard in target}
            case Step.INDEXED:
                return {shard: find_indexed(manifest, state, shard) for shard in target}
            case Step.COLLECTED:
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
