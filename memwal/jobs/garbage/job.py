"""`memwal garbage` over tables: lists what may go; with `--execute`, drops and deletes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from memwal.jobs.garbage.apply import TableGarbage, collect_garbage
from memwal.jobs.garbage.apply.delete import Deleted, Deletion
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.plan import check_limits
from memwal.jobs.garbage.report import report_garbage
from memwal.jobs.garbage.store import LanceExpiry, StoredGarbageEvidence
from memwal.jobs.garbage.unit import (
    GarbageUnit,
    group_deletions,
    lost_garbage_unit,
    run_garbage_unit,
)
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.engines.choice import LOCAL_BYTES_PER_SECOND
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.reports import failed_report
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import TABLE_READERS_MAX, OpenTable
from memwal.threads import side_by_side

# One prefix of an S3 bucket takes about 3,500 deletes a second; local disks some more.
_DELETES_PER_SECOND = 2000


@dataclass(frozen=True, kw_only=True)
class GarbageOptions(RunOptions):
    """What `garbage` takes besides. `retention_seconds` None expires no version."""

    execute: bool = False
    retention_seconds: float | None = None
    short_allowed: bool = False
    limits: GarbageLimits = GarbageLimits()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.execute and not self.dry_run


def run_garbage(options: GarbageOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """List what may go; with `execute`, drop and delete it."""
    check_limits(
        options.limits,
        retention_seconds=options.retention_seconds,
        short_allowed=options.short_allowed,
    )

    def collect(tables: Sequence[OpenTable], fanout: Fanout) -> list[TableReport]:
        runs = [
            _Run(table, _open_garbage(table, table.stores, options, progress, steps))
            for table in tables
            if table.stores is not None
        ]
        side_by_side(_Run.foresee, runs, TABLE_READERS_MAX)
        fan_out = _DeleteFanout(runs, fanout, options, steps)
        collect_garbage([run.garbage for run in runs], fan_out.delete)
        found = {id(run.table): run.report() for run in runs}
        return [
            found.get(id(table)) or failed_report(table.resolved.name, table.failure)
            for table in tables
        ]

    runner = JobRunner(name="garbage", engine=lambda fanout: fanout.used)
    return runner.run_together(options, collect, progress)


@dataclass(frozen=True, slots=True)
class _Run:
    """A table that could be opened, and what collects its garbage."""

    table: OpenTable
    garbage: TableGarbage

    def foresee(self) -> None:
        """Look once. A table without a MemWAL index is one too, where it left shards."""
        self.garbage.foresee(self.table.error or self.table.view)
        self.table.error = self.garbage.error
        self.table.known = self.table.known or self.garbage.seen is not None

    def report(self) -> TableReport:
        """What came of it."""
        name, seen = self.table.resolved.name, self.garbage.seen
        self.table.error = self.garbage.error
        self.table.view = None if seen is None else seen.look.view
        if seen is None or self.table.error is not None:
            return failed_report(name, self.table.failure)
        return report_garbage(name, self.garbage, seen)


def _open_garbage(
    table: OpenTable, stores: Stores, options: GarbageOptions, progress: Progress, steps: Steps
) -> TableGarbage:
    return TableGarbage(
        uri=stores.uri,
        views=stores.views,
        evidence=StoredGarbageEvidence(stores.objects),
        expiry=LanceExpiry(stores.tables),
        manifests=stores.shard_manifests,
        clock=stores.clock,
        prove_store=table.prove_store,
        take_lease=partial(table.take_lease, "garbage", options),
        before_commit=table.before_commit,
        limits=options.limits,
        acts=options.acts,
        retention_seconds=options.retention_seconds,
        progress=progress,
        steps=steps,
    )


@dataclass(frozen=True, slots=True)
class _DeleteFanout:
    """Deletes for all tables at once, in units on an engine."""

    runs: Sequence[_Run]
    fanout: Fanout
    options: GarbageOptions
    steps: Steps

    def delete(self, batches: Sequence[Sequence[Deletion]]) -> list[list[Deleted]]:
        """A batch a table, in the tables' order."""
        limits = self.options.limits
        units: list[GarbageUnit] = []
        owners: list[int] = []
        for place, (run, batch) in enumerate(zip(self.runs, batches, strict=True)):
            for deletions in group_deletions(batch, limits.unit_objects_max):
                owners.append(place)
                units.append(
                    GarbageUnit(
                        uri=run.garbage.uri,
                        storage_options=run.table.resolved.storage_options,
                        deletions=deletions,
                        limits=limits,
                        lease_token=run.table.lease_token,
                    )
                )
        objects = sum(d.objects for unit in units for d in unit.deletions)
        watched = self.steps is not no_steps
        results = self.fanout.run_for(
            [self.runs[place].table for place in owners],
            partial(run_garbage_unit, steps=self.steps) if watched else run_garbage_unit,
            units,
            what="units to delete",
            in_memory_bytes=objects * LOCAL_BYTES_PER_SECOND // _DELETES_PER_SECOND,
            lost=lost_garbage_unit,
        )
        deleted: list[list[Deleted]] = [[] for _ in batches]
        for place, result in zip(owners, results, strict=True):
            deleted[place] += result.deleted
        return deleted
