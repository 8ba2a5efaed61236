"""`memwal index-catchup` over tables: append and retrain here, segments as units on the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jobs._fanout import Fanout
from jobs._launch import (
    OpenTable,
    Progress,
    RunOptions,
    check_lance_version,
    chosen_limits,
    error_of,
    failed_report,
    job_report,
    open_tables,
)
from jobs._records import RunRecorder
from jobs._units import SegmentUnit, run_segment_unit
from jobs._wiring import Stores
from memwal.apply.index_catchup import (
    Built,
    IndexCatchup,
    IndexCatchupJob,
    TableCatchup,
    no_steps,
)
from memwal.apply.status import view_warnings
from memwal.clock import SystemClock
from memwal.config import Settings
from memwal.errors import MemWalError
from memwal.model import TableView
from memwal.plan.engine import LOCAL_BYTES_PER_SECOND
from memwal.plan.index_catchup import COSTS, CatchupLimits, CatchupRequest
from memwal.ports import Steps
from memwal.report import (
    IndexCatchupReport,
    IndexCatchupTableReport,
    JobReport,
    TableReport,
    sum_up,
)
from memwal.table_ports import SegmentTask


@dataclass(frozen=True, kw_only=True)
class IndexCatchupOptions(RunOptions):
    """What `index-catchup` takes besides. `steps` is told the steps of every table."""

    request: CatchupRequest = CatchupRequest()
    limits: Settings = Settings()
    steps: Steps = no_steps


def run_index_catchup(options: IndexCatchupOptions, progress: Progress) -> JobReport:
    """Catch up the indexes of each table, or with `dry_run` tell what that would do."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    recorder = RunRecorder("index-catchup", options, progress)
    with (
        open_tables(options, lambda stores: stores.views.table(), recorder.failed) as tables,
        Fanout(options, progress) as fanout,
    ):
        reports = []
        for table in tables:
            table.begin()
            report = _table(table, options, progress, fanout)
            reports.append(recorder.write(table, report, view=table.view, engine=fanout.choice))
        return job_report(
            "index-catchup",
            reports,
            clock.monotonic_seconds() - started,
            opened=tables,
            engine=None if options.dry_run else fanout.choice,
            dry_run=options.dry_run,
        )


def _table(
    table: OpenTable,
    options: IndexCatchupOptions,
    progress: Progress,
    fanout: Fanout,
) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return failed_report(table.resolved.name, error_of(table))
    job = catchup_job(
        table,
        stores,
        fanout,
        progress,
        limits=chosen_limits(CatchupLimits, table, options.limits),
        steps=options.steps,
    )
    try:
        if options.dry_run or not job.has_work(view, options.request):
            return _report(table, view, job.foresee(view, options.request))
        table.take_lease("index-catchup", options)
        # What was planned before the lease was ours may be old; the run reads everything again.
        return _report(table, view, job.run(options.request))
    except MemWalError as error:
        return failed_report(table.resolved.name, error)


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
        table=stores.indexes,
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
        results = fanout.run(run_segment_unit, units, what="segments", in_memory_bytes=size)
        for result in results:
            table.unit_requests.append(result.requests)
            if result.trace:
                progress.trace(result.trace)
        return [result.built for result in results]

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
