"""`memwal garbage` over tables: lists what may go; with `--execute`, drops and deletes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.config import ResolvedTable
from memwal.jobs.garbage.apply import TableGarbage, collect_garbage
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.plan import check_limits
from memwal.jobs.garbage.store import LanceExpiry, StoredGarbageEvidence
from memwal.jobs.garbage.unit import DeleteFanout, TableRun
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.former_merges import record_former
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import TABLE_READERS_MAX, OpenTable
from memwal.threads import side_by_side


@dataclass(frozen=True, kw_only=True)
class GarbageOptions(RunOptions):
    """The options of `garbage`, on top of those that every job takes.

    `retention_seconds` overrides a table's configured `retention`. Where that one applies, covered
    WAL is deleted too, unless `wal_kept`; with neither, no version expires. `as_configured` acts
    where a table configures one. `full` looks at all shards, ignoring what passes remember.
    """

    execute: bool = False
    as_configured: bool = False
    retention_seconds: float | None = None
    wal_kept: bool = False
    short_allowed: bool = False
    limits: GarbageLimits = GarbageLimits()
    full: bool = False

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return any(self.of(table).execute for table in self.tables) and not self.dry_run

    def of(self, table: ResolvedTable) -> GarbageOptions:
        """These options for one table, with its own settings applied."""
        settings, limits = table.settings, self.limits
        seconds = 0.0 if self.full else settings.sweep_seconds
        if seconds is not None:
            limits = replace(limits, sweep_seconds=seconds)
        one = replace(self, tables=[table], as_configured=False, limits=limits)
        if settings.retention is None:
            return one
        expiring = self.retention_seconds is None
        return replace(
            one,
            execute=self.execute or self.as_configured,
            retention_seconds=settings.retention if expiring else self.retention_seconds,
            limits=replace(limits, wal=limits.wal or (expiring and not self.wal_kept)),
        )


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
        """Leave the shards out where a remembered sweep may tell which ones to look at."""
        found = evidence[stores.uri] = StoredGarbageEvidence(stores.objects)
        return stores.views.table() if found.recall_sweep() is None else stores.views.base()

    def collect(tables: Sequence[OpenTable], fanout: Fanout) -> list[TableReport]:
        runs = [
            TableRun(table, _open_garbage(table, table.stores, options, progress, steps, evidence))
            for table in tables
            if table.stores is not None
        ]
        side_by_side(TableRun.foresee, runs, TABLE_READERS_MAX)
        deletes = DeleteFanout(
            tables=[run.table for run in runs],
            uris=[run.garbage.uri for run in runs],
            limits=options.limits,
            fanout=fanout,
            steps=steps,
        )
        collect_garbage([run.garbage for run in runs], deletes.delete)
        for run in runs:
            if run.garbage.acted:
                run.table.keep_reserve()
        found = {id(run.table): run.report() for run in runs}
        return [
            found.get(id(table)) or failed_report(table.resolved.name, table.failure)
            for table in tables
        ]

    runner = JobRunner(
        name="garbage",
        read=read,
        engine=lambda fanout: fanout.used,
        is_recorded=lambda table, report: options.of(table.resolved).acts,
    )
    return runner.run_together(options, collect, progress)


def _open_garbage(
    table: OpenTable,
    stores: Stores,
    options: GarbageOptions,
    progress: Progress,
    steps: Steps,
    opened: Mapping[str, StoredGarbageEvidence],
) -> TableGarbage:
    options = options.of(table.resolved)
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
        take_lease=partial(table.take_lease, "garbage", options, frees=True),
        before_commit=table.before_commit,
        limits=options.limits,
        acts=options.acts,
        retention_seconds=options.retention_seconds,
        progress=progress,
        steps=steps,
        remembered=evidence.recall_sweep(),
        keep_former=lambda view: record_former(replace(table, view=view), options, progress.warn),
    )
