"""`memwal index-catchup` over tables: append and retrain here, segments on the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import RenderableType

from memwal.grid import Column, build_table, format_count, numbers, prose, style_outcome, words
from memwal.jobs.index_catchup.apply import Built, IndexCatchupJob, SegmentTask
from memwal.jobs.index_catchup.plan import (
    CatchupLimits,
    IndexCatchupReport,
    IndexCatchupTableReport,
    weigh,
)
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.jobs.index_catchup.store import LanceIndexTable, SegmentUnit, run_segment_unit
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

# Indexing a row takes about as long as merging so many bytes.
_ROW_BYTES = 40


@dataclass(frozen=True, kw_only=True)
class IndexCatchupOptions(RunOptions):
    """The options of `index-catchup`. `steps` is called at the steps of every table."""

    request: CatchupRequest = CatchupRequest()
    steps: Steps = no_steps


def run_index_catchup(options: IndexCatchupOptions, progress: Progress) -> JobReport:
    """Catch up the indexes of each table; with `dry_run`, only report what that would do."""

    def catch_up(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        job = make_catchup_job(table, stores, fanout, options)
        report = job.run(view, dry_run=options.dry_run)
        version = report.version_after or view.version
        advice = find_compaction_advice(stores.tables, version, table.resolved)
        return report.model_copy(update={"compaction": advice})

    return JobRunner(name="index-catchup").run_each(options, catch_up, progress)


def make_catchup_job(
    table: OpenTable,
    stores: Stores,
    fanout: Fanout,
    options: IndexCatchupOptions,
) -> IndexCatchupJob:
    """Make the job for one table, on its stores."""

    def build(tasks: Sequence[SegmentTask]) -> Sequence[Built]:
        rows = sum(weigh(task.kind, f.rows) for task in tasks for f in task.fragments)
        return fanout.run_tasks(
            table, SegmentUnit, run_segment_unit, tasks,
            what="segments", in_memory_bytes=rows * _ROW_BYTES,
        )  # fmt: skip

    return IndexCatchupJob(
        name=table.resolved.name,
        views=stores.views,
        table=LanceIndexTable(stores.tables),
        clock=stores.clock,
        build=build,
        request=options.request,
        limits=choose_limits(CatchupLimits, table.resolved),
        steps=options.steps,
        take_lease=partial(table.take_lease, "index-catchup", options),
        is_current=table.is_current,
        before_commit=table.before_commit,
    )


# ---- what people see


INDEXES: tuple[Column[IndexCatchupReport], ...] = (
    words("index", lambda index: index.name),
    words("outcome", lambda index: style_outcome(index.outcome)),
    words("method", lambda index: index.method),
    numbers("unindexed rows", lambda index: f"{format_count(index.unindexed_rows_before)} -> "
                                            f"{format_count(index.unindexed_rows_after)}"),
    numbers("seconds", lambda index: f"{index.seconds:.2f}"),
    prose("why", lambda index: index.reason or ""),
)  # fmt: skip


def show_table(report: IndexCatchupTableReport) -> list[RenderableType]:
    """Render a line for each index."""
    return [build_table(report.indexes, INDEXES)] if report.indexes else []
