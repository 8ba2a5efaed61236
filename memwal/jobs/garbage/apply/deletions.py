"""The changes that a collection of garbage makes to a table, each by itself.

Numbered objects (shard manifests, lease claims) are deleted one by one, lowest first. So any that
is left leads upwards to the newest. Names that have to stay taken are overwritten with stoppers
before anything is deleted. A run may be killed after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from memwal import invariants
from memwal.errors import Corruption, LostRace, MemWalError, Refused, StoreUnavailable
from memwal.format import layout
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.kinds import check_item, wal_entry
from memwal.jobs.garbage.model import Action, Evidence, GarbageLimits, GarbagePlan, Item, Sweep
from memwal.jobs.garbage.plan import plan_garbage
from memwal.jobs.garbage.survey import Survey
from memwal.model import Checkpoint, Cursor, ShardId, ShardManifest, ShardStatus, StoredFile
from memwal.ports import (
    Clock,
    Objects,
    ShardCommits,
    Steps,
    backoff_seconds,
    check_object_path,
    no_steps,
)
from memwal.report import AuditItem
from memwal.rows.progress import is_unrecorded

_CHECKED_EVERY = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class SurveyPlan:
    """The result of a look at a table. `expiring` are the versions that are to expire first.

    `shards` are those that were looked at; None for all. `sweep` lets a later look leave out shards
    that can't have changed; None if it has to look at all. Neither `never_merged` shards nor
    `untagged` checkpoints would survive an expiry: while there are any, no version expires. A
    `followed` cursor keeps old versions.
    """

    survey: Survey
    plan: GarbagePlan
    shards: Set[ShardId] | None = None
    sweep: Sweep | None = None
    expiring: frozenset[int] = frozenset()
    never_merged: tuple[str, ...] = ()
    untagged: tuple[Checkpoint, ...] = ()
    followed: Cursor | None = None

    @property
    def expirable(self) -> int:
        """How many versions are to expire first."""
        return len(self.expiring)

    @property
    def has_work(self) -> bool:
        """Whether a run that acts would do anything."""
        plan = self.plan
        goes = plan.drops or plan.deletes or plan.has_mends or self.expirable
        return bool(goes) or self.has_unrecorded

    @property
    def has_unrecorded(self) -> bool:
        """Whether any shard has settled generations that are not recorded yet."""
        view = self.survey.view
        return view is not None and any(map(is_unrecorded, view.shards))


def add_before(after: SurveyPlan, before: SurveyPlan) -> SurveyPlan:
    """Add to a look at some shards what the look before kept in the others, now left alone."""
    looked = after.shards or frozenset()
    others = [i for i in before.plan.items if i.shard_id is not None and i.shard_id not in looked]
    kept = (replace(i, replacement=None) for i in others if i.action is Action.KEEP)
    broken = (b for b in before.plan.broken if b.shard_id not in looked)
    plan = replace(
        after.plan,
        items=(*after.plan.items, *kept),
        broken=(*after.plan.broken, *broken),
    )
    return replace(after, plan=plan)


def find_deciding(survey: Survey, evidence: Evidence) -> Mapping[ShardId, int]:
    """The position in each shard from which on WAL entries decide about what goes."""
    return wal_entry.find_deciding(plan_garbage(replace(survey, evidence=evidence)), evidence)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """The result of one shard's drop. `paths` are the items that are no longer listed."""

    shard_id: ShardId
    paths: frozenset[str] = frozenset()
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
                    self._drop_once(shard_id, unwanted)
                except LostRace:
                    self._wait(attempt)
                    continue
                return replace(result, paths=frozenset(unwanted))
        except MemWalError as error:
            return replace(result, error=error)
        return replace(
            result,
            error=LostRace(
                f"shard {shard_id}: its writer was faster {self.limits.drop_attempts_max} times; "
                "run again"
            ),
        )

    def _drop_once(self, shard_id: ShardId, unwanted: set[str]) -> None:
        current = self.manifests.latest(shard_id)
        if current is None:
            raise Corruption("MW-M06", f"shard {shard_id} lost its manifest")
        if current.status is not ShardStatus.ACTIVE:
            raise Refused("MW-M05", f"shard {shard_id} is {current.status.name} by now: left alone")
        proposed = remove_generations(current, unwanted)
        if proposed == current:
            return
        invariants.check_writer_untouched(current, proposed)
        self.before_commit()
        self.steps("before_drop")
        self.manifests.commit(current, proposed)
        self.steps("dropped")

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """The result of one item's deletion. `error` is None when all of it is gone."""

    path: str
    objects: int
    size_bytes: int
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleter:
    """Deletes objects, in bounded batches."""

    objects: Objects
    limits: GarbageLimits = GarbageLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each batch; raises when the run has lost its lease."""

    def run(self, deletions: Sequence[Item]) -> tuple[Deleted, ...]:
        """Delete items stage by stage; an item stops at the first stage that fails.

        Never raises a MemWalError: each result says what could not be deleted.
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
            # Some of the batch may be gone; the next run finds the rest.
            failed.update((path, str(error)) for path, _ in part)
            return
        refused = dict(result.failed)
        for path, file in part:
            if file.path in refused:
                failed[path] = f"{file.path}: {refused[file.path]}"
            else:
                gone[path].append(file)


