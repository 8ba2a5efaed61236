"""Deletes numbered objects (shard manifests, lease claims) one by one, lowest first.

So any that is left leads upwards to the newest. Names that have to stay taken are overwritten with
stoppers before anything is deleted. A run may be killed after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from memwal.errors import MemWalError, StoreUnavailable
from memwal.jobs.garbage.apply.delete import Deleted
from memwal.jobs.garbage.kinds import check_item
from memwal.jobs.garbage.model import Action, GarbageLimits, GarbagePlan, Item
from memwal.ports import Objects, Steps, no_steps

_CHECKED_EVERY = 100


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
                done.append(Deleted(path=item.path, objects=1, size_bytes=item.size_bytes))
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
