"""Carries a garbage plan out: drops generations from shard manifests, deletes what is unused.

Both are safe to kill anywhere (invariant 8). A drop is one put-if-absent; what it leaves is a
folder that no manifest names, which is what the second pass looks for. A deletion that was cut
short leaves fewer files of the same folder, which the next run finds again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from memwal import invariants
from memwal.backoff import backoff_seconds
from memwal.errors import Corruption, LostRace, MemWalError, Refused
from memwal.format import layout
from memwal.jobs.garbage.model import GarbageLimits, GarbagePlan, Item, Kind
from memwal.model import ShardId, ShardManifest, ShardStatus, StoredFile
from memwal.ports import Clock, Objects, ShardCommits, Steps, check_object_path


def no_steps(step: str) -> None:
    """The Steps port of a run that is not watched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """What came of one shard's drop. `paths` are the items that are no longer listed."""

    shard_id: ShardId
    paths: frozenset[str] = frozenset()
    manifest_version: int | None = None
    attempts: int = 0
    error: MemWalError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """One item to delete, as it travels to whoever deletes it."""

    path: str
    stages: tuple[tuple[StoredFile, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """What came of one item's deletion. `error` is None when all of it is gone."""

    path: str
    objects: int
    size_bytes: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationDropper:
    """Phase 1: takes generations out of shard manifests."""

    manifests: ShardCommits
    clock: Clock
    limits: GarbageLimits = GarbageLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit; raises when the run has lost its lease."""

    def run(self, plan: GarbagePlan, on_done: Callable[[int], None]) -> tuple[Dropped, ...]:
        """Drop what the plan says, shards side by side. Never raises a MemWalError."""
        drops = plan.drops
        if not drops:
            return ()
        found = []
        with ThreadPoolExecutor(min(self.limits.drops_in_flight_max, len(drops))) as pool:
            running = [pool.submit(self.drop, shard, items) for shard, items in drops.items()]
            for done, future in enumerate(running, start=1):
                found.append(future.result())
                on_done(done)
        return tuple(found)

    def drop(self, shard_id: ShardId, items: Sequence[Item]) -> Dropped:
        """Drop a shard's items in one commit; redone on a fresh manifest when a race is lost.

        A generation that was merged and covered stays so, so the plan still holds then; only what
        is still listed is dropped.
        """
        unwanted = {item.path for item in items}
        result = Dropped(shard_id=shard_id)
        try:
            for attempt in range(1, self.limits.drop_attempts_max + 1):
                result = replace(result, attempts=attempt)
                try:
                    version = self._try(shard_id, unwanted)
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

    def _try(self, shard_id: ShardId, unwanted: set[str]) -> int:
        current = self.manifests.latest(shard_id)
        if current is None:
            raise Corruption(f"shard {shard_id} lost its manifest")
        if current.status is not ShardStatus.ACTIVE:
            raise Refused(f"shard {shard_id} is {current.status.name} by now: left alone")
        proposed = without(current, unwanted)
        if proposed == current:
            return current.version
        invariants.check_writer_untouched(current, proposed)
        self.before_commit()
        self.steps("before_drop")
        landed = self.manifests.commit(current, proposed)
        self.steps("dropped")
        return landed.version

    def _wait(self, attempt: int) -> None:
        longest = self.limits.drop_wait_seconds_max
        self.clock.sleep(backoff_seconds(self.clock, attempt, longest, first_seconds=0.02))


def without(manifest: ShardManifest, unwanted: set[str]) -> ShardManifest:
    """The manifest without some generations, by path; nothing else changes."""
    folder = layout.shard_folder(manifest.shard_id)
    return replace(
        manifest,
        flushed_generations=tuple(
            g for g in manifest.flushed_generations if f"{folder}/{g.path}" not in unwanted
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleter:
    """Phase 2: deletes objects, in bounded batches."""

    objects: Objects
    limits: GarbageLimits = GarbageLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each batch; raises when the run has lost its lease."""

    def run(
        self, deletions: Sequence[Deletion], on_done: Callable[[int], None] = lambda objects: None
    ) -> tuple[Deleted, ...]:
        """Delete items stage by stage; an item whose stage failed goes no further.

        Never raises a MemWalError: what could not be deleted is told for each item.
        """
        gone: dict[str, list[StoredFile]] = {d.path: [] for d in deletions}
        failed: dict[str, str] = {}
        deepest = max((len(d.stages) for d in deletions), default=0)
        for depth in range(deepest):
            if depth:
                self.steps("mid_delete")
            batch = [
                (d.path, file)
                for d in deletions
                if depth < len(d.stages) and d.path not in failed
                for file in d.stages[depth]
            ]
            for start in range(0, len(batch), self.limits.delete_call_objects_max):
                part = batch[start : start + self.limits.delete_call_objects_max]
                self._delete(part, gone, failed)
                on_done(sum(len(files) for files in gone.values()))
        return tuple(
            Deleted(
                path=d.path,
                objects=len(gone[d.path]),
                size_bytes=sum(f.size_bytes for f in gone[d.path]),
                error=failed.get(d.path),
            )
            for d in deletions
        )

    def _delete(
        self,
        part: Sequence[tuple[str, StoredFile]],
        gone: dict[str, list[StoredFile]],
        failed: dict[str, str],
    ) -> None:
        for path, file in part:
            check_below(path, file)
        try:
            self.before_commit()
            self.steps("before_delete")
            result = self.objects.delete([file.path for _, file in part])
        except MemWalError as error:
            # Some of it may be gone; the next run finds what is not.
            failed.update((path, str(error)) for path, _ in part)
            return
        refused = dict(result.failed)
        for path, file in part:
            if file.path in refused:
                failed[path] = f"{file.path}: {refused[file.path]}"
            else:
                gone[path].append(file)


def check_below(path: str, file: StoredFile) -> None:
    """Raise InvariantBroken when an item would delete anything but itself (invariant 10)."""
    try:
        check_object_path(file.path)
    except ValueError as error:
        raise invariants.InvariantBroken(10, str(error)) from None
    if file.path != path and not file.path.startswith(f"{path}/"):
        raise invariants.InvariantBroken(10, f"{file.path} is not below {path}")


def check_item(item: Item) -> None:
    """Raise InvariantBroken for an item whose path is none that garbage may have (invariant 10)."""
    parts = item.path.split("/")
    match parts:
        case [layout.MAINTENANCE, "tmp", *rest] if rest and item.kind is Kind.ORPHAN:
            return
        case [layout.MAINTENANCE, "ingest", ingest, number, *rest] if item.kind is Kind.INGEST:
            if layout.is_ingest_id(ingest) and layout.parse_ingest_round(number) is not None:
                match rest:
                    case [] | ["staged", _]:
                        return
        case ["_indices", uuid, "index.lance"] if layout.is_shard_folder(uuid):
            return
        case [layout.MEM_WAL, shard] if layout.is_shard_folder(shard) and item.kind is Kind.ORPHAN:
            return
        case [layout.MEM_WAL, shard, name] if layout.is_shard_folder(shard):
            if layout.parse_generation_folder(name) == item.generation is not None:
                return
        case [layout.MEM_WAL, shard, "wal", name] if layout.is_shard_folder(shard):
            if layout.parse_wal_entry_name(name) is not None and item.kind is Kind.WAL_ENTRY:
                return
        case _:
            pass
    raise invariants.InvariantBroken(10, f"{item.path!r} is not to be deleted")


def as_deletions(plan: GarbagePlan) -> tuple[Deletion, ...]:
    """What the plan deletes, each path checked once more (invariant 10)."""
    for item in plan.deletes:
        check_item(item)
    return tuple(Deletion(path=i.path, stages=i.stages) for i in plan.deletes)


def in_units(deletions: Sequence[Deletion], objects_max: int) -> list[tuple[Deletion, ...]]:
    """Group deletions into units of about so many objects; one item is never split."""
    units: list[tuple[Deletion, ...]] = []
    current: list[Deletion] = []
    size = 0
    for deletion in deletions:
        objects = sum(len(stage) for stage in deletion.stages)
        if current and size + objects > objects_max:
            units.append(tuple(current))
            current, size = [], 0
        current.append(deletion)
        size += objects
    if current:
        units.append(tuple(current))
    return units
