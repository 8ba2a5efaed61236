"""`memwal backfill`: merges, index catch-ups or both on many tables.

Tables of a higher priority come first, and of those as important the one with most to do. All
tables share engines. A rerun after a kill finds nothing to do where the killed run was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.clock import SystemClock
from memwal.errors import MemWalError
from memwal.jobs.backfill.plan import (
    MERGE,
    ORDER,
    check_shards,
    find_shards,
    measure_backlog,
    sort_largest_first,
)
from memwal.jobs.backfill.report import FINISHED, BackfillReport, TableBackfill
from memwal.jobs.backfill.request import BackfillRequest
from memwal.jobs.backfill.workers import Backfill, choose_merge_engine
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.request import MergeRequest
from memwal.options import narrow
from memwal.report import (
    NOTHING_TO_DO,
    EngineReport,
    JobOnTable,
    JobReport,
    TableReport,
    failed_report,
)
from memwal.run.fanout import share_engines
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions, choose_limits, share_memory
from memwal.run.progress import Progress, Quiet
from memwal.run.reports import add_counts
from memwal.run.stores import OpenedBefore, check_lance_version
from memwal.run.tables import OpenTable, open_tables
from memwal.run.workers import cancel
from memwal.text import count_of


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(RunOptions):
    """The options of `backfill`. `so_far` is called with the run's report as it grows."""

    request: BackfillRequest = BackfillRequest()
    so_far: Callable[[JobReport], None] = lambda report: None


def run_backfill(options: BackfillOptions, progress: Progress) -> BackfillReport:
    """Run the jobs on every table that can be read; with `dry_run`, report order and backlog."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    before = OpenedBefore()
    progress.say(f"looking at {count_of(len(options.tables), 'table')}")
    looking = replace(options, opened_before=before)
    with open_tables(looking, lambda stores: stores.views.table(pending_sizes=True)) as opened:
        tables = _plan(opened, options)
        requests = add_counts(table.requests() for table in opened)
    engine = choose_merge_engine(tables, options.asked_engine)
    with ChainLeases("backfill", warn=progress.warn) as leases, share_engines(options) as engines:
        inside = replace(options, opened_before=before, engines=engines, leases=leases)
        backfill = Backfill(
            tables=tables,
            jobs=[job for job in ORDER if job in options.request.jobs],
            run_job=lambda name, table: _run_job(name, table, inside, engine, progress),
            forget=lambda table: before.forget(table.resolved.uri),
            leases=leases,
            stop_engines=engines.cancel,
            show_report=options.so_far,
            engine=engine,
            clock=clock,
            started=started,
            progress=progress,
            dry_run=options.dry_run,
            concurrency=options.request.concurrency,
            deadline_seconds=options.request.deadline_seconds,
            requests=requests,
        )
        return backfill.report(finished=True) if options.dry_run else backfill.run()


def _plan(opened: Sequence[OpenTable], options: BackfillOptions) -> list[TableBackfill]:
    """The tables in the order to begin them; unreadable ones come last, already finished."""
    check_shards([table.view for table in opened], options.request.shards)
    readable, broken = [], []
    beside = min(options.request.concurrency, len(opened))
    for table in opened:
        try:
            stores, view = table.require()
            shards = find_shards(view, options.request.shards)
        except MemWalError as error:
            failed = JobOnTable(job="look", report=failed_report(table.resolved.name, error))
            broken.append(TableBackfill(resolved=table.resolved, state=FINISHED, jobs=[failed]))
            continue
        backlog = measure_backlog(
            view,
            options.request.jobs,
            shards or options.request.shards,
            options.request,
            partial(stores.tables.unindexed_rows, view.version),
        )
        readable.append(
            TableBackfill(
                resolved=share_memory(table.resolved, beside),
                backlog=backlog,
                limits=choose_limits(MergeLimits, table.resolved, options.request),
                shards=shards,
            )
        )
    order = sort_largest_first([table.backlog for table in readable if table.backlog is not None])
    found = sorted((readable[n] for n in order), key=lambda table: -table.resolved.priority)
    return [*found, *broken]


def _run_job(
    name: str,
    table: TableBackfill,
    options: BackfillOptions,
    engine: EngineReport,
    progress: Progress,
) -> JobReport:
    """Run one job on one table."""
    tables, quiet = [table.resolved], Quiet(progress)
    if name != MERGE:
        chosen = options.for_job(IndexCatchupOptions, tables, steps=lambda step: cancel.check())
        return run_index_catchup(chosen, quiet)
    if options.request.shards and not table.shards:
        nothing = TableReport(table=table.resolved.name, outcome=NOTHING_TO_DO)
        return JobReport(job=MERGE, outcome=NOTHING_TO_DO, tables=(nothing,))
    request = narrow(options.request, MergeRequest, shards=table.shards)
    merge = options.for_job(MergeOptions, tables, request=request)
    own = table.resolved.settings.engine
    if options.engine is None and own in (None, "auto") and engine.name != "none":
        merge = replace(merge, engine=engine.name)
    return run_merge(merge, quiet)
