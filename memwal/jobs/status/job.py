"""`memwal status` over tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.format.replay import SENTINEL_BYTES_MAX, unflushed_in_listing
from memwal.jobs.rescue.plan import AbandonedLimits
from memwal.jobs.status.apply import WalSize, lease_report, table_status
from memwal.jobs.status.plan import DueLimits, due_shards
from memwal.model import LeaseClaim, ShardManifest, StoredFile, TableView
from memwal.report import JobReport, RunRecord, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions, choose_limits
from memwal.run.policy import policy_warnings
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.view import Wal

# Two rounds of maintenance: each of its jobs may leave a record.
_RECORDS_MAX = 8


def run_status(options: RunOptions) -> JobReport:
    """The status of each table."""
    looks: dict[str, _Look] = {}

    def read(stores: Stores, fanout: Fanout) -> TableView:
        looks[stores.uri] = look = _look(stores)
        return look.view

    def status(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        return _status(table.resolved, stores, looks[stores.uri])

    return JobRunner(name="status", read=read, looks_only=True).run_each(options, status)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """All that was read of one table. `lease` is an error where the claim is unreadable."""

    view: TableView
    wal: Wal
    lease: LeaseClaim | MemWalError | None


def _look(stores: Stores) -> _Look:
    lease: LeaseClaim | MemWalError | None
    try:
        lease = stores.leases.glance()
        reached = True
    except MemWalError as error:
        lease, reached = error, False
    view, wal = stores.views.table_and_wal(reached=reached)
    return _Look(view=view, wal=wal, lease=lease)


def _status(table: ResolvedTable, stores: Stores, look: _Look) -> TableReport:
    view = look.view
    now = stores.clock.now_nanos()
    manifests = {shard.shard_id: shard.manifest for shard in view.shards}
    after = choose_limits(AbandonedLimits, table).abandoned_after_seconds
    if isinstance(look.lease, MemWalError):
        raise look.lease
    skew = None if look.lease is None else stores.leases.skew_text(look.lease)
    return table_status(
        table.name,
        view,
        wal=lambda shard: _wal(stores, manifests[shard], look.wal[shard], after, now),
        unindexed_rows=lambda name: stores.tables.unindexed_rows(view.version, name),
        due=due_shards(view, choose_limits(DueLimits, table), now),
        lease=lease_report(look.lease, now),
        records=_records(stores, view),
        warnings=(*policy_warnings(table, view), *([skew] if skew else ())),
    )


def _records(stores: Stores, view: TableView) -> Sequence[RunRecord]:
    """The newest runs, where something waits and they may tell why. Nothing depends on them."""
    if not any(shard.pending for shard in view.shards):
        return ()
    try:
        return stores.run_records.newest(_RECORDS_MAX).records
    except MemWalError:
        return ()


def _wal(
    stores: Stores,
    manifest: ShardManifest,
    listed: Sequence[tuple[int, StoredFile]],
    abandoned_after_seconds: float,
    now_nanos: int,
) -> WalSize:
    unflushed = unflushed_in_listing(manifest, ((p, info.size_bytes) for p, info in listed))
    newest = max((info.modified_at_nanos for _, info in listed), default=None)
    idle = None if newest is None else max(0.0, (now_nanos - newest) / 1e9)
    abandoned = bool(unflushed) and idle is not None and idle >= abandoned_after_seconds
    if abandoned and _is_covered(stores, manifest, listed):
        unflushed, abandoned = 0, False
    return WalSize(
        entries=len(listed),
        size_bytes=sum(info.size_bytes for _, info in listed),
        unflushed=unflushed,
        idle_seconds=None if idle is None else round(idle, 1),
        abandoned=abandoned,
    )


def _is_covered(
    stores: Stores, manifest: ShardManifest, listed: Sequence[tuple[int, StoredFile]]
) -> bool:
    """Whether the newest entry with rows is in a generation, whatever the replay position says.

    The one request that status makes for a WAL besides its listing, and only before it would raise
    a false alarm: pylance understates the position at times (see `plan.replay`).
    """
    newest = max((p for p in listed if p[1].size_bytes > SENTINEL_BYTES_MAX), default=None)
    if newest is None:
        return True
    try:
        head = stores.wal.head(newest[1].path, newest[1].size_bytes)
    except MemWalError:
        return False
    return head.generation is not None and head.generation < manifest.current_generation
