"""One track of an ingest: chunks of a source, in order, through the write coordinator.

A track is the whole ingest, or the staged rows of one shard; one process at a time reads and writes
it. Progress is stored every few seconds, and only after what it covers is durable; what was written
since is found in the WAL when a run resumes (`memwal.ingest.progress.resume`).

A unit writes one shard's staged rows, in a thread or on a Spark executor. One that is run again, or
concurrently with itself, writes nothing twice: it claims the shard anew, which fences the earlier
attempt, and finds in the WAL what that one wrote.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from memwal.errors import Corruption, Missing, Refused, Usage
from memwal.ingest.coordinator import CoordinatorLimits, FlushFailed, WriteCoordinator
from memwal.ingest.progress.pace import Backlog
from memwal.ingest.progress.resume import ResumedShard, ResumingWriters, ShardCounts
from memwal.ingest.routing import Place, Router, ShardValues
from memwal.ingest.shards import (
    GENERATION_SECONDS,
    HandlerLimits,
    ShardHandler,
    ShardOperations,
    Tips,
    route_rows,
)
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.target import IngestTable, make_place
from memwal.ingest.values.numbered_chunks import count_rows, cut_batches
from memwal.ingest.values.shape import Shape
from memwal.ingest.values.writable_rows import Sieve, Sifted
from memwal.model import ShardId
from memwal.ports import Objects, Steps, no_steps
from memwal.run.process import process_memory
from memwal.run.stores import Stores
from memwal.run.units import TableUnit, UnitResult, run_unit
from memwal.store.records.ingests import (
    START,
    PlanRecord,
    ProgressRecord,
    RejectRecord,
    Round,
    SourceFile,
)
from memwal.store.shards.wal import count_decoded_bytes

Coordinator = WriteCoordinator[ShardOperations, Tips]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A part of the source. `read` gives its rows from a row on, always in the same chunks."""

    name: str
    """The address or path, for messages."""
    read: Callable[[int], Iterator[pa.Table]]


def make_splits(
    files: SourceFiles, sources: Sequence[SourceFile], shape: Shape, chunk_rows: int
) -> list[Split]:
    """Splits of source files. Raises Usage for one whose columns can't be written."""
    splits = []
    for file in sources:
        schema = files.read_schema(file)
        shape.check(schema, file.uri)
        columns = shape.select_columns(schema)
        read = partial(files.read_chunks, file, chunk_rows, columns=columns)
        splits.append(Split(name=file.uri, read=read))
    return splits