def check_below(path: str, file: StoredFile) -> None:
    """Raise InvariantBroken for a file that is neither the item nor below it (invariant 10).

    The one exception is the tag of a checkpoint, which is deleted with its record.
    """
    try:
        check_object_path(file.path)
    except ValueError as error:
        raise InvariantBroken(10, str(error)) from None
    key = layout.parse_checkpoint_path(path)
    if key is not None and file.path == layout.checkpoint_tag_path(key):
        return
    if file.path != path and not file.path.startswith(f"{path}/"):
        raise InvariantBroken(10, f"{file.path} is not below {path}")


def audit_item(item: Item, *, done: bool | None = None) -> AuditItem:
    """An item as a line of the audit trail."""
    return AuditItem(
        action=item.action,
        kind=item.kind,
        shard_id=item.shard_id,
        path=item.path,
        bytes=item.bytes,
        reason=item.reason,
        done=done,
        error=item.error,
    )


def make_intents(plan: GarbagePlan, expiring: Set[int] = frozenset()) -> list[AuditItem]:
    """What a plan is about to do, as lines of the audit trail."""
    items = (item for item in plan.items if item.action is not Action.KEEP)
    return [*(expire_item(version) for version in sorted(expiring)), *map(audit_item, items)]


def expire_item(version: int, *, done: bool | None = None) -> AuditItem:
    """The expiry of a version, as a line of the audit trail."""
    return AuditItem(
        action="expire",
        kind="version",
        path=f"{layout.VERSIONS}/{layout.table_manifest_names(version)[0]}",
        version=version,
        reason="older than the retention",
        done=done,
    )


def make_deletions(plan: GarbagePlan) -> tuple[Item, ...]:
    """The plan's deletions that need no order; each path is checked again (invariant 10)."""
    deletes = tuple(item for item in plan.deletes if not item.in_order)
    for item in deletes:
        check_item(item)
    return deletes


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberedDeleter:
    """Deletes the items that are `in_order`, folders side by side."""

    objects: Objects
    limits: GarbageLimits = GarbageLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called once every `_CHECKED_EVERY` writes; raises when the run has lost its lease."""

    def run(self, plan: GarbagePlan) -> list[Deleted]:
        """Delete what the plan says. Never raises a MemWalError: errors are in the results."""
        folders: dict[str, list[Item]] = {}
        for item in plan.items:
            if item.in_order and (item.replacement or item.action is Action.DELETE):
                check_item(item)
                folders.setdefault(item.path.rpartition("/")[0], []).append(item)
        going = [f for f in folders.values() if any(_is_due(i) for i in f)]
        if not going:
            return []
        with ThreadPoolExecutor(min(self.limits.drops_in_flight_max, len(going))) as pool:
            return [deleted for found in pool.map(self._delete_folder, going) for deleted in found]

    def _delete_folder(self, items: Sequence[Item]) -> list[Deleted]:
        """Overwrite what has a replacement, then delete, ascending.

        The first failure ends it; what is left is up to the next run.
        """
        done: list[Deleted] = []
        going = [item for item in items if item.action is Action.DELETE]
        # Highest first: the next run also stops the names that a killed one left below a stopper.
        stops = [(item.path, item.replacement) for item in reversed(items) if item.replacement]
        try:
            for number, (path, replacement) in enumerate(stops):
                self._check(number)
                self.objects.put(path, replacement)
            for number, item in enumerate(going):
                self._check(number)
                self._delete(item)
                done.append(Deleted(path=item.path, objects=1, size_bytes=item.bytes))
        except MemWalError as error:
            path = going[len(done)].path if going else items[0].path
            done.append(Deleted(path=path, objects=0, size_bytes=0, error=str(error)))
        return done

    def _check(self, number: int) -> None:
        if number % _CHECKED_EVERY == 0:
            self.before_commit()
        self.steps("before_delete")

    def _delete(self, item: Item) -> None:
        for path, why in self.objects.delete([item.path]).failed:
            raise StoreUnavailable(f"{path}: {why}")


def _is_due(item: Item) -> bool:
    """Whether the item is reason enough to work on its folder: a delete, or a hint to overwrite.

    Stoppers are not: they are only written where something is deleted.
    """
    return item.action is Action.DELETE or not item.stages
