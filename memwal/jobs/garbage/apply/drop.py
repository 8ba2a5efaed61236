"""Drops generations from shard manifests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from memwal import invariants
from memwal.errors import Corruption, LostRace, MemWalError, Refused
from memwal.format import layout
from memwal.jobs.garbage.model import GarbageLimits, GarbagePlan, Item
from memwal.model import ShardId, ShardManifest, ShardStatus
from memwal.ports import Clock, ShardCommits, Steps, backoff_seconds, no_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """The result of one shard's drop. `paths` are the items that are no longer listed."""

    shard_id: ShardId
    paths: frozenset[str] = frozenset()
    manifest_version: int | None = None
    attempts: int = 0
    error: MemWalError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationDropper:
    """Removes generations from shard manifests, shards side by side."""

    manifests: ShardCommits
    clock: Clock
    limits: GarbageLimits = GarbageLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit; raises when the run has lost its lease."""

    def run(self, plan: GarbagePlan, on_done: Callable[[int], None]) -> tuple[Dropped, ...]:
        """Drop what the plan says. Never raises a MemWalError: errors are in the results."""
        drops = plan.drops
        found = []
        with ThreadPoolExecutor(min(self.limits.drops_in_flight_max, len(drops))) as pool:
            running = [pool.submit(self.drop, shard, items) for shard, items in drops.items()]
            for done, future in enumerate(running, start=1):
                found.append(future.result())
                on_done(done)
        return tuple(found)

    def drop(self, shard_id: ShardId, items: Sequence[Item]) -> Dropped:
        """Drop a shard's items in one commit, retried on a fresh manifest when a race is lost.

        The plan still holds on a retry, since a generation that was merged and covered stays so.
        Items that are no longer listed by then count as dropped.
        """
        unwanted = {item.path for item in items}
        result = Dropped(shard_id=shard_id)
        try:
            for attempt in range(1, self.limits.drop_attempts_max + 1):
                result = replace(result, attempts=attempt)
                try:
                    version = self._drop_once(shard_id, unwanted)
                except LostRace:
                    self._wait(attempt)
                    continue
                return replace(result, paths=frozenset(unwanted), manifest_version=version)
        except MemWalError as error:
            return replace(result, error=error)
        return replace(
            result,
            error=LostRace(
                f"shard {shard_id}: its writer was faster {self.limits.drop_attempts_max} times; "
                "run again"
            ),
        )

    def _drop_once(self, shard_id: ShardId, unwanted: set[str]) -> int:
        current = self.manifests.latest(shard_id)
        if current is None:
            raise Corruption("MW-M06", f"shard {shard_id} lost its manifest")
        if current.status is not ShardStatus.ACTIVE:
            raise Refused("MW-M05", f"shard {shard_id} is {current.status.name} by now: left alone")
        proposed = remove_generations(current, unwanted)
        if proposed == current:
            return current.version
        invariants.check_writer_untouched(current, proposed)
        self.before_commit()
        self.steps("before_drop")
        committed = self.manifests.commit(current, proposed)
        self.steps("dropped")
        return committed.version

    def _wait(self, attempt: int) -> None:
        longest = self.limits.drop_wait_seconds_max
        self.clock.sleep(backoff_seconds(self.clock, attempt, longest, first_seconds=0.02))


def remove_generations(manifest: ShardManifest, unwanted: set[str]) -> ShardManifest:
    """The manifest without the generations at these paths, and otherwise unchanged."""
    folder = layout.shard_folder(manifest.shard_id)
    return replace(
        manifest,
        flushed_generations=tuple(
            g for g in manifest.flushed_generations if f"{folder}/{g.path}" not in unwanted
        ),
    )
