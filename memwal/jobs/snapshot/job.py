"""`memwal snapshot` over tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import Refused
from memwal.jobs.snapshot.apply import SnapshotRefresher
from memwal.jobs.snapshot.plan import SnapshotTableReport
from memwal.jobs.snapshot.store import StoredSnapshots
from memwal.model import TableView
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.text import count_of


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

    def refresh(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        # A claim of its own, so that merges without the lease see that a refresh begins.
        take_lease = partial(table.take_lease, "snapshot", options, own_claim=True)
        refresher = make_refresher(table, stores, take_lease)
        return refresher.run(view, dry_run=options.dry_run)

    runner = JobRunner(name="snapshot", engine=lambda fanout: None)
    return runner.run_each(options, refresh, progress)


def make_refresher(
    table: OpenTable, stores: Stores, take_lease: Callable[[], None] = lambda: None
) -> SnapshotRefresher:
    """Make the refresher of one table; without `take_lease` the lease is held already."""
    return SnapshotRefresher(
        name=table.resolved.name,
        views=stores.views,
        snapshots=StoredSnapshots(stores.objects, stores.tables),
        clock=stores.clock,
        read=stores.views.table,
        take_lease=take_lease,
        before_commit=table.before_commit,
        before_repair=table.before_repair,
        is_unfenced=table.is_unfenced,
        note_fenced=table.note_fenced,
    )


def fence_off(table: OpenTable, job: str, options: RunOptions) -> None:
    """Keep a refresh that was cut off from committing, before `job` builds on merge progress."""
    stores, _ = table.require()

    def take_lease(name: str, *, own_claim: bool) -> None:
        table.lease = None  # the chain has it, and passes it on
        table.take_lease(name, options, own_claim=own_claim)

    refresher = make_refresher(table, stores, partial(take_lease, "snapshot", own_claim=True))
    refresher.fence_off(partial(take_lease, job, own_claim=False))


# ---- what people see


def show_table(report: SnapshotTableReport) -> list[RenderableType]:
    """Render how many shards the snapshot has, where it is stored, and the number of repairs."""
    if report.storage is None:
        return [Text(f"  {report.reason}")] if report.reason else []
    shards, repairs = count_of(report.num_shards or 0, "shard"), count_of(report.repairs, "repair")
    text = f"  {shards}, {report.storage}, {repairs}"
    return [Text(f"{text} ({report.reason})")]
