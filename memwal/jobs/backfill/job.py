"""`memwal backfill`: merges, index catch-ups or both on many tables, each by maintain's chain.

Tables of a higher priority come first, and of those as important the one with most to merge. All
tables share engines. A rerun after a kill finds nothing to do where the killed run was done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.backfill.plan import check_shards, find_shards, weigh
from memwal.jobs.backfill.report import BackfillReport, BackfillTableReport
from memwal.jobs.backfill.request import BackfillRequest
from memwal.jobs.backfill.workers import Backfill, Chain
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from memwal.options import narrow
from memwal.ports import Steps
from memwal.report import JobOnTable, JobReport, failed_report
from memwal.run.fanout import share_engines
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions, share_memory
from memwal.run.progress import Progress, Quiet
from memwal.run.reports import add_counts, sum_up_jobs
from memwal.run.stores import OpenedBefore, check_lance_version
from memwal.run.tables import OpenTable, open_tables
from memwal.text import count_of


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(RunOptions):
    """The options of `backfill`. `so_far` is called with the run's report as it grows."""

    request: BackfillRequest = BackfillRequest()
    so_far: Callable[[JobReport], None] = lambda report: None


def run_backfill(options: BackfillOptions, progress: Progress) -> BackfillReport:
    """Run the jobs on every table that can be read; with `dry_run`, report what they would do."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    before = OpenedBefore()
    progress.say(f"looking at {count_of(len(options.tables), 'table')}")
    looking = replace(options, opened_before=before)
    with open_tables(looking, lambda stores: stores.views.table(pending_sizes=True)) as opened:
        going, broken = _plan(opened, options)
        requests = add_counts(table.requests() for table in opened)
    with ChainLeases("backfill", warn=progress.warn) as leases, share_engines(options) as engines:
        inside = replace(options, opened_before=before, engines=engines, leases=leases)
        return Backfill(
            chains=[(t.name, _chain(t, shards, inside, progress)) for t, shards in going],
            unread=broken,
            stop_engines=engines.cancel,
            show_report=options.so_far,
            clock=clock,
            started=started,
            progress=progress,
            concurrency=options.request.concurrency,
            deadline_seconds=options.request.deadline_seconds,
            dry_run=options.dry_run,
            requests=[requests],
        ).run()


def _plan(
    opened: Sequence[OpenTable], options: BackfillOptions
) -> tuple[list[tuple[ResolvedTable, Sequence[ShardId]]], list[BackfillTableReport]]:
    """The tables in the order to begin them, with the shards to merge; and the unreadable ones."""
    asked, broken = options.request.shards, []
    check_shards([table.view for table in opened], asked)
    found = []
    beside = min(options.request.concurrency, len(opened))
    for table in opened:
        name = table.resolved.name
        try:
            _, view = table.require()
            shards = find_shards(view, asked)
        except MemWalError as error:
            failed = JobOnTable(job="look", report=failed_report(name, error))
            broken.append(BackfillTableReport(table=name, **sum_up_jobs([failed])))
            continue
        rank = (table.resolved.priority, weigh(view, shards or asked, options.request))
        found.append((rank, share_memory(table.resolved, beside), shards))
    found.sort(key=lambda one: one[0], reverse=True)
    return [(table, shards) for _, table, shards in found], broken


def _chain(
    table: ResolvedTable, shards: Sequence[ShardId], options: BackfillOptions, progress: Progress
) -> Chain:
    jobs = set(options.request.jobs)
    if options.request.shards and not shards:
        jobs.discard("merge")  # the shards that were asked for are other tables'

    def run(steps: Steps) -> JobReport:
        merge = narrow(options.request, MergeRequest, shards=shards)
        try:
            return run_maintain(
                options.for_job(MaintainOptions, [table], jobs=jobs, merge=merge, steps=steps),
                Quiet(progress),
            )
        finally:
            if options.leases is not None:
                options.leases.give_back(table.uri)

    return run
