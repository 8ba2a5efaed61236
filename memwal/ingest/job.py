"""`memwal ingest`: files into a table's MemWAL, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memwal.errors import MemWalError
from memwal.format.layout import find_shard, is_shard_folder
from memwal.ingest.apply import Ingester
from memwal.ingest.plan import IngestOptions
from memwal.ingest.sources.files import spool_input
from memwal.ingest.target import IngestTable
from memwal.ingest.values.shape import Shape
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.model import TableView
from memwal.report import HELD, JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.progress import Progress, Quiet
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.ingests import PlanRecord, Round, SourceFile


def run_ingest(options: IngestOptions, progress: Progress) -> JobReport:
    """Write sources into each table's MemWAL, or with `dry_run` report what would go where."""

    def ingest_one(
        table: OpenTable, stores: Stores, view: TableView, fanout: Fanout
    ) -> TableReport:
        named = name_shard(options, view)
        return _make_ingester(named, progress, table, stores, view, fanout).run()

    request = options.request
    with spool_input(request.sources, options.asked_engine) as spooled:
        options = replace(options, request=replace(request, spooled=spooled))
        return JobRunner(name="ingest").run_each(options, ingest_one, progress)


def name_shard(options: IngestOptions, view: TableView) -> IngestOptions:
    """The options with the shard's full id, which is part of the ingest's id; it may be new."""
    asked = options.request.shard
    if asked is None or is_shard_folder(asked):
        return options
    shard = find_shard(asked, view.shard_ids, view.uri)
    return replace(options, request=replace(options.request, shard=shard))


def _make_ingester(
    options: IngestOptions,
    progress: Progress,
    table: OpenTable,
    stores: Stores,
    view: TableView,
    fanout: Fanout,
) -> Ingester:
    def stage(
        known: IngestTable, shape: Shape, records: Round, files: Sequence[SourceFile]
    ) -> PlanRecord:
        # Imported lazily: it brings a JVM.
        from memwal.ingest.spark.staging import stage_plan

        engine = fanout.spark()
        progress.start("tasks that stage rows", 0)
        with engine.watch(progress.done):
            return stage_plan(options.request, known, shape, engine.session, records, files)

    return Ingester(
        options=options,
        table=table,
        stores=stores,
        view=view,
        fanout=fanout,
        merge=lambda: _merge(options, progress, table),
        stage=stage,
        progress=progress,
    )


def _merge(options: IngestOptions, progress: Progress, table: OpenTable) -> bool:
    """Merge what is pending; False when another run holds the table."""
    merge = MergeOptions(
        tables=[table.resolved],
        engine="local",
        lease=options.lease,
        untested_lance_allowed=options.untested_lance_allowed,
    )
    report = run_merge(merge, Quiet(progress))
    if report.outcome == HELD:
        return False
    if report.exit_code:
        text = "; ".join(t.error for t in report.tables if t.error) or str(report.error)
        error = MemWalError(f"the merge between failed: {text}")
        error.exit_code, error.outcome = report.exit_code, report.outcome
        raise error
    return True
