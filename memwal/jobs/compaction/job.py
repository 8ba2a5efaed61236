"""`memwal compaction` over tables: tasks on the engine, one commit, indexes caught up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from memwal.jobs.compaction.apply import Compactor, Rewritten
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask
from memwal.jobs.compaction.store import CompactionUnit, LanceCompactionTable, run_compaction_unit
from memwal.jobs.index_catchup.job import IndexCatchupOptions, make_catchup_job
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions, choose_limits
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.objects.opening import read_store_time


@dataclass(frozen=True, kw_only=True)
class CompactionOptions(RunOptions):
    """The options of `compaction`. `steps` is called at the steps of every table."""

    steps: Steps = no_steps


def run_compaction(options: CompactionOptions, progress: Progress) -> JobReport:
    """Compact each table; with `dry_run`, only report what that would do."""
    catchup_options = IndexCatchupOptions(tables=options.tables, steps=options.steps)

    def compact(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        def rewrite(tasks: Sequence[CompactionTask]) -> Sequence[Rewritten]:
            return fanout.run_tasks(
                table, CompactionUnit, run_compaction_unit, tasks,
                what="rewrites", in_memory_bytes=sum(task.file_bytes for task in tasks),
            )  # fmt: skip

        catchup = make_catchup_job(table, stores, fanout, catchup_options)
        return Compactor(
            name=table.resolved.name,
            views=stores.views,
            table=LanceCompactionTable(stores.tables),
            clock=stores.clock,
            read_store_time=partial(read_store_time, stores.objects),
            rewrite=rewrite,
            plan_indexes=lambda view: catchup.plan(view).indexes,
            catch_up=lambda: catchup.catch_up(view).indexes,
            limits=choose_limits(CompactionLimits, table.resolved),
            steps=options.steps,
            take_lease=partial(table.take_lease, "compaction", options),
            before_commit=table.before_commit,
        ).run(view, dry_run=options.dry_run)

    return JobRunner(name="compaction").run_each(options, compact, progress)
