"""`memwal status` over tables."""

from __future__ import annotations

from jobs._launch import (
    OpenTable,
    RunOptions,
    check_lance_version,
    chosen_limits,
    error_of,
    failed_report,
    job_report,
    open_tables,
)
from jobs._wiring import Stores
from memwal.apply.status import WalSize, lease_report, table_status
from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.model import ShardId
from memwal.plan.due import DueLimits, due_shards
from memwal.report import DONE, JobReport, TableReport


def run_status(options: RunOptions) -> JobReport:
    """The status of each table."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    with open_tables(options, lambda stores: stores.views.table(ages=True, sizes=True)) as tables:
        reports = [_status(table) for table in tables]
    return job_report(
        "status",
        reports,
        clock.monotonic_seconds() - started,
        opened=tables,
        otherwise=DONE,
    )


def _status(table: OpenTable) -> TableReport:
    if table.error is not None or table.view is None or table.stores is None:
        return failed_report(table.resolved.name, error_of(table))
    stores, view = table.stores, table.view
    now = stores.clock.now_nanos()
    try:
        return table_status(
            table.resolved.name,
            view,
            wal=lambda shard: _wal(stores, shard),
            unindexed_rows=lambda name: stores.tables.unindexed_rows(view.version, name),
            due=due_shards(view, chosen_limits(DueLimits, table), now),
            lease=lease_report(stores.leases.current(), now),
        )
    except MemWalError as error:
        return failed_report(table.resolved.name, error)


def _wal(stores: Stores, shard_id: ShardId) -> WalSize:
    listed = stores.wal.listed(shard_id)
    return WalSize(entries=len(listed), size_bytes=sum(info.size_bytes for _, info in listed))
