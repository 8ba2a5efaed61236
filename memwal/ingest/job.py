"""`memwal ingest`: files into a table's MemWAL, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from memwal.errors import MemWalError, Unsupported, Usage
from memwal.ingest.foreseen import Foreseen
from memwal.ingest.line_up import Shape
from memwal.ingest.report import IngestShardReport, IngestSourceReport, IngestTableReport
from memwal.ingest.resume import ShardCounts
from memwal.ingest.round import (
    IngestOptions,
    Rounds,
    check_same,
    check_unchanged,
    file_of,
    not_yet,
    record_of,
    unfinished_places,
)
from memwal.ingest.run import Track, TrackResult
from memwal.ingest.splits import FileSplit
from memwal.ingest.store_sources import Format, SourceFile, SourceFiles
from memwal.ingest.table import Backlog, IngestTable
from memwal.ingest.unit import IngestUnit, lost_ingest_unit, run_ingest_unit
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.model import ShardId, TableView, sum_known
from memwal.report import DONE, HELD, NOTHING_TO_DO, JobReport, TableReport, sum_up
from memwal.run.fanout import Fanout
from memwal.run.policy import settle_policy
from memwal.run.progress import Progress, Quiet
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.ingest_records import WHOLE, PlanRecord, Round, SourceRecord, is_finished

CHUNK_ROWS = 128 * 1024
_CHUNK_BYTES = 32 * 1024 * 1024
_SAMPLE_ROWS = 1024
_SAID_EVERY_SECONDS = 30.0
BACKLOG_WITH_MERGE = 64


def run_ingest(options: IngestOptions, progress: Progress) -> JobReport:
    """Write sources into each table's MemWAL, or with `dry_run` tell what would go where."""

    def one_table(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        return _Ingest(options, progress, table, stores, view, fanout).run()

    return JobRunner(name="ingest").run_each(options, one_table, progress)


@dataclass
class _Ingest:
    options: IngestOptions
    progress: Progress
    table: OpenTable
    stores: Stores
    view: TableView
    fanout: Fanout
    merges: int = 0
    unmerged: tuple[str, ...] = ()
    rows_known: dict[str, int | None] = field(default_factory=dict)

    @cached_property
    def known(self) -> IngestTable:
        return IngestTable.of(self.stores, self.view, self.options.request.shard)

    @cached_property
    def files(self) -> SourceFiles:
        return SourceFiles(self.table.resolved.storage_options, self.shape.types())

    @cached_property
    def shape(self) -> Shape:
        request = self.options.request
        return Shape(
            schema=self.known.schema,
            key=self.view.primary_key,
            delete_column=request.delete_column,
            skips_unknown_columns=request.skips_unknown_columns,
            missing_as_null=request.missing_as_null,
        )

    def run(self) -> IngestTableReport:
        """Choose the round, carry it out, report."""
        request, clock = self.options.request, self.stores.clock
        began = clock.monotonic_seconds()
        rounds = Rounds(
            objects=self.stores.objects, ingest_id=request.named(), run_id=clock.new_id()
        )
        if settle_policy(self.table, self.options):
            self.view = self.stores.views.table()
        before = rounds.latest()
        unfinished = before is not None and not is_finished(*before)
        if self.options.dry_run:
            files = self._planned(before[1]) if before and unfinished else self._new(before)
            return self._foreseen(files, rounds.ingest_id, resumed=unfinished)
        self._merge_first()
        if before is not None and unfinished:
            check_same(before[1], request, self.known)
            self.known.check_shards(unfinished_places(*before))
            found = before
        else:
            if before is not None and before[1].staged is not None:
                # The run that finished may have died before it could.
                self._forget_staged(before[0])
            started = self._started(rounds, before)
            if started is None:
                return self._report(rounds.ingest_id, NOTHING_TO_DO)
            found = started
        report = self._carried_out(rounds.ingest_id, *found)
        seconds = clock.monotonic_seconds() - began
        return report.model_copy(
            update={
                "seconds": round(seconds, 3),
                "rows_per_second": round(report.rows_written / seconds, 1) if seconds else 0.0,
            }
        )

    def _started(
        self, rounds: Rounds, before: tuple[Round, PlanRecord] | None
    ) -> tuple[Round, PlanRecord] | None:
        """Begin a new round; None when there is nothing new."""
        done_before = None if before is None else before[1]
        files = self._new(before) if self._is_ours() else None
        if files == [] or (files is None and before and not self.options.request.again):
            return None
        self.known.check_shards()
        self.table.prove_store()
        if self.options.asked_engine == "spark":
            # Imported when asked for only: it brings a JVM.
            from memwal.ingest.spark import staged_plan

            plan = staged_plan(
                self.options.request,
                self.known,
                self.shape,
                self.fanout.spark().session,
                rounds.at(1 if before is None else before[0].number + 1),
                files,
            )
        elif files is None:
            kind = self.options.request.format
            raise Unsupported(f"--format {kind} is read by Spark only: --engine spark")
        else:
            plan = self._plan(files)
        plan = plan.model_copy(update=self._sources(files or (), done_before))
        return rounds.begin(before, plan), plan

    # ---- sources

    def _is_ours(self) -> bool:
        """Whether our own reader reads the sources, whatever the engine."""
        return self.options.request.format in (None, *Format)

    def _found(self) -> list[SourceFile]:
        request = self.options.request
        if not self._is_ours():
            raise Unsupported(f"what --format {request.format} holds is not known beforehand")
        wanted = None if request.format is None else Format(request.format)
        files = self.files.found(request.sources, wanted)
        if any(file.uri == self.stores.uri for file in files):
            raise Usage(f"{self.stores.uri} can't be ingested into itself")
        return files

    def _new(self, before: tuple[Round, PlanRecord] | None) -> list[SourceFile]:
        done = None if before is None or self.options.request.again else before[1]
        return not_yet(self._found(), done)

    def _planned(self, plan: PlanRecord) -> list[SourceFile]:
        """The files of a plan, which have to be as they were."""
        planned = [file_of(record) for record in plan.sources]
        check_unchanged(planned, self._found())
        return planned

    def _sources(
        self, files: Sequence[SourceFile], before: PlanRecord | None
    ) -> dict[str, tuple[SourceRecord, ...]]:
        """What a plan says of its files, and of those of the rounds before."""
        known = () if before is None else (*before.before, *before.sources)
        return {"sources": tuple(record_of(file) for file in files), "before": known}

    def _plan(self, files: Sequence[SourceFile]) -> PlanRecord:
        request = self.options.request
        for file in files:
            self.shape.check(self.files.schema(file), file.uri)
        return PlanRecord(
            chunk_rows=request.chunk_rows or self._chunk_rows(files[0]),
            rows_per_entry_max=self.known.rows_per_entry_max,
            delete_column=request.delete_column,
            shard=request.shard,
            spec_id=self.known.spec_id,
            skips_unknown_columns=request.skips_unknown_columns,
            missing_as_null=request.missing_as_null,
        )

    def _chunk_rows(self, file: SourceFile) -> int:
        """Fewer rows at a time where rows are wide."""
        first = next(self.files.chunks(file, _SAMPLE_ROWS), None)
        if first is None:
            return CHUNK_ROWS
        row_bytes = max(1, first.nbytes // len(first))
        return int(max(_SAMPLE_ROWS, min(CHUNK_ROWS, _CHUNK_BYTES // row_bytes)))

    # ---- work

    def _carried_out(self, ingest_id: str, found: Round, plan: PlanRecord) -> IngestTableReport:
        self.table.prove_store()  # a round that goes on was begun by another process
        if plan.staged is not None:
            return self._staged(ingest_id, found, plan)
        files = self._planned(plan)
        self.fanout.stay_here("one process writes what it reads itself; --engine spark fans out")
        shape = replace(
            self.shape,
            skips_unknown_columns=plan.skips_unknown_columns,
            missing_as_null=plan.missing_as_null or self.shape.missing_as_null,
        )
        splits = []
        for file in files:
            schema = self.files.schema(file)
            shape.check(schema, file.uri)
            splits.append(
                FileSplit(
                    files=self.files,
                    file=file,
                    chunk_rows=plan.chunk_rows,
                    columns=shape.columns(schema),
                )
            )
        self.rows_known = {file.uri: self.files.count(file) for file in files}
        backlog = self._backlog()
        track = Track(
            name=WHOLE,
            splits=splits,
            shape=shape,
            router=self.known.router(found.shards()),
            rows_per_entry_max=plan.rows_per_entry_max,
            writers=self.known.writers(),
            records=found,
            clock=self.stores.clock,
            on_rows=self._shown(found.progress(WHOLE).rows),
            between=backlog,
        )
        result = track.run()
        self.merges += backlog.merges
        self._merge_last()
        return self._result(ingest_id, files, [result])

    def _staged(self, ingest_id: str, found: Round, plan: PlanRecord) -> IngestTableReport:
        backlog = self._backlog()
        units = [
            IngestUnit(
                uri=self.stores.uri,
                storage_options=self.table.resolved.storage_options,
                ingest_id=ingest_id,
                round=found.number,
                run_id=found.run_id,
                shard=staged.shard_id,
                backlog_generations_max=backlog.generations_max,
                backlog_wait_seconds_max=self.options.backlog_wait_seconds_max,
            )
            for staged in plan.staged or ()
        ]
        # What units may not do by themselves, side by side: merge.
        with backlog.beside():
            results = self.fanout.run_for(
                [self.table] * len(units),
                run_ingest_unit,
                units,
                what="shards",
                in_memory_bytes=0,
                lost=lost_ingest_unit,
            )
        self.merges += backlog.merges
        failed = [r for r in results if r.error is not None]
        if not failed:
            self._merge_last()
        done = [r.result for r in results if r.result is not None]
        report = self._result(ingest_id, (), done)
        if not failed:
            self._forget_staged(found)
            return report
        parts = [*report.shards, *(r.part() for r in failed)]
        outcome, code = sum_up(parts)
        text = "; ".join(f"{r.shard}: {r.error}" for r in failed)
        return report.model_copy(update={"outcome": outcome, "exit_code": code, "error": text})

    def _forget_staged(self, found: Round) -> None:
        """Remove the rows that a finished round staged: they are in the MemWAL."""
        left = self.stores.objects.list(f"{found.folder}/staged")
        self.stores.objects.delete([info.path for info in left])

    def _backlog(self) -> Backlog:
        limit = self.options.backlog_generations_max
        if limit is None and self.options.merge:
            limit = BACKLOG_WITH_MERGE
        return Backlog(
            stores=self.stores,
            generations_max=limit,
            merge=self._merge if self.options.merge else None,
            wait_seconds_max=self.options.backlog_wait_seconds_max,
            say=self.progress.say,
        )

    def _merge_first(self) -> None:
        """With `--merge`, what other shards hold goes into the base table before new rows come."""
        if self.options.merge and any(shard.pending for shard in self.view.shards):
            self.table.prove_store()
            self.merges += self._merge()
            self.view = self.stores.views.table()

    def _merge_last(self) -> None:
        if self.options.merge and not self._merge():
            self.unmerged = (
                "another run held the table's lease, so what came last is not merged: "
                "run `memwal merge`",
            )
        elif self.options.merge:
            self.merges += 1

    def _merge(self) -> bool:
        """Merge what is pending; False when another run holds the table."""
        options = MergeOptions(
            tables=[self.table.resolved],
            engine="local",
            lease=self.options.lease,
            untested_lance_allowed=self.options.untested_lance_allowed,
        )
        report = run_merge(options, Quiet(self.progress))
        if report.outcome == HELD:
            return False
        if report.exit_code:
            text = "; ".join(t.error for t in report.tables if t.error) or str(report.error)
            error = MemWalError(f"the merge between failed: {text}")
            error.exit_code, error.outcome = report.exit_code, report.outcome
            raise error
        return True

    def _shown(self, done_before: int) -> _RowsShown:
        self.progress.start("rows", sum_known(self.rows_known.values()) or 0)
        return _RowsShown(self.progress, self.stores, done_before)

    # ---- reports

    def _foreseen(
        self, files: Sequence[SourceFile], ingest_id: str, *, resumed: bool
    ) -> IngestTableReport:
        """A dry run: every row's shard, by the columns that decide it."""
        if files and not self.options.merge:  # which makes room before rows come
            self.known.check_shards()
        foreseen = Foreseen(
            files=self.files,
            shape=self.shape,
            router=self.known.router(),
            there={shard.shard_id for shard in self.view.shards},
        )
        self.rows_known = {file.uri: foreseen.add(file) for file in files}
        outcome = DONE if files else NOTHING_TO_DO
        return self._report(ingest_id, outcome, files).model_copy(
            update={
                "shards": tuple(foreseen.shards[s] for s in sorted(foreseen.shards)),
                "rows": foreseen.rows,
                "rows_deleted": foreseen.rows_deleted,
                "resumed": resumed,
            }
        )

    def _result(
        self, ingest_id: str, files: Sequence[SourceFile], results: Sequence[TrackResult]
    ) -> IngestTableReport:
        there = {shard.shard_id for shard in self.view.shards}
        counts = {s: c for result in results for s, c in result.shards.items()}
        report = self._report(ingest_id, DONE, files)
        return report.model_copy(
            update={
                "version_after": int(self.stores.tables.base().version),
                "resumed": any(result.resumed for result in results),
                "shards": tuple(_shard(s, counts[s], s not in there) for s in sorted(counts)),
                "rows": sum(result.rows for result in results),
                "rows_deleted": sum(result.rows_deleted for result in results),
                "rows_written": sum(c.rows + c.rows_deleted for c in counts.values()),
                "merges": self.merges,
            }
        )

    def _report(
        self, ingest_id: str, outcome: str, files: Sequence[SourceFile] = ()
    ) -> IngestTableReport:
        return IngestTableReport(
            table=self.table.resolved.name,
            outcome=outcome,
            version_before=self.view.version,
            version_after=self.view.version,
            ingest_id=ingest_id,
            sources=tuple(
                IngestSourceReport(
                    uri=file.uri,
                    format=file.format.value,
                    bytes=file.size_bytes,
                    rows=self.rows_known.get(file.uri),
                )
                for file in files
            ),
            warnings=(*self.known.warnings(), *self.unmerged),
        )


def _shard(shard_id: ShardId, counts: ShardCounts, is_new: bool) -> IngestShardReport:
    return IngestShardReport(
        shard_id=shard_id,
        outcome=DONE,
        is_new=is_new,
        writer_epoch=counts.writer_epoch,
        entries=counts.entries,
        rows=counts.rows,
        rows_deleted=counts.rows_deleted,
        entries_found=counts.entries_found,
        rows_found=counts.rows_found,
    )


class _RowsShown:
    """Rows taken in so far, for people."""

    def __init__(self, progress: Progress, stores: Stores, rows: int) -> None:
        self._progress = progress
        self._clock = stores.clock
        self._began = self._said = self._clock.monotonic_seconds()
        self._rows_before = self._rows = rows

    def __call__(self, rows: int) -> None:
        self._rows += rows
        self._progress.done(self._rows)
        now = self._clock.monotonic_seconds()
        if now - self._said >= _SAID_EVERY_SECONDS:
            speed = (self._rows - self._rows_before) / (now - self._began)
            self._progress.say(f"{self._rows:,} rows, {speed:,.0f} rows/s")
            self._said = now
