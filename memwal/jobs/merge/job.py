"""`memwal merge` over tables: plan here, units on the engine, one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from memwal.errors import MemWalError, WorkerDied
from memwal.jobs.merge.apply.shard import foresee_shard
from memwal.jobs.merge.plan import LeftShard, MergeLimits, choose_shards, size_work
from memwal.jobs.merge.report import ShardReport, report_merge
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.unit import (
    MergeUnit,
    join_results,
    make_units,
    report_shards,
    run_merge_unit,
)
from memwal.model import ShardView
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport, failed_report
from memwal.run.fanout import Fanout
from memwal.run.former_merges import record_former
from memwal.run.options import RunOptions, choose_limits
from memwal.run.policy_choice import choose_policy, list_policy_warnings, store_policy
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.tables import OpenTable
from memwal.run.units import lost_unit


@dataclass(frozen=True, kw_only=True)
class MergeOptions(RunOptions):
    """The options of `merge`."""

    request: MergeRequest = MergeRequest()


@dataclass(kw_only=True)
class _TableMerge:
    """The state of one table in the job: shards with work, shards left alone, reports of merges."""

    table: OpenTable
    limits: MergeLimits
    work: Sequence[ShardView] = ()
    left: Sequence[LeftShard] = ()
    merged: list[ShardReport] = field(default_factory=list)


def run_merge(options: MergeOptions, progress: Progress) -> JobReport:
    """Merge pending generations of each table; with `dry_run`, only report what that would do."""

    def merge(tables: Sequence[OpenTable], fanout: Fanout) -> Iterator[TableReport]:
        merges = [_plan(table, options, progress.warn) for table in tables]
        if not options.dry_run:
            _run_units(merges, options, progress, fanout)
        return (_report(merge, options) for merge in merges)

    runner = JobRunner(
        name="merge", read=lambda stores, fanout: stores.views.table(pending_sizes=True)
    )
    return runner.run_together(options, merge, progress)


def _plan(table: OpenTable, options: MergeOptions, warn: Callable[[str], None]) -> _TableMerge:
    """Choose a table's shards, and store the configured row-merge policy for the merge to use."""
    merge = _TableMerge(
        table=table, limits=choose_limits(MergeLimits, table.resolved, options.request)
    )
    if table.view is None:
        return merge
    try:
        record_former(table, options, warn, renewed=False)
        work, merge.left = choose_shards(table.view, options.request.shards, options.request)
        policy = choose_policy(table)
        if policy is not None and not options.dry_run:
            store_policy(table, policy, options)
        merge.work = work
    except MemWalError as error:
        table.error = error
    return merge


def _run_units(
    merges: Sequence[_TableMerge], options: MergeOptions, progress: Progress, fanout: Fanout
) -> None:
    """Merge the shards of all tables side by side."""
    planned: list[tuple[_TableMerge, MergeUnit]] = []
    for merge in merges:
        try:
            if merge.work:
                # Units read their own fresh views, so the plan may be older than the lease.
                merge.table.take_lease("merge", options)
        except MemWalError as error:
            merge.table.error = error
            merge.work = ()
        planned.extend(
            (merge, unit)
            for unit in make_units(merge.table, merge.work, options.request, merge.limits)
        )
    units = [unit for _, unit in planned]
    size = sum(size_work(merge.work, options.request, merge.limits) for merge in merges)
    what = "shards" if all(len(u.shard_ids) == 1 for u in units) else "groups of shards"
    if not units:
        progress.say(f"engine: {fanout.choice.name} ({fanout.choice.reason})")
    results = fanout.run(run_merge_unit, units, what=what, in_memory_bytes=size, lost=lost_unit)
    for (merge, unit), result in zip(planned, results, strict=True):
        if isinstance(result.made, WorkerDied) and len(unit.shard_ids) > 1:
            # Only on Spark, where a worker dies alone: retried so that just the culprit fails.
            singles = unit.one_by_one()
            progress.start("shards, one by one", len(singles))
            found = fanout.spark().run(run_merge_unit, singles, progress.done, lost_unit)
            result = join_results(unit, found)
        merge.merged.extend(report_shards(unit, result))
        fanout.count([merge.table], [result])


def _report(merge: _TableMerge, options: MergeOptions) -> TableReport:
    table, request = merge.table, options.request
    name = table.resolved.name
    try:
        stores, view = table.require()
    except MemWalError as error:
        return failed_report(name, error)
    if options.dry_run:
        if not request.allow_reinitialised:
            stores.views.lineage(view, merge.work)
        planned = [
            foresee_shard(stores.views, view, shard, request, merge.limits) for shard in merge.work
        ]
        more = list_policy_warnings(table.resolved, view)
        return report_merge(name, view, merge.left, planned, version_after=view.version, more=more)
    try:
        after = stores.tables.base().version if table.lease or merge.work else view.version
    except MemWalError:
        after = None
    # Without work, the lease was taken to store the policy, which is a commit as well.
    otherwise = DONE if table.lease and not merge.work else NOTHING_TO_DO
    return report_merge(
        name, view, merge.left, merge.merged, version_after=after, otherwise=otherwise
    )
