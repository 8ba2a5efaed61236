"""`memwal index-catchup` over tables: append and retrain here, segments as units on the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwal.config import Settings
from memwal.jobs.index_catchup.apply import (
    Built,
    IndexCatchup,
    IndexCatchupJob,
    TableCatchup,
    no_steps,
)
from memwal.jobs.index_catchup.plan import COSTS, CatchupLimits, CatchupRequest
from memwal.jobs.index_catchup.ports import SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.jobs.index_catchup.unit import SegmentUnit, run_segment_unit
from memwal.jobs.status.apply import view_warnings
from memwal.model import TableView
from memwal.ports import Steps
from memwal.report import (
    IndexCatchupReport,
    IndexCatchupTableReport,
    JobReport,
    TableReport,
    sum_up,
)
from memwal.run.each import run_each, run_for
from memwal.run.engine import LOCAL_BYTES_PER_SECOND
from memwal.run.fanout import Fanout
from memwal.run.open import OpenTable, Progress, RunOptions, chosen_limits
from memwal.run.stores import Stores
from memwal.run.units import lost_unit


@dataclass(frozen=True, kw_only=True)
class IndexCatchupOptions(RunOptions):
    """What `index-catchup` takes besides. `steps` is told the steps of every table."""

    request: CatchupRequest = CatchupRequest()
    limits: Settings = Settings()
    steps: Steps = no_steps


def run_index_catchup(options: IndexCatchupOptions, progress: Progress) -> JobReport:
    """Catch up the indexes of each table, or with `dry_run` tell what that would do."""
    return run_each(
        "index-catchup",
        options,
        progress,
        lambda table, stores, view, fanout: _table(table, stores, view, fanout, options, progress),
    )


def _table(
    table: OpenTable,
    stores: Stores,
    view: TableView,
    fanout: Fanout,
    options: IndexCatchupOptions,
    progress: Progress,
) -> TableReport:
    job = catchup_job(
        table,
        stores,
        fanout,
        progress,
        limits=chosen_limits(CatchupLimits, table, options.limits),
        steps=options.steps,
    )
    if options.dry_run or not job.has_work(view, options.request):
        return _report(table, view, job.foresee(view, options.request))
    table.take_lease("index-catchup", options)
    # What was planned before the lease was ours may be old; the run reads everything again.
    return _report(table, view, job.run(options.request))


def catchup_job(
    table: OpenTable,
    stores: Stores,
    fanout: Fanout,
    progress: Progress,
    *,
    limits: CatchupLimits,
    steps: Steps,
) -> IndexCatchupJob:
    """The job of one table on real stores."""
    return IndexCatchupJob(
        views=stores.views,
        table=LanceIndexTable(stores.tables),
        clock=stores.clock,
        build=_builder(table, stores, fanout, progress),
        limits=limits,
        steps=steps,
        before_commit=table.before_commit,
    )


def _builder(
    table: OpenTable,
    stores: Stores,
    fanout: Fanout,
    progress: Progress,
) -> Callable[[Sequence[SegmentTask]], Sequence[Built]]:
    def build(tasks: Sequence[SegmentTask]) -> Sequence[Built]:
        units = [
            SegmentUnit(
                uri=stores.uri,
                storage_options=table.resolved.storage_options,
                task=task,
            )
            for task in tasks
        ]
        seconds = sum(COSTS.seconds(t.kind, sum(f.rows for f in t.fragments)) for t in tasks)
        size = int(seconds * LOCAL_BYTES_PER_SECOND)
        results = run_for(
            table,
            fanout,
            progress,
            run_segment_unit,
            units,
            what="segments",
            in_memory_bytes=size,
            lost=lost_unit,
        )
        return [result.made for result in results]

    return build


def _report(table: OpenTable, view: TableView, found: TableCatchup) -> TableReport:
    parts = index_reports(found)
    outcome, code = sum_up(parts)
    return IndexCatchupTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error=index_errors(parts),
        version_before=view.version,
        version_after=found.version,
        indexes=parts,
        warnings=view_warnings(view),
    )


def index_errors(parts: Sequence[IndexCatchupReport]) -> str | None:
    """The errors of a table's indexes in one line."""
    return "; ".join(f"{p.name}: {p.error}" for p in parts if p.error) or None


def index_reports(found: TableCatchup) -> tuple[IndexCatchupReport, ...]:
    """One report an index."""
    return tuple(_index_report(index) for index in found.indexes)


def _index_report(index: IndexCatchup) -> IndexCatchupReport:
    return IndexCatchupReport(
        name=index.name,
        outcome=index.outcome,
        error=index.error,
        exit_code=index.exit_code,
        method=index.method.value,
        unindexed_rows_before=index.unindexed_rows_before,
        unindexed_rows_after=index.unindexed_rows_after,
        caught_up_before={str(s): g for s, g in sorted(index.recorded.items())},
        caught_up={str(s): g for s, g in sorted(index.caught_up.items())},
        seconds=round(index.seconds, 3),
        reason=index.reason,
        conflicts=index.conflicts,
    )
