"""`memwal garbage` over tables: lists what may go; with `--execute`, drops and deletes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.config import ResolvedTable
from memwal.jobs.garbage.apply import TableGarbage, collect_garbage
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.plan import Permission, permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.garbage.store import LanceExpiry, StoredGarbageEvidence
from memwal.jobs.garbage.unit import TableRun, delete_together
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
from memwal.store.records.backups import StoredBackups
from memwal.threads import side_by_side


@dataclass(frozen=True, kw_only=True)
class GarbageOptions(RunOptions):
    """The options of `garbage`. `limits` are bounds that no request sets."""

    request: GarbageRequest = GarbageRequest()
    limits: GarbageLimits = GarbageLimits()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return any(map(self.acts_on, self.tables))

    def acts_on(self, table: ResolvedTable) -> bool:
        """Whether anything may be written to this table."""
        return self.permit(table).deletes and not self.dry_run

    def permit(self, table: ResolvedTable) -> Permission:
        """What may be deleted from one table. Raises Refused."""
        return permit(self.request, table.settings)

    def limits_of(self, table: ResolvedTable) -> GarbageLimits:
        """The bounds on one table."""
        request, permission = self.request, self.permit(table)
        configured = table.settings.sweep_seconds
        sweep = self.limits.sweep_seconds if configured is None else configured
        return replace(
            self.limits,
            grace_seconds=permission.grace_seconds,
            wal=permission.wal,
            adopt_orphans=request.adopt_orphans,
            sweep_seconds=0.0 if request.full else sweep,
        )


def run_garbage(options: GarbageOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """List what may go; drop and delete it where `permit` says so."""
    for table in options.tables:
        options.permit(table)
    if options.request.execute and options.dry_run:
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
        side_by_side(TableRun.preview, runs, TABLE_READERS_MAX)
        delete = partial(delete_together, runs, limits=options.limits, fanout=fanout, steps=steps)
        collect_garbage([run.garbage for run in runs], delete)
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
        is_recorded=lambda table, report: options.acts_on(table.resolved),
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
    options = replace(options, tables=[table.resolved])
    # A job before this one may have opened the table.
    evidence = opened.get(stores.uri) or StoredGarbageEvidence(stores.objects)

    def take_lease() -> None:
        StoredBackups(stores.objects).refuse_any()
        table.take_lease("garbage", options, frees=True)

    return TableGarbage(
        uri=stores.uri,
        views=stores.views,
        evidence=evidence,
        expiry=LanceExpiry(stores.tables),
        manifests=stores.shard_manifests,
        objects=stores.objects,
        clock=stores.clock,
        prove_store=table.prove_store,
        take_lease=take_lease,
        before_commit=table.before_commit,
        limits=options.limits_of(table.resolved),
        acts=options.acts,
        retention_seconds=options.permit(table.resolved).retention_seconds,
        progress=progress,
        steps=steps,
        intend=None if table.trail is None else table.intend,
        remembered=evidence.recall_sweep(),
        keep_former=lambda view: record_former(replace(table, view=view), options, progress.warn),
    )
