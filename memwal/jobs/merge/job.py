"""`memwal merge` over tables: plan here, units on the engine, one report.

A unit is what travels to an executor: one shard of a table, or several that share commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import MemWalError, WorkerDied
from memwal.jobs.merge.apply import RefreshWatch, ShardMerger, report_dry_run
from memwal.jobs.merge.apply.shared_commits import SharedMerger
from memwal.jobs.merge.plan import (
    LeftShard,
    MergeLimits,
    choose_generations,
    choose_shards,
    group_shards,
    hold,
    size_work,
)
from memwal.jobs.merge.report import ShardReport, report_merge
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.store import LanceMergeTable
from memwal.jobs.merge.store.commits import HostCommitQueue
from memwal.jobs.snapshot.job import fence_off
from memwal.model import ShardId, ShardView
from memwal.report import DONE, FAILED, NOTHING_TO_DO, JobReport, TableReport, failed_report
from memwal.rows.memory import needed_bytes
from memwal.run.fanout import Fanout
from memwal.run.former_merges import record_former
from memwal.run.options import RunOptions, choose_limits
from memwal.run.policy_choice import choose_policy, list_policy_warnings, store_policy
from memwal.run.process import process_memory
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.run.units import TableUnit, UnitResult, lost_unit, run_unit
from memwal.run.workers import cancel
from memwal.store.tables.generations import Generations, Lineage


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
                fence_off(merge.table, "merge", options)
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
            report_dry_run(stores.views, view, shard, request, merge.limits) for shard in merge.work
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


# ---- units


MergeResult = UnitResult[tuple[ShardReport, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeUnit(TableUnit):
    """Merge one shard of one table, or several that share commits."""

    shard_ids: tuple[ShardId, ...]
    request: MergeRequest
    limits: MergeLimits
    lease_token: int | None = None
    lineage: Lineage = field(default_factory=Lineage)
    held_bytes_min: int = 0
    """Memory that the largest generation takes: every commit holds at least one generation."""

    @property
    def memory_bytes_needed(self) -> int:
        """See `TableUnit`."""
        return needed_bytes(self.held_bytes_min)

    def one_by_one(self) -> list[MergeUnit]:
        """A unit for each of its shards."""
        return [replace(self, shard_ids=(shard_id,)) for shard_id in self.shard_ids]


def make_units(
    table: OpenTable, work: Sequence[ShardView], request: MergeRequest, limits: MergeLimits
) -> list[MergeUnit]:
    """The units for a table's shards with work, each with what was read of the table's lineage."""
    view, stores = table.view, table.stores
    if not work or view is None or stores is None:
        return []
    largest = {
        shard.shard_id: max(hold([g]) for g in choose_generations(shard, request)) for shard in work
    }
    lineage = Lineage() if request.allow_reinitialised else stores.views.lineage(view, work)
    groups = group_shards(view, work, request, limits)
    return [
        MergeUnit(
            uri=view.uri,
            storage_options=stores.storage_options,
            shard_ids=shard_ids,
            request=request,
            limits=limits,
            lease_token=table.lease_token,
            lineage=lineage.part(shard_ids),
            memory_bytes_max=limits.memory_bytes_max,
            held_bytes_min=max(largest[shard_id] for shard_id in shard_ids),
        )
        for shard_ids in groups
    ]


def run_merge_unit(unit: MergeUnit) -> MergeResult:
    """Run one unit in this process. Never raises: a bad shard must not stop the others."""
    process_memory.limit_arenas()
    result = run_unit(unit, lambda stores: _merge(unit, stores))
    if isinstance(result.made, MemWalError):
        if len(unit.shard_ids) > 1:
            return join_results(unit, [run_merge_unit(single) for single in unit.one_by_one()])
        return result
    traces = [report.trace for report in result.made if report.trace]
    return replace(result, trace="\n".join(traces) or None)


def open_merge_table(stores: Stores) -> LanceMergeTable:
    """The MergeTable adapter for a table's stores."""
    generations = Generations(
        objects=stores.objects, tables=stores.tables, field_ids=stores.views.field_ids
    )
    return LanceMergeTable(generations, stores.clock)


def _merge(unit: MergeUnit, stores: Stores) -> tuple[ShardReport, ...]:
    stores.views.learn(unit.lineage)
    watch = RefreshWatch(leases=stores.leases, lease_token=unit.lease_token)

    def before_commit() -> None:
        cancel.check()
        watch.before_commit()

    merger = ShardMerger(
        views=stores.views,
        table=open_merge_table(stores),
        clock=stores.clock,
        limits=replace(unit.limits, memory_bytes_max=unit.memory_bytes_max),
        before_commit=before_commit,
        before_view=watch.before_view,
        queue=HostCommitQueue(unit.uri, stores.clock, waiting=cancel.check),
    )
    if len(unit.shard_ids) == 1:
        return (merger.run(unit.shard_ids[0], unit.request),)
    return SharedMerger(single=merger).run(unit.shard_ids, unit.request)


def join_results(unit: MergeUnit, singles: Sequence[MergeResult]) -> MergeResult:
    """Join the results of a unit's shards that ran one by one into one result."""
    requests: Counter[str] = Counter()
    for single in singles:
        requests.update(single.requests)
    return UnitResult(
        made=tuple(
            report
            for one, single in zip(unit.one_by_one(), singles, strict=True)
            for report in report_shards(one, single)
        ),
        requests=requests,
        trace="\n".join(single.trace for single in singles if single.trace) or None,
    )


def report_shards(unit: MergeUnit, result: MergeResult) -> tuple[ShardReport, ...]:
    """One report for each shard; of a failed unit, each with the unit's error.

    What such a unit had committed before stays in the table.
    """
    error = result.made
    if not isinstance(error, MemWalError):
        return error
    return tuple(
        ShardReport(
            shard_id=shard_id,
            outcome=FAILED,
            error=f"{unit.uri}: shard {shard_id}: {error}",
            exit_code=error.exit_code,
        )
        for shard_id in unit.shard_ids
    )
