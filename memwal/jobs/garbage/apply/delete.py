"""Deletes objects, item by item and stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.kinds import check_item
from memwal.jobs.garbage.model import GarbageLimits, GarbagePlan
from memwal.model import StoredFile
from memwal.ports import Objects, Steps, check_object_path, no_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Deletion:
    """One item to delete, in the form that is sent to workers."""

    path: str
    stages: tuple[tuple[StoredFile, ...], ...]

    @property
    def objects(self) -> int:
        """How many objects go."""
        return sum(len(stage) for stage in self.stages)


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

    def run(self, deletions: Sequence[Deletion]) -> tuple[Deleted, ...]:
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


def make_deletions(plan: GarbagePlan) -> tuple[Deletion, ...]:
    """The plan's deletions that need no order; each path is checked again (invariant 10)."""
    deletes = [item for item in plan.deletes if not item.in_order]
    for item in deletes:
        check_item(item)
    return tuple(Deletion(path=i.path, stages=i.stages) for i in deletes)
