"""`memwal compaction` over tables: tasks as units on the engine, one commit, indexes caught up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwal.config import Settings
from memwal.jobs.compaction.apply import Compactor, Rewritten, TableCompaction
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask
from memwal.jobs.compaction.store import LanceCompactionTable
from memwal.jobs.compaction.unit import CompactionUnit, run_compaction_unit
from memwal.jobs.index_catchup.apply import TableCatchup, no_steps
from memwal.jobs.index_catchup.job import catchup_job, index_errors, index_reports
from memwal.jobs.index_catchup.plan import CatchupLimits, CatchupRequest
from memwal.jobs.status.apply import view_warnings
from memwal.model import TableView
from memwal.ports import Steps
from memwal.report import (
    DONE,
    NOTHING_TO_DO,
    CompactionTableReport,
    JobReport,
    Part,
    TableReport,
    sum_up,
)
from memwal.run.each import run_each, run_for
from memwal.run.fanout import Fanout
from memwal.run.open import OpenTable, Progress, RunOptions, chosen_limits
from memwal.run.stores import Stores
from memwal.run.units import lost_unit


@dataclass(frozen=True, kw_only=True)
class CompactionOptions(RunOptions):
    """What `compaction` takes besides. `steps` is told the steps of every table."""

    limits: Settings = Settings()
    steps: Steps = no_steps


def run_compaction(options: CompactionOptions, progress: Progress) -> JobReport:
    """Compact each table, or with `dry_run` tell what that would do."""
    return run_each(
        "compaction",
        options,
        progress,
        lambda table, stores, view, fanout: _table(table, stores, view, fanout, options, progress),
    )


def _table(
    table: OpenTable,
    stores: Stores,
    view: TableView,
    fanout: Fanout,
    options: CompactionOptions,
    progress: Progress,
) -> TableReport:
    catchup = catchup_job(
        table,
        stores,
        fanout,
        progress,
        limits=chosen_limits(CatchupLimits, table, options.limits),
        steps=options.steps,
    )
    compactor = Compactor(
        views=stores.views,
        table=LanceCompactionTable(stores.tables),
        clock=stores.clock,
        rewrite=_rewriter(table, stores, fanout, progress),
        catch_up=lambda: catchup.run(CatchupRequest()),
        limits=chosen_limits(CompactionLimits, table, options.limits),
        steps=options.steps,
        before_commit=table.before_commit,
    )
    fragments, plan = compactor.foresee(view)
    # An index that is behind is work too: a run that died before it put that right left it so,
    # and fragments that differ in coverage only are not planned together.
    foreseen = catchup.foresee(view, CatchupRequest())
    behind = any(i.outcome == DONE for i in foreseen.indexes)
    if options.dry_run or not (plan.tasks or behind):
        found = TableCompaction(
            outcome=DONE if plan.tasks else NOTHING_TO_DO,
            reason=plan.reason,
            before=fragments,
            after=fragments,
            tasks=len(plan.tasks),
            tasks_left=plan.left_out,
            file_bytes=plan.file_bytes,
            catchup=foreseen,
        )
        return _report(table, view, found)
    table.take_lease("compaction", options)
    return _report(table, view, compactor.run())


def _rewriter(
    table: OpenTable,
    stores: Stores,
    fanout: Fanout,
    progress: Progress,
) -> Callable[[Sequence[CompactionTask]], Sequence[Rewritten]]:
    def rewrite(tasks: Sequence[CompactionTask]) -> Sequence[Rewritten]:
        units = [
            CompactionUnit(
                uri=stores.uri, storage_options=table.resolved.storage_options, task=task
            )
            for task in tasks
        ]
        size = sum(task.file_bytes for task in tasks)
        results = run_for(
            table,
            fanout,
            progress,
            run_compaction_unit,
            units,
            what="rewrites",
            in_memory_bytes=size,
            lost=lost_unit,
        )
        return [result.made for result in results]

    return rewrite


def _report(table: OpenTable, view: TableView, found: TableCompaction) -> TableReport:
    catchup: TableCatchup | None = found.catchup
    indexes = () if catchup is None else index_reports(catchup)
    own = Part(outcome=found.outcome, error=found.error, exit_code=found.exit_code)
    outcome, code = sum_up((own, *indexes))
    errors = [e for e in (found.error, index_errors(indexes)) if e]
    return CompactionTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=view.version,
        version_after=found.after.version,
        fragments_before=found.before.fragments,
        fragments_after=found.after.fragments,
        files_before=found.before.files,
        files_after=found.after.files,
        rows_before=found.before.rows,
        rows_after=found.after.rows,
        deleted_rows_before=found.before.deleted_rows,
        deleted_rows_after=found.after.deleted_rows,
        tasks=found.tasks,
        tasks_failed=found.tasks_failed,
        tasks_left=found.tasks_left,
        commits=found.commits,
        conflicts=found.conflicts,
        bytes_rewritten=found.file_bytes,
        seconds=round(found.seconds, 3),
        reason=found.reason,
        indexes=indexes,
        warnings=view_warnings(view),
    )
