"""`memwal garbage` over tables: lists what may go; with `--execute`, drops and deletes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.jobs.garbage.apply import TableGarbage, collect_garbage
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.plan import check_limits
from memwal.jobs.garbage.report import report_garbage
from memwal.jobs.garbage.store import LanceExpiry, StoredGarbageEvidence
from memwal.jobs.garbage.unit import DeleteFanout
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.settled import record_former
from memwal.run.stores import Stores
from memwal.run.tables import TABLE_READERS_MAX, OpenTable
from memwal.threads import side_by_side


@dataclass(frozen=True, kw_only=True)
class GarbageOptions(RunOptions):
    """What `garbage` takes besides. `retention_seconds` None expires no version."""

    execute: bool = False
    retention_seconds: float | None = None
    short_allowed: bool = False
    limits: GarbageLimits = GarbageLimits()
    full: bool = False
    """Whether to look at all shards, whatever former passes remember of them."""

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
    if options.execute and options.dry_run:
        progress.warn("--dry-run wins over --execute: garbage is listed, nothing is deleted")

    evidence: dict[str, StoredGarbageEvidence] = {}

    def read(stores: Stores, fanout: Fanout) -> TableView:
        """Without shards, where what is remembered may tell which of them to look at."""
        found = evidence[stores.uri] = StoredGarbageEvidence(stores.objects)
        return stores.views.table() if found.recall_sweep() is None else stores.views.base()

    def collect(tables: Sequence[OpenTable], fanout: Fanout) -> list[TableReport]:
        runs = [
            _Run(table, _open_garbage(table, table.stores, options, progress, steps, evidence))
            for table in tables
            if table.stores is not None
        ]
        side_by_side(_Run.foresee, runs, TABLE_READERS_MAX)
        deletes = DeleteFanout(
            tables=[run.table for run in runs],
            uris=[run.garbage.uri for run in runs],
            limits=options.limits,
            fanout=fanout,
            steps=steps,
        )
        collect_garbage([run.garbage for run in runs], deletes.delete)
        found = {id(run.table): run.report() for run in runs}
        return [
            found.get(id(table)) or failed_report(table.resolved.name, table.failure)
            for table in tables
        ]

    runner = JobRunner(name="garbage", read=read, engine=lambda fanout: fanout.used)
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
        self.table.was_read = self.table.was_read or self.garbage.seen is not None

    def report(self) -> TableReport:
        """What came of it."""
        name, seen = self.table.resolved.name, self.garbage.seen
        self.table.error = self.garbage.error
        self.table.view = None if seen is None else seen.look.view
        if seen is None or self.table.error is not None:
            return failed_report(name, self.table.failure)
        return report_garbage(name, self.garbage, seen)


def _limits_of(table: OpenTable, options: GarbageOptions) -> GarbageLimits:
    seconds = 0.0 if options.full else table.resolved.settings.sweep_seconds
    return options.limits if seconds is None else replace(options.limits, sweep_seconds=seconds)


def _open_garbage(
    table: OpenTable,
    stores: Stores,
    options: GarbageOptions,
    progress: Progress,
    steps: Steps,
    opened: Mapping[str, StoredGarbageEvidence],
) -> TableGarbage:
    # A job before this one may have opened the table.
    evidence = opened.get(stores.uri) or StoredGarbageEvidence(stores.objects)
    return TableGarbage(
        uri=stores.uri,
        views=stores.views,
        evidence=evidence,
        expiry=LanceExpiry(stores.tables),
        manifests=stores.shard_manifests,
        objects=stores.objects,
        clock=stores.clock,
        prove_store=table.prove_store,
        take_lease=partial(table.take_lease, "garbage", options),
        before_commit=table.before_commit,
        limits=_limits_of(table, options),
        acts=options.acts,
        retention_seconds=options.retention_seconds,
        progress=progress,
        steps=steps,
        remembered=evidence.recall_sweep(),
        keep_former=lambda view: record_former(replace(table, view=view), options, progress.warn),
    )
