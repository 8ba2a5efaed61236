"""`memwal snapshot` over tables."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.clock import SystemClock
from memwal.errors import MemWalError, Refused
from memwal.jobs.snapshot.apply import SnapshotRefresher, SnapshotResult, nothing_to_write
from memwal.jobs.snapshot.store import StoredSnapshots
from memwal.jobs.snapshot.unit import ManifestsUnit, run_manifests_unit
from memwal.jobs.status.apply import view_warnings
from memwal.model import BrokenShard, ShardId, ShardManifest, TableView
from memwal.report import DONE, JobReport, SnapshotTableReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.open import (
    OpenTable,
    Progress,
    RunOptions,
    check_lance_version,
    error_of,
    failed_report,
    job_report,
    open_tables,
)
from memwal.run.records import RunRecorder
from memwal.run.stores import Stores

# From so many shards on, their manifests are read on the executors.
FANNED_OUT_SHARDS_MIN = 2000
_SHARDS_PER_UNIT = 250


def check_lease(options: RunOptions) -> None:
    """Raise Refused for a refresh that would run without the table's lease."""
    if not options.lease and not options.dry_run:
        raise Refused(
            "the snapshot job needs the table's lease: its commit can overwrite merge progress "
            "that lands meanwhile; run it without --no-lease"
        )


def run_snapshot(options: RunOptions, progress: Progress) -> JobReport:
    """Refresh the shard snapshot of each table."""
    check_lance_version(options.untested_lance_allowed)
    check_lease(options)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    recorder = RunRecorder("snapshot", options, progress)
    with (
        Fanout(options, progress) as fanout,
        open_tables(
            options,
            lambda stores: _read(stores, fanout),
            recorder.failed,
            warn=progress.warn,
            readers_max=1,  # it may start an engine
        ) as tables,
    ):
        reports = []
        progress.start("tables", len(tables))
        for done, table in enumerate(tables, start=1):
            table.begin()
            report = _snapshot(table, options, progress, fanout)
            reports.append(recorder.write(table, report, view=table.view))
            progress.done(done)
        return job_report(
            "snapshot",
            reports,
            clock.monotonic_seconds() - started,
            opened=tables,
            dry_run=options.dry_run,
        )


def _read(stores: Stores, fanout: Fanout) -> TableView:
    """A fresh view; with very many shards, their manifests are read on the engine."""

    def read_shards(
        shards: Sequence[ShardId],
    ) -> Sequence[ShardManifest | BrokenShard | None]:
        if len(shards) < FANNED_OUT_SHARDS_MIN:
            return stores.views.read_shards(shards)
        units = [
            ManifestsUnit(
                uri=stores.uri,
                storage_options=stores.storage_options,
                shard_ids=tuple(shards[start : start + _SHARDS_PER_UNIT]),
            )
            for start in range(0, len(shards), _SHARDS_PER_UNIT)
        ]
        # About as much work as 4 MB of merging, at two or three requests a shard.
        size = 16_000 * len(shards)
        found = fanout.run(run_manifests_unit, units, what="manifests", in_memory_bytes=size)
        return [manifest for part in found for manifest in part]

    return stores.views.table(read_shards=read_shards)


def _snapshot(
    table: OpenTable, options: RunOptions, progress: Progress, fanout: Fanout
) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return failed_report(table.resolved.name, error_of(table))
    refresher = SnapshotRefresher(
        views=stores.views,
        snapshots=StoredSnapshots(stores.objects, stores.tables),
        clock=stores.clock,
        before_commit=table.before_commit,
        before_repair=table.before_repair,
    )
    try:
        plan = refresher.plan(view)
        if plan is None:
            result = nothing_to_write(view)
        elif options.dry_run:
            result = SnapshotResult(
                outcome=DONE,
                num_shards=len(view.shards),
                storage=plan.storage.value,
                repairs=0,
                version_after=view.version,
                reason=f"would write: {plan.reason}",
            )
        else:
            table.take_lease("snapshot", options)
            result = refresher.run(lambda: _read(stores, fanout))
    except MemWalError as error:
        return failed_report(table.resolved.name, error)
    return SnapshotTableReport(
        table=table.resolved.name,
        outcome=result.outcome,
        version_before=view.version,
        version_after=result.version_after,
        num_shards=result.num_shards,
        storage=result.storage,
        repairs=result.repairs,
        reason=result.reason,
        warnings=view_warnings(view),
    )
