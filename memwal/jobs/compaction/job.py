"""`memwal compaction` over tables: tasks on the engine, their commit, indexes caught up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from memwal.config import CompactionMode, ResolvedTable
from memwal.grid import build_table, format_size, numbers, words
from memwal.jobs.compaction.apply import Compactor, Rewritten
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTableReport, CompactionTask
from memwal.jobs.compaction.store import CompactionUnit, LanceCompactionTable, run_compaction_unit
from memwal.jobs.index_catchup.job import INDEXES, IndexCatchupOptions, make_catchup_job
from memwal.model import TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport
from memwal.run.compaction_advice import find_compaction_advice
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions, choose_limits
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.objects.opening import read_store_time
from memwal.text import count_of


@dataclass(frozen=True, kw_only=True)
class CompactionOptions(RunOptions):
    """The options of `compaction`. `steps` is called at the steps of every table.

    Tables of the mode auto, which `choose_mode` tells, are compacted where that is advised.
    """

    choose_mode: Callable[[ResolvedTable], CompactionMode] = lambda table: "always"
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

        is_advised = options.choose_mode(table.resolved) == "always"
        if not is_advised:
            advice = find_compaction_advice(stores.tables, view.version, table.resolved)
            is_advised = advice is not None and advice.reason is not None
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
            is_advised=is_advised,
            steps=options.steps,
            take_lease=partial(table.take_lease, "compaction", options),
            before_commit=table.before_commit,
            intend=lambda item: table.intend([item]),
        ).run(view, dry_run=options.dry_run)

    return JobRunner(name="compaction").run_each(options, compact, progress)


# ---- what people see


COUNTED = ("fragments", "files", "rows", "deleted_rows")


def show_table(report: CompactionTableReport) -> list[RenderableType]:
    """Render what was rewritten, the counts before and after, and the indexes caught up."""
    if report.fragments_before is None:
        return []
    size = format_size(report.bytes_rewritten)
    counts = build_table(
        COUNTED,
        (
            words("", lambda name: name.replace("_", " ")),
            numbers("before", lambda name: getattr(report, f"{name}_before")),
            numbers("after", lambda name: getattr(report, f"{name}_after")),
        ),
    )
    indexes = [build_table(report.indexes, INDEXES)] if report.indexes else []
    done = f"{count_of(report.tasks, 'task')}, {size}, {count_of(report.commits, 'commit')}"
    text = f"  {done}: {report.reason}"
    aged = []
    if report.expired_rows is not None:
        rows = count_of(report.expired_rows, "row")
        aged = [Text(f"  {rows} older than {report.expired_before}; {report.purged_rows} purged")]
    return [Text(text), *aged, counts, *indexes]
