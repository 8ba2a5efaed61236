"""Deletes as they travel to a thread or to a Spark executor, and the code that runs them."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from memwal.errors import MemWalError
from memwal.jobs.garbage.apply.delete import Deleted, Deleter, Deletion
from memwal.jobs.garbage.model import GarbageLimits
from memwal.ports import Steps, no_steps
from memwal.run.stores import open_stores


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageUnit:
    """Some items of one table to delete. Plain data; deleting twice does no harm."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    deletions: tuple[Deletion, ...]
    limits: GarbageLimits
    lease_token: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageUnitResult:
    """What came of a unit. `trace` is the traceback of an error nobody expected."""

    deleted: tuple[Deleted, ...]
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None


def run_garbage_unit(unit: GarbageUnit, steps: Steps = no_steps) -> GarbageUnitResult:
    """Run one unit in this process. Never raises: the other units go on."""
    try:
        stores = open_stores(unit.uri, unit.storage_options)
        token = unit.lease_token
        deleter = Deleter(
            objects=stores.objects,
            limits=unit.limits,
            steps=steps,
            before_commit=(lambda: None) if token is None else lambda: stores.leases.check(token),
        )
        deleted = deleter.run(unit.deletions)
        return GarbageUnitResult(deleted=deleted, requests=stores.objects.counts.as_dict())
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}"
        return GarbageUnitResult(deleted=_undeleted(unit, text), trace=traceback.format_exc())


def lost_garbage_unit(unit: GarbageUnit, error: MemWalError) -> GarbageUnitResult:
    """The result of a unit that killed its process."""
    return GarbageUnitResult(deleted=_undeleted(unit, str(error)))


def _undeleted(unit: GarbageUnit, text: str) -> tuple[Deleted, ...]:
    return tuple(Deleted(path=d.path, objects=0, size_bytes=0, error=text) for d in unit.deletions)


def group_deletions(deletions: Sequence[Deletion], objects_max: int) -> list[tuple[Deletion, ...]]:
    """Group deletions into units of about so many objects; one item is never split."""
    units: list[list[Deletion]] = []
    size = 0
    for deletion in deletions:
        if not units or size + deletion.objects > objects_max:
            units.append([])
            size = 0
        units[-1].append(deletion)
        size += deletion.objects
    return [tuple(unit) for unit in units]
