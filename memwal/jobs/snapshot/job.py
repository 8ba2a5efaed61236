"""`memwal snapshot` over tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from memwal.errors import MemWalError, Refused
from memwal.jobs.snapshot.apply import Found, SnapshotRefresher, read_view
from memwal.jobs.snapshot.plan import SnapshotLimits
from memwal.jobs.snapshot.store import ManifestsUnit, StoredSnapshots, run_manifests_unit
from memwal.model import ShardId, TableView
from memwal.report import JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable

LIMITS = SnapshotLimits()
# A shard takes two or three requests, about as much work as merging this many bytes.
_BYTES_PER_SHARD = 16_000


def check_lease(options: RunOptions) -> None:
    """Raise Refused for a refresh that would run without the table's lease."""
    if not options.lease and not options.dry_run:
        raise Refused(
            "MW-L01",
            "the snapshot job needs the table's lease: its commit can overwrite merge progress "
            "that lands meanwhile; run it without --no-lease",
        )


def run_snapshot(options: RunOptions, progress: Progress) -> JobReport:
    """Refresh the shard snapshot of each table."""
    check_lease(options)

    def refresh(tables: Sequence[OpenTable], fanout: Fanout) -> Iterator[TableReport]:
        progress.start("tables", len(tables))
        for done, table in enumerate(tables, start=1):
            table.begin()
            yield _refresh(table, options, fanout)
            progress.done(done)

    # Reading may start an engine, so tables are read one after the other.
    runner = JobRunner(name="snapshot", read=_read, readers_max=1, engine=lambda fanout: None)
    return runner.run_together(options, refresh, progress)


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
    try:
        stores, view = table.require()
        refresher = SnapshotRefresher(
            name=table.resolved.name,
            views=stores.views,
            snapshots=StoredSnapshots(stores.objects, stores.tables),
            clock=stores.clock,
            read=lambda: _read(stores, fanout),
            limits=LIMITS,
            # A claim of its own, so that merges without the lease see that a refresh begins.
            take_lease=partial(table.take_lease, "snapshot", options, own_claim=True),
            before_commit=table.before_commit,
            before_repair=table.before_repair,
        )
        return refresher.run(view, dry_run=options.dry_run)
    except MemWalError as error:
        return failed_report(table.resolved.name, error)
