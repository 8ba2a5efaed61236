"""Ingests into one table: every step, in order.

A round's plan is stored before its first row is written. Rows that Spark stages are stored before
the plan that names them, and removed once all of them are written and flushed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from memwal.errors import MemWalError, Refused, Usage
from memwal.ingest.check import Check, Forecast, look_first
from memwal.ingest.plan import (
    IngestOptions,
    StagedRound,
    check_same,
    check_turn,
    make_id,
    make_plan,
    plan_round,
)
from memwal.ingest.progress.identity import add_digests, check_unchanged, select_new
from memwal.ingest.progress.pace import Backlog, Pace, show_reading
from memwal.ingest.report import (
    IngestTableReport,
    add_rejected,
    describe_results,
    describe_sources,
    report_failures,
    report_findings,
    report_stop,
    warn_of_others,
    warn_of_rejects,
)
from memwal.ingest.sources.columns import SourceColumns, make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.target import IngestTable, list_unfinished_places, make_place
from memwal.ingest.track import IngestUnit, Track, TrackResult, make_splits, run_ingest_unit
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import RejectsFile
from memwal.model import FRESHNESS_SECONDS, TableView
from memwal.report import DONE, NOTHING_TO_DO
from memwal.rows.conversions import read_conversions
from memwal.run.fanout import Fanout
from memwal.run.policy_choice import settle_policy
from memwal.run.progress import Progress
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.ingests import (
    WHOLE,
    Begun,
    PlanRecord,
    Round,
    Rounds,
    SourceFile,
    is_finished,
)

BACKLOG_WITH_MERGE = 64


@dataclass(kw_only=True)
class Ingester:
    """One table's ingest. What needs an engine, another job or the terminal is passed in."""

    options: IngestOptions
    table: OpenTable
    stores: Stores
    view: TableView
    fanout: Fanout
    merge: Callable[[], bool]
    """Merges what is pending; False when another run holds the table."""
    stage: Callable[[IngestTable, Shape, Round, Sequence[SourceFile]], PlanRecord]
    """Stores the source's rows for a round with Spark; returns the plan that names them."""
    progress: Progress
    _merges: int = field(default=0, init=False)
    _unmerged: tuple[str, ...] = field(default=(), init=False)
    _rows_known: dict[str, int | None] = field(default_factory=dict, init=False)
    _known: Sequence[SourceFile] = field(default=(), init=False)
    """The files that finished rounds ingested."""

    @cached_property
    def rounds(self) -> Rounds:
        """What is remembered of this ingest."""
        return Rounds(
            objects=self.stores.objects,
            ingest_id=make_id(self.options.request),
            run_id=self.stores.clock.new_id(),
        )

    @cached_property
    def _table(self) -> IngestTable:
        return IngestTable.read(self.stores, self.view, self.options.request.shard)

    @cached_property
    def _shape(self) -> Shape:
        request = self.options.request
        return self._table.make_shape(
            delete_column=request.delete_column,
            missing_as_null=request.missing_as_null,
            convert=request.convert,
        )

    @cached_property
    def _files(self) -> SourceFiles:
        spooled = self.options.request.spooled
        return SourceFiles(self.stores.storage_options, self._columns, spooled)

    @cached_property
    def _columns(self) -> SourceColumns:
        request = self.options.request
        return make_columns(self._shape, request.renamed, request.defaults)

    def run(self) -> IngestTableReport:
        """Choose the round, carry it out, and return the report."""
        clock = self.stores.clock
        began = clock.monotonic_seconds()
        if self.options.request.check:
            return self._check()
        place, sources = self.options.request.bad_rows, self.options.request.sources
        rejects = None if place is None else RejectsFile(place, sources)
        if settle_policy(self.table, self.options):  # stored it, which makes the view stale
            self.view = self.stores.views.table()
        before = self.rounds.read_latest()
        unfinished = before if before is not None and not is_finished(*before) else None
        if unfinished is not None and self._is_given_up(unfinished[1]):
            # None of its files counts as ingested, by an earlier round either; all others do.
            plan = unfinished[1]
            gone = {source.uri for source in plan.sources}
            left = tuple(source for source in plan.before if source.uri not in gone)
            before = unfinished[0], plan.model_copy(update={"sources": (), "before": left})
            unfinished = None
            request = replace(self.options.request, again=False)
            self.options = replace(self.options, request=request)
        if self.options.dry_run:
            return self._forecast(before, unfinished)
        staged = self.options.staged
        if staged is not None and unfinished is not None and staged.number > unfinished[0].number:
            # Spark repeated the unfinished batch, got no rows for it, and takes it for written.
            report = self._go_on(*unfinished)
            if report.exit_code:
                return report
            before, unfinished = self.rounds.read_latest(), None
        if staged is not None and before is not None:
            check_turn(staged, *before, finished=unfinished is None)
        if before is not None and rejects is not None:
            rejects.update(*before)  # the run that set them aside may have died before this
        self._merge_first()
        if unfinished is not None:
            self._check_unfinished(*unfinished)
        elif before is not None and before[1].staged is not None:
            # The run that finished may have died before this.
            self._forget_staged(before[0])
        found = unfinished or self._begin(before)
        if found is None:
            return self._report(NOTHING_TO_DO)
        report = self._write(*found)
        if staged is not None and not report.exit_code:
            # The round of an earlier run was finished: its rows have to be these.
            check_turn(staged, *found, finished=True)
        if rejects is not None:
            rejects.update(*found)
        elif rows := found[1].rows_rejected + found[0].read_progress(WHOLE).rows_rejected:
            report = warn_of_rejects(report, rows)
        seconds = clock.monotonic_seconds() - began
        speed = round(report.rows_written / seconds, 1) if seconds else 0.0
        return report.model_copy(update={"seconds": round(seconds, 3), "rows_per_second": speed})

    def _go_on(self, found: Round, plan: PlanRecord) -> IngestTableReport:
        """Finish a round that was stopped."""
        self._check_unfinished(found, plan)
        return self._write(found, plan)

    def _check_unfinished(self, found: Round, plan: PlanRecord) -> None:
        check_same(plan, self.options.request, self._table.spec_id)
        self._table.check_shards(list_unfinished_places(found, plan))

    # ---- sources

    def _find_files(self) -> list[SourceFile]:
        request = self.options.request
        files = self._files.find(request.sources, request.format)
        if any(file.uri == self.stores.uri for file in files):
            raise Usage(f"{self.stores.uri} can't be ingested into itself")
        return files

    def _find_new(self, before: Begun | None) -> list[SourceFile]:
        done = None if before is None else before[1]
        again = self.options.request.again
        new, self._known = select_new(self._files, self._find_files(), done, again=again)
        return new

    def _find_planned(self, plan: PlanRecord) -> tuple[SourceFile, ...]:
        """The files of a plan. Raises Refused when they have changed."""
        check_unchanged(self._files, plan.sources, self._find_files())
        return plan.sources

    def _is_given_up(self, plan: PlanRecord) -> bool:
        """Whether an unfinished plan is not carried out: with `again`, if its files changed."""
        if not self.options.request.again or plan.staged is not None:
            return False
        try:
            self._find_planned(plan)
        except Refused:
            return True
        return False

    def _forecast(self, before: Begun | None, unfinished: Begun | None) -> IngestTableReport:
        """The report of a dry run, from the columns that decide a row's shard or may not fit."""
        files = self._find_planned(unfinished[1]) if unfinished else self._find_new(before)
        if files and not self.options.request.merge:  # a merge would make room first
            self._table.check_shards()
        forecast = Forecast(
            files=self._files,
            shape=self._shape,
            rejects_max=self.options.request.rejects_max,
            router=self._table.make_router(),
            there={shard.shard_id for shard in self.view.shards},
        )
        self._rows_known = {file.uri: forecast.add(file) for file in files}
        return self._report(
            DONE if files else NOTHING_TO_DO,
            files,
            shards=tuple(forecast.shards[s] for s in sorted(forecast.shards)),
            rows=forecast.rows,
            rows_deleted=forecast.rows_deleted,
            rows_rejected=forecast.rows_rejected,
            resumed=unfinished is not None,
        )

    def _check(self) -> IngestTableReport:
        """Read every source, ingested before or not, and report what can't be written."""
        files = self._find_files()
        check = Check(files=self._files, shape=self._shape)
        self._rows_known = {file.uri: check.add(file) for file in files}
        report = self._report(DONE, files, **check.describe())
        return report_findings(report, all_counted=not check.is_full) if check.findings else report

    # ---- a round

    def _begin(self, before: Begun | None) -> Begun | None:
        """Begin a new round; None when there is nothing new to ingest."""
        request, table = self.options.request, self._table
        if self.options.staged is not None:
            return self._begin_staged(before, self.options.staged)
        files = self._find_new(before)
        if not files:
            return None
        table.check_shards()
        self.table.prove_store()
        look_first(self._files, self._shape, files, rows=request.bad_rows is None)
        if self.options.asked_engine == "spark":
            plan = self.stage(table, self._shape, self.rounds.after(before), files)
            # The digests have to be of what was staged.
            check_unchanged(self._files, plan.sources, self._find_files())
        else:
            plan = make_plan(
                request,
                sources=add_digests(self._files, files, show_reading(self.progress, files)),
                spec_id=table.spec_id,
                rows_per_entry_max=table.rows_per_entry_max,
                chunk_rows=request.rows_per_chunk or self._files.choose_chunk_rows(files[0]),
            )
        return self.rounds.begin(before, plan.model_copy(update={"before": tuple(self._known)}))

    def _begin_staged(self, before: Begun | None, staged: StagedRound) -> Begun | None:
        """Begin the round of rows that are staged already; None when it is finished already."""
        if before is not None and before[0].number == staged.number:
            return None
        plan = plan_round(staged, self.options.request, self._table)
        self._table.check_shards([make_place(record, staged.spec_id) for record in staged.records])
        self.table.prove_store()
        return self.rounds.begin(before, plan, staged.number)

    def _write(self, found: Round, plan: PlanRecord) -> IngestTableReport:
        self.table.prove_store()  # a round that goes on was begun by another process
        if plan.staged is not None:
            return self._write_staged(found, plan)
        files = self._find_planned(plan)
        self.fanout.stay_here("one process writes what it reads itself; --engine spark fans out")
        backlog = self._make_backlog()
        track = self._make_track(found, plan, files, backlog)
        began = found.read_progress(WHOLE)
        try:
            result = track.run()
        except Usage as error:
            ended = found.read_progress(WHOLE)
            self._merges += backlog.merges
            report = self._report(DONE, files, merges=self._merges)
            before = {shard.shard_id for shard in self.view.shards}
            return report_stop(report, began, ended, track.count_written(), before, error)
        self._merges += backlog.merges
        self._merge_last()
        return self._report_results([result], files)

    def _make_track(
        self, found: Round, plan: PlanRecord, files: Sequence[SourceFile], backlog: Backlog
    ) -> Track:
        shape = replace(
            self._shape,
            missing_as_null=plan.missing_as_null or self._shape.missing_as_null,
            conversions=read_conversions(plan.convert) | self._shape.conversions,
        )
        splits = make_splits(self._files, files, shape, plan.chunk_rows)
        self._rows_known = {file.uri: self._files.count_rows(file) for file in files}
        pace = Pace(progress=self.progress, files=files, rows=self._rows_known)
        pace.start(found.read_progress(WHOLE))
        return Track(
            name=WHOLE,
            table=self._table,
            records=found,
            plan=plan,
            splits=splits,
            shape=shape,
            router=self._table.make_router(found.list_shards()),
            on_progress=pace,
            between=backlog,
            rejects_max=self.options.request.rejects_max,
            generation_every_seconds=(self.table.resolved.settings.freshness or FRESHNESS_SECONDS)
            / 2,
        )

    def _write_staged(self, found: Round, plan: PlanRecord) -> IngestTableReport:
        backlog = self._make_backlog()
        units = [
            IngestUnit(
                uri=self.stores.uri,
                storage_options=self.stores.storage_options,
                ingest_id=self.rounds.ingest_id,
                round=found.number,
                run_id=found.run_id,
                shard=staged.shard_id,
                backlog_generations_max=backlog.generations_max,
            )
            for staged in plan.staged or ()
        ]
        # Concurrent units must not merge: this process does.
        with backlog.watch():
            made = self.fanout.run_for(
                [self.table] * len(units), run_ingest_unit, units, what="shards", in_memory_bytes=0
            )
            results = [result.made for result in made]
        self._merges += backlog.merges
        pairs = zip(units, results, strict=True)
        failed = {unit.shard: made for unit, made in pairs if isinstance(made, MemWalError)}
        if not failed:
            self._merge_last()
        report = self._report_results([r for r in results if isinstance(r, TrackResult)])
        report = add_rejected(report, plan.rows_rejected)
        if failed:
            return report_failures(report, failed)
        self._forget_staged(found)
        return report

    def _forget_staged(self, found: Round) -> None:
        """Remove the rows that a finished round staged: they are in the MemWAL."""
        left = self.stores.objects.list(f"{found.folder}/staged")
        self.stores.objects.delete([info.path for info in left])

    # ---- merges between

    def _make_backlog(self) -> Backlog:
        limit = self.options.request.backlog_generations_max
        if limit is None and self.options.request.merge:
            limit = BACKLOG_WITH_MERGE
        return Backlog(
            stores=self.stores,
            generations_max=limit,
            merge=self.merge if self.options.request.merge else None,
            say=self.progress.say,
        )

    def _merge_first(self) -> None:
        """With `--merge`, merge what is pending in any shard before new rows come."""
        if self.options.request.merge and any(shard.pending for shard in self.view.shards):
            self.table.prove_store()
            self._merges += self.merge()
            self.view = self.stores.views.table()

    def _merge_last(self) -> None:
        if not self.options.request.merge:
            return
        if self.merge():
            self._merges += 1
            return
        self._unmerged = (
            "another run held the table's lease, so what came last is not merged: "
            "run `memwal merge`",
        )

    # ---- reports

    def _report_results(
        self, results: Sequence[TrackResult], files: Sequence[SourceFile] = ()
    ) -> IngestTableReport:
        there = {shard.shard_id for shard in self.view.shards}
        report = self._report(DONE, files, **describe_results(results, there), merges=self._merges)
        return report.model_copy(update={"version_after": int(self.stores.tables.base().version)})

    def _report(
        self, outcome: str, files: Sequence[SourceFile] = (), **fields: object
    ) -> IngestTableReport:
        return IngestTableReport.model_validate(
            {
                "table": self.table.resolved.name,
                "outcome": outcome,
                "version_before": self.view.version,
                "version_after": self.view.version,
                "ingest_id": self.rounds.ingest_id,
                "sources": describe_sources(files, self._rows_known),
                "warnings": (
                    *self._table.list_warnings(),
                    *warn_of_others(self._files.passed_over),
                    *self._unmerged,
                ),
                **fields,
            }
        )
