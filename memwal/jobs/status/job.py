"""`memwal status` over tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, StandDown, Unreachable
from memwal.format import layout
from memwal.jobs.status.plan import (
    AbandonedLimits,
    Condition,
    DueLimits,
    find_due_shards,
    measure_wal,
)
from memwal.jobs.status.report import (
    StatusTableReport,
    UntilReport,
    find_attention,
    judge_conditions,
    report_status,
    sum_up_conditions,
)
from memwal.jobs.status.store import Kept, is_covered, read_kept, read_last_backup
from memwal.jobs.status.until import Until, Waiter, choose_target, describe_missing
from memwal.model import (
    FRESHNESS_SECONDS,
    LeaseClaim,
    ShardFiles,
    ShardId,
    TableView,
)
from memwal.options import Consistency
from memwal.report import DONE, PARTIAL, JobReport, LastBackupReport, TableReport
from memwal.rows.progress import warn_untouched
from memwal.run.compaction_advice import find_compaction_advice
from memwal.run.fanout import Fanout
from memwal.run.lease import describe_lease
from memwal.run.options import RunOptions, choose_limits
from memwal.run.policy_choice import list_expire_warnings, list_policy_warnings
from memwal.run.progress import SILENT, Progress
from memwal.run.reports import describe_checkpoint, describe_cursor
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import TABLE_READERS_MAX, OpenTable
from memwal.store.tables.view import Listed
from memwal.threads import side_by_side

_READERS_MAX = 16  # enough that a few stores that do not answer leave room for others


def run_status(
    options: RunOptions,
    progress: Progress = SILENT,
    *,
    consistency: Consistency = "latest",
    conditions: Sequence[Condition] = (),
    until: Until | None = None,
) -> JobReport:
    """Report the status of each table, with shards as they are now or as in the shard snapshot.

    With `until`, first wait for that; tables share its time.
    """
    looks: dict[str, _Look] = {}
    deadline = SystemClock().monotonic_seconds() + (0.0 if until is None else until.timeout_seconds)

    def read(stores: Stores, fanout: Fanout) -> TableView:
        if until is not None:  # what is to be reported is only there after the wait
            return stores.views.table()
        looks[stores.uri] = look = _look(stores, consistency)
        return look.view

    def status(
        table: OpenTable, backup: LastBackupReport | None, stores: Stores, view: TableView
    ) -> TableReport:
        waited = None
        if until is not None:
            waited = _wait(stores, view, until, deadline, progress)
            looks[stores.uri] = _look(stores, consistency)
        found = _status(table.resolved, stores, looks[stores.uri], backup)
        if until is not None and waited is not None:
            found = _settle(found, waited, until)
        judged = judge_conditions(found, conditions)
        attention = find_attention(judged, choose_limits(DueLimits, table.resolved))
        return judged.model_copy(update={"attention": attention})

    readers = _READERS_MAX if any(t.is_remote for t in options.tables) else TABLE_READERS_MAX
    runner = JobRunner(name="status", read=read, readers_max=readers, looks_only=True)

    def all_tables(tables: Sequence[OpenTable], fanout: Fanout) -> Iterator[TableReport]:
        named = [table.resolved for table in tables]
        for table, backup in zip(
            tables, side_by_side(read_last_backup, named, readers), strict=True
        ):
            table.begin()
            yield runner.report(table, partial(status, table, backup))

    return sum_up_conditions(runner.run_together(options, all_tables, progress))


def _wait(
    stores: Stores, view: TableView, until: Until, deadline: float, progress: Progress
) -> UntilReport:
    target = choose_target(view, until.generations)

    def tell(missing: Mapping[ShardId, int]) -> None:
        # The report has what the last look found.
        if missing and stores.clock.monotonic_seconds() < deadline:
            progress.say(describe_missing(until.step, target, missing))

    def list_folders(shard: ShardId) -> Iterator[int]:
        names = stores.objects.list_folders(layout.shard_folder(shard))
        numbers = map(layout.parse_generation_folder, names)
        return (number for number in numbers if number is not None)

    waiter = Waiter(
        views=stores.views,
        shards=stores.shard_manifests,
        folders=list_folders,
        clock=stores.clock,
        tell=tell,
    )
    left = max(0.0, deadline - stores.clock.monotonic_seconds())
    missing = waiter.run(until.step, target, timeout_seconds=left)
    return UntilReport(
        step=until.step.value, reached=not missing, target=dict(target), missing=dict(missing)
    )


def _settle(report: StatusTableReport, waited: UntilReport, until: Until) -> StatusTableReport:
    """With how the wait ended, which decides: a shard that nobody waits for may be broken."""
    update: dict[str, Any] = {"until": waited}
    if not waited.reached:
        text = describe_missing(until.step, waited.target, waited.missing)
        late = StandDown(f"not there after {until.timeout_seconds:g} s: {text}")
        update |= {"outcome": late.outcome, "exit_code": late.exit_code, "error": str(late)}
    elif report.outcome == PARTIAL:
        update |= {"outcome": DONE, "exit_code": 0, "error": None}
    return report.model_copy(update=update)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """All that was read of one table. `lease` is an error if the claim can't be read."""

    view: TableView
    listed: Listed
    lease: LeaseClaim | MemWalError | None
    kept: Kept


def _look(stores: Stores, consistency: Consistency) -> _Look:
    lease: LeaseClaim | MemWalError | None
    try:
        lease, reached = stores.leases.glance(), True
    except Unreachable:
        raise  # every other request would wait as long
    except MemWalError as error:
        lease, reached = error, False
    listed: dict[ShardId, ShardFiles] = {}

    def look() -> TableView:
        view, found = stores.views.table_and_wal(reached=reached)
        listed.update(found)
        return view

    view = look() if consistency == "latest" else stores.views.from_snapshot(look, sizes=True)
    return _Look(view=view, listed=listed, lease=lease, kept=read_kept(stores, view))


def _status(
    table: ResolvedTable, stores: Stores, look: _Look, backup: LastBackupReport | None
) -> StatusTableReport:
    view, kept = look.view, look.kept
    now, limits = stores.clock.now_nanos(), choose_limits(AbandonedLimits, table)
    manifests = {shard.shard_id: shard.manifest for shard in view.shards}
    if isinstance(look.lease, MemWalError):
        raise look.lease
    skew = None if look.lease is None else stores.leases.skew_text(look.lease)
    stored = (*list_policy_warnings(table, view), *list_expire_warnings(table, view))
    report = report_status(
        table.name,
        view,
        wal=lambda s: measure_wal(
            manifests[s], look.listed.get(s), limits, now, partial(is_covered, stores, manifests[s])
        ),
        unindexed_rows=lambda name: stores.tables.unindexed_rows(view.version, name),
        due=find_due_shards(view, choose_limits(DueLimits, table), now),
        now_nanos=now,
        collects=table.settings.retention is not None,
        records=kept.records,
        stored_cursors=kept.cursors,
        backup=backup,
        warnings=[*warn_untouched(view), *stored, *filter(None, [skew]), *kept.warnings],
        lease=describe_lease(look.lease, now),
        freshness_seconds=table.settings.freshness or FRESHNESS_SECONDS,
        compaction=find_compaction_advice(stores.tables, view.version, table),
        checkpoints=tuple(describe_checkpoint(found, now) for found in kept.checkpoints),
        cursors=tuple(describe_cursor(found, view.version) for found in kept.cursors),
    )
    if (lost := kept.lost) is None:
        return report
    update = {"outcome": lost.outcome, "exit_code": lost.exit_code, "error": str(lost)}
    return report.model_copy(update=update)
