"""The kinds of garbage: one module for each, with its evidence, its gates and its paths.

Nothing else is ever deleted. A new kind needs a module here and an entry below.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any, Protocol

from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.kinds import (
    checkpoint,
    generation,
    ingest,
    lease_claim,
    leftover,
    orphan,
    shard_manifest,
    snapshot,
    wal_entry,
)
from memwal.jobs.garbage.model import Item
from memwal.jobs.garbage.survey import Survey
from memwal.ports import Objects


class GarbageKind(Protocol):
    """One kind of garbage, planned from what shard folders and retained versions show."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a module's constant
        """The kind's name. Several kinds are all `ORPHAN` in a report."""
        ...

    def find_items(self, survey: Survey) -> Iterator[Item]:
        """Every candidate of this kind, with what happens to it."""
        ...

    def may_delete(self, item: Item) -> bool:
        """Whether the item's path is of a form that this kind deletes, whatever the evidence."""
        ...


class KindOutside(GarbageKind, Protocol):
    """A kind that lies outside the shards, and reads its own evidence."""

    def read_evidence(self, objects: Objects, pool: Executor) -> tuple[Any, ...]:
        """Read the evidence that `find_items` gets under the kind's name in `Evidence.outside`."""
        ...


KINDS_OUTSIDE: tuple[KindOutside, ...] = (leftover, snapshot, ingest, lease_claim)
KINDS: tuple[GarbageKind, ...] = (
    generation,
    orphan,
    shard_manifest,
    wal_entry,
    checkpoint,
    *KINDS_OUTSIDE,
)


def check_item(item: Item) -> None:
    """Raise InvariantBroken for an item whose path no kind may delete (invariant 10)."""
    if not any(kind.may_delete(item) for kind in KINDS):
        raise InvariantBroken(10, f"{item.path!r} is not to be deleted")