def read_staged(objects: Objects, path: str, chunk_rows: int, first_row: int) -> Iterator[pa.Table]:
    """Read one file of staged rows, an Arrow stream below the table's root, into memory."""
    if first_row % chunk_rows:
        return  # after the last chunk
    try:
        data = objects.get(path)
        if count_decoded_bytes(data) > len(data):
            raise Corruption(
                "MW-I27", f"{objects.uri}: {path} is compressed, as no staged rows are"
            )
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
    except Missing:
        raise Refused(
            "MW-I23",
            f"{objects.uri}: {path}: staged rows are gone, so that this ingest can't be finished: "
            "`memwal garbage` removes them when nobody resumed it for 14 days. What is written "
            "stays; ingest the source under another --id",
        ) from None
    except (pa.ArrowException, ValueError) as error:
        raise Corruption("MW-I27", f"{objects.uri}: {path}: {error}") from None
    yield from cut_batches(iter(table.slice(first_row).to_batches()), chunk_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackLimits:
    """Bounds on one track.

    A flush begins as soon as no other runs; `pending_bytes_max` bounds what accumulates meanwhile,
    and so how far reading runs ahead of writing.
    """

    pending_bytes_max: int = 32 * 1024 * 1024
    progress_seconds: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackResult:
    """The result of a track: `rows` by all runs together, all else by this one.

    `bytes_read` is the size in memory.
    """

    rows: int
    rows_rejected: int
    bytes_read: int
    resumed: bool
    shards: dict[ShardId, ShardCounts]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Mark:
    """The progress reached with an epoch of the coordinator, and the rejects of its chunk."""

    epoch: int
    progress: ProgressRecord
    rejects: tuple[RejectRecord, ...]


@dataclass(kw_only=True)
class Track:
    """Runs one track to its end.

    `on_progress` is called with the progress up to which everything is durable, `between` between
    chunks. Up to `rejects_max` rows that can't be written are set aside; with None, the first one
    ends the track.
    """

    name: str
    table: IngestTable
    records: Round
    plan: PlanRecord
    splits: Sequence[Split]
    shape: Shape
    router: Router
    limits: TrackLimits = TrackLimits()
    on_progress: Callable[[ProgressRecord], None] = lambda mark: None
    between: Callable[[], None] = lambda: None
    rejects_max: int | None = None
    generation_every_seconds: float = GENERATION_SECONDS
    steps: Steps = no_steps
    _marks: deque[_Mark] = field(default_factory=deque, init=False)
    _shown: deque[_Mark] = field(default_factory=deque, init=False)
    """The marks that `on_progress` has not been called for yet."""
    _bytes_read: int = field(default=0, init=False)
    _stored: ProgressRecord = field(default=START, init=False)
    _stored_at_seconds: float = field(default=0.0, init=False)
    _opened: Mapping[ShardId, ResumedShard] = field(default_factory=dict, init=False)

    def run(self) -> TrackResult:
        """Write the rows that are not written yet. Raises what source, table or writers raise."""
        self._stored = began = self.records.read_progress(self.name)
        if began.finished:
            return self._make_result(began, {})
        self._stored_at_seconds = self._read_clock()
        writers = ResumingWriters(
            self.table.make_writers(),
            self.records,
            began.tips,
            self.shape.key,
            self.steps,
        )
        self._opened = writers.opened
        limits = HandlerLimits(
            rows_per_entry_max=self.plan.rows_per_entry_max,
            generation_every_seconds=self.generation_every_seconds,
        )
        handler = ShardHandler(writers, limits=limits, join=False)
        try:
            self._write_all(handler, began)
            writers.check_all_used()
            writers.check_positions()
            self._open_left(handler, began)
            handler.close()
            self._advance(self._stored.model_copy(update={"finished": True}))
        except FlushFailed as error:
            handler.abandon()
            raise error.__cause__ or error from None
        except BaseException:
            handler.abandon()
            raise
        return self._make_result(began, self.count_written())

    def count_written(self) -> dict[ShardId, ShardCounts]:
        """What this run did to each shard; also valid after an error."""
        return {shard_id: shard.counts for shard_id, shard in self._opened.items()}

    def _read_clock(self) -> float:
        return self.table.stores.clock.monotonic_seconds()

    def _write_all(self, handler: ShardHandler, began: ProgressRecord) -> None:
        limits = CoordinatorLimits(
            pending_bytes_max=self.limits.pending_bytes_max, flush_interval_seconds=0.0
        )
        with Coordinator(handler, began.tips, limits=limits, settle=handler.settle) as coordinator:
            try:
                self._write_chunks(coordinator, began)
            except Usage:
                # Record what was written before the source's fault.
                coordinator.flush()
                self._store(coordinator)
                raise
            self._show(coordinator.flush())
            self._store(coordinator)

    def _write_chunks(self, coordinator: Coordinator, began: ProgressRecord) -> None:
        progress = began.model_copy(update={"number": 0, "run_id": "", "tips": {}})
        for place, row, chunk, sifted, delta in self._route_chunks(began):
            progress = self._mark(progress, place, row, chunk, sifted)
            epoch = coordinator.write(delta)
            mark = _Mark(epoch=epoch, progress=progress, rejects=sifted.rejects)
            self._marks.append(mark)
            self._shown.append(mark)
            self._show(coordinator.durable_epoch)
            if self._read_clock() - self._stored_at_seconds >= self.limits.progress_seconds:
                self._store(coordinator)
            self.between()

    def _mark(
        self, before: ProgressRecord, place: int, row: int, chunk: pa.Table, sifted: Sifted
    ) -> ProgressRecord:
        """The progress after a chunk that begins at `row`; an empty chunk ends its split."""
        return before.model_copy(
            update={
                "split": place if len(chunk) else place + 1,
                "row": row + len(chunk) if len(chunk) else 0,
                "rows": before.rows + count_rows(chunk),
                "rows_rejected": before.rows_rejected + len(sifted.rejects),
            }
        )

    def _show(self, epoch: int) -> None:
        mark = None
        while self._shown and self._shown[0].epoch <= epoch:
            mark = self._shown.popleft()
        if mark is not None:
            self.on_progress(mark.progress)

    def _read_chunks(self, began: ProgressRecord) -> Iterator[tuple[int, int, pa.Table]]:
        """(split, the chunk's first row, chunk), from the recorded progress on."""
        for place in range(began.split, len(self.splits)):
            row = began.row if place == began.split else 0
            for chunk in self.splits[place].read(row):
                self._bytes_read += chunk.nbytes
                yield place, row, chunk
                row += len(chunk)

    def _route_chunks(
        self, began: ProgressRecord
    ) -> Iterator[tuple[int, int, pa.Table, Sifted, ShardOperations]]:
        """The chunks as `_read_chunks` gives them, with their good rows and the calls for these."""
        sieve = Sieve(shape=self.shape, rows_max=self.rejects_max, rejected=began.rows_rejected)
        for place, row, chunk in self._read_chunks(began):
            split = self.splits[place]
            sifted = sieve.sift(chunk, split.name, row)
            delta = route_rows(
                self.router,
                sifted.rows,
                self.shape.key,
                deleted=sifted.deleted,
                rows_max=self.plan.rows_per_entry_max,
            )
            yield place, row, chunk, sifted, delta

    def _open_left(self, handler: ShardHandler, began: ProgressRecord) -> None:
        """Open shards that an earlier run wrote to but did not close, so that they are flushed."""
        for shard_id in began.tips:
            if shard_id not in handler.claimed_shards:
                handler.open(Place(shard_id=shard_id, values=ShardValues(spec_id=0)))

    def _store(self, coordinator: Coordinator) -> None:
        """Store the progress up to the snapshot's epoch, all of which is durable."""
        published = coordinator.snapshot
        marks = []
        while self._marks and self._marks[0].epoch <= published.epoch:
            marks.append(self._marks.popleft())
        if marks:
            self._store_rejects([reject for mark in marks for reject in mark.rejects])
            update = {"tips": dict(published.snapshot), "rejects": self._stored.rejects}
            self._advance(marks[-1].progress.model_copy(update=update))

    def _store_rejects(self, rejects: Sequence[RejectRecord]) -> None:
        """Store rejects, before the progress that counts them."""
        if rejects:
            self.steps("rejects")
            path = self.records.add_rejects(self.name, self._stored.number + 1, rejects)
            update = {"rejects": (*self._stored.rejects, path)}
            self._stored = self._stored.model_copy(update=update)

    def _advance(self, progress: ProgressRecord) -> None:
        """Store progress under the next number."""
        self.steps("progress")
        progress = progress.model_copy(
            update={"number": self._stored.number + 1, "run_id": self.records.run_id}
        )
        self.records.advance(self.name, progress)
        self._stored, self._stored_at_seconds = progress, self._read_clock()

    def _make_result(
        self, began: ProgressRecord, shards: dict[ShardId, ShardCounts]
    ) -> TrackResult:
        return TrackResult(
            rows=self._stored.rows,
            rows_rejected=self._stored.rows_rejected - began.rows_rejected,
            bytes_read=self._bytes_read,
            resumed=began.number > 0 or any(s.entries_found for s in shards.values()),
            shards=shards,
        )


IngestResult = UnitResult[TrackResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestUnit(TableUnit):
    """Write the rows that a round staged for one shard."""

    ingest_id: str
    round: int
    run_id: str
    shard: str
    backlog_generations_max: int | None = None


def run_ingest_unit(unit: IngestUnit) -> IngestResult:
    """Run one unit in this process; errors are returned: a bad shard must not stop the others."""
    process_memory.limit_arenas()
    return run_unit(unit, lambda stores: _write(unit, stores))


def _write(unit: IngestUnit, stores: Stores) -> TrackResult:
    records = Round(stores.objects, unit.ingest_id, unit.round, unit.run_id)
    plan = records.read_plan()
    staged = [s for s in (plan.staged if plan else None) or () if s.shard_id == unit.shard]
    if plan is None or not staged:
        raise Corruption(
            "MW-I27", f"{unit.uri}: {records.folder}: the plan stages nothing for {unit.shard}"
        )
    place = make_place(staged[0], plan.spec_id)
    table = IngestTable.read(stores, stores.views.table(), place.shard_id)
    router = table.make_router()
    router.fixed = place
    return Track(
        name=unit.shard,
        table=table,
        records=records,
        plan=plan,
        splits=[
            Split(name=path, read=partial(read_staged, stores.objects, path, plan.chunk_rows))
            for path in staged[0].files
        ],
        shape=Shape(
            schema=table.schema, key=table.view.primary_key, delete_column=plan.delete_column
        ),
        router=router,
        between=Backlog(stores=stores, generations_max=unit.backlog_generations_max, merge=None),
    ).run()
