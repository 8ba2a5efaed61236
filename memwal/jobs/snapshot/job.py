"""`memwal snapshot` over tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from memwal.clock import SystemClock
from memwal.errors import MemWalError, Refused
from memwal.jobs.snapshot.apply import SnapshotRefresher, read_view
from memwal.jobs.snapshot.plan import SnapshotLimits
from memwal.jobs.snapshot.ports import Found
from memwal.jobs.snapshot.store import StoredSnapshots
from memwal.jobs.snapshot.unit import ManifestsUnit, run_manifests_unit
from memwal.model import ShardId, TableView
from memwal.report import JobReport, TableReport
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

LIMITS = SnapshotLimits()
# A shard takes two or three requests: as much work as merging about so many bytes.
_BYTES_PER_SHARD = 16_000


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
            report = _refresh(table, options, fanout)
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
    def read_groups(groups: Sequence[Sequence[ShardId]]) -> Sequence[Sequence[Found]]:
        size = _BYTES_PER_SHARD * sum(len(group) for group in groups)
        units = [
            ManifestsUnit(
                uri=stores.uri, storage_options=stores.storage_options, shard_ids=tuple(group)
            )
            for group in groups
        ]
        return fanout.run(run_manifests_unit, units, what="manifests", in_memory_bytes=size)

    return read_view(stores.views, read_groups, LIMITS)


def _refresh(table: OpenTable, options: RunOptions, fanout: Fanout) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return failed_report(table.resolved.name, error_of(table))
    refresher = SnapshotRefresher(
        name=table.resolved.name,
        views=stores.views,
        snapshots=StoredSnapshots(stores.objects, stores.tables),
        clock=stores.clock,
        read=lambda: _read(stores, fanout),
        limits=LIMITS,
        take_lease=partial(table.take_lease, "snapshot", options),
        before_commit=table.before_commit,
        before_repair=table.before_repair,
    )
    try:
        return refresher.run(view, dry_run=options.dry_run)
    except MemWalError as error:
        return failed_report(table.resolved.name, error)
