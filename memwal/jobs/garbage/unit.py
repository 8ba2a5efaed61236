"""Garbage's units of work: a table of a run, and batches of deletes for threads or Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from memwal.errors import MemWalError
from memwal.jobs.garbage.apply import TableGarbage
from memwal.jobs.garbage.apply.deletions import Deleted, Deleter
from memwal.jobs.garbage.model import GarbageLimits, Item
from memwal.jobs.garbage.report import report_garbage
from memwal.ports import Steps, no_steps
from memwal.report import TableReport, failed_report
from memwal.run.engines.choice import LOCAL_BYTES_PER_SECOND
from memwal.run.fanout import Fanout
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.run.units import TableUnit, UnitResult, run_unit

# One prefix of an S3 bucket takes about 3,500 deletes a second; a local disk takes somewhat more.
_DELETES_PER_SECOND = 2000


@dataclass(frozen=True, slots=True)
class TableRun:
    """A table that could be opened, with its garbage collection."""

    table: OpenTable
    garbage: TableGarbage

    def preview(self) -> None:
        """Look at the table once; one whose MemWAL index is gone counts too, if it left shards."""
        self.garbage.preview(self.table.error or self.table.view)
        self.table.error = self.garbage.error
        self.table.was_read = self.table.was_read or self.garbage.planned is not None

    def report(self) -> TableReport:
        """The table's report, or a failed one with its error."""
        name, planned = self.table.resolved.name, self.garbage.planned
        self.table.error = self.garbage.error
        self.table.view = None if planned is None else planned.survey.view
        if planned is None or self.table.error is not None:
            return failed_report(name, self.table.failure)
        return report_garbage(name, self.garbage, planned)


@dataclass(frozen=True, kw_only=True, slots=True)
class GarbageUnit(TableUnit):
    """A batch of items to delete from one table."""

    items: tuple[Item, ...]
    limits: GarbageLimits
    lease_token: int | None = None


def run_garbage_unit(unit: GarbageUnit, steps: Steps = no_steps) -> UnitResult[tuple[Deleted, ...]]:
    """Delete one unit's items in this process."""

    def delete(stores: Stores) -> tuple[Deleted, ...]:
        def check_lease() -> None:
            if unit.lease_token is not None:
                stores.leases.check(unit.lease_token)

        deleter = Deleter(
            objects=stores.objects, limits=unit.limits, steps=steps, before_commit=check_lease
        )
        return deleter.run(unit.items)

    return run_unit(unit, delete)


def group_deletions(items: Sequence[Item], objects_max: int) -> list[tuple[Item, ...]]:
    """Group items into units of at most `objects_max` objects, without splitting an item."""
    units: list[list[Item]] = []
    size = 0
    for item in items:
        if not units or size + item.objects > objects_max:
            units.append([])
            size = 0
        units[-1].append(item)
        size += item.objects
    return [tuple(unit) for unit in units]


def delete_together(
    runs: Sequence[TableRun],
    batches: Sequence[Sequence[Item]],
    *,
    limits: GarbageLimits,
    fanout: Fanout,
    steps: Steps,
) -> list[list[Deleted]]:
    """Delete one batch for each table; batches and results are in the order of the tables."""
    units: list[GarbageUnit] = []
    owners: list[int] = []
    for place, run in enumerate(runs):
        for items in group_deletions(batches[place], limits.unit_objects_max):
            owners.append(place)
            units.append(
                GarbageUnit(
                    uri=run.garbage.uri,
                    storage_options=run.table.storage_options,
                    items=items,
                    limits=limits,
                    lease_token=run.table.lease_token,
                )
            )
    objects = sum(d.objects for unit in units for d in unit.items)
    results = fanout.run_for(
        [runs[place].table for place in owners],
        run_garbage_unit if steps is no_steps else partial(run_garbage_unit, steps=steps),
        units,
        what="units to delete",
        in_memory_bytes=objects * LOCAL_BYTES_PER_SECOND // _DELETES_PER_SECOND,
    )
    deleted: list[list[Deleted]] = [[] for _ in batches]
    for place, unit, result in zip(owners, units, results, strict=True):
        made = result.made
        if isinstance(made, MemWalError):  # the unit failed as a whole
            made = tuple(
                Deleted(path=i.path, objects=0, size_bytes=0, error=str(made)) for i in unit.items
            )
        deleted[place] += made
    return deleted
