"""One track of an ingest: chunks of a source, in order, through the write coordinator.

A track is read and written by one process at a time: the whole ingest, or the staged rows of one
shard. Progress is stored every few seconds, and only after what it speaks of is durable; what was
written since is found in the WAL when a run resumes (`memwal.ingest.resume`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from memwal.ingest.blocking import BlockingCoordinator
from memwal.ingest.coordinator import WriteCoordinator
from memwal.ingest.ports import CoordinatorLimits, FlushFailed
from memwal.ingest.resume import ResumingWriters, ShardCounts
from memwal.ingest.routing import Place, Router, ShardValues
from memwal.ingest.shape import Shape
from memwal.ingest.shards import HandlerLimits, ShardHandler, ShardOperations, Tips, route_rows
from memwal.ingest.splits import Split
from memwal.ingest.table import IngestTable
from memwal.model import ShardId
from memwal.ports import Steps, no_steps
from memwal.store.ingest_records import START, PlanRecord, ProgressRecord, Round


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackLimits:
    """Bounds on one track.

    A flush begins as soon as none runs; `pending_bytes_max` bounds what gathers meanwhile, and so
    how far reading runs ahead of writing.
    """

    pending_bytes_max: int = 32 * 1024 * 1024
    progress_seconds: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackResult:
    """What came of a track: `rows` and `rows_deleted` of the whole source, by all runs together.

    `bytes_read` are of the rows that this run read, in memory.
    """

    rows: int
    rows_deleted: int
    bytes_read: int
    resumed: bool
    shards: dict[ShardId, ShardCounts]


@dataclass(kw_only=True)
class Track:
    """Runs one track to its end.

    `on_progress` is told how far everything is durable; `between` is called between chunks.
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
    steps: Steps = no_steps
    _marks: deque[tuple[int, ProgressRecord]] = field(default_factory=deque, init=False)
    """For each epoch of the coordinator, the progress that its rows make."""
    _shown: deque[tuple[int, ProgressRecord]] = field(default_factory=deque, init=False)
    """The same, for whoever is told."""
    _bytes_read: int = field(default=0, init=False)
    _stored: ProgressRecord = field(default=START, init=False)
    _stored_at_seconds: float = field(default=0.0, init=False)

    def run(self) -> TrackResult:
        """Write what is not written yet. Raises what the source, the table or a writer raises."""
        self._stored = began = self.records.read_progress(self.name)
        if began.finished:
            return self._make_result(began, {})
        self._stored_at_seconds = self._read_clock()
        writers = ResumingWriters(
            self.table.make_writers(), self.records, began.tips, self.shape.key, self.steps
        )
        limits = HandlerLimits(rows_per_entry_max=self.plan.rows_per_entry_max)
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
        return self._make_result(began, {s: shard.counts for s, shard in writers.opened.items()})

    def _read_clock(self) -> float:
        return self.table.stores.clock.monotonic_seconds()

    def _write_all(self, handler: ShardHandler, began: ProgressRecord) -> None:
        limits = CoordinatorLimits(
            pending_bytes_max=self.limits.pending_bytes_max, flush_interval_seconds=0.0
        )
        with BlockingCoordinator[ShardOperations, Tips](
            lambda: WriteCoordinator(handler, began.tips, limits=limits)
        ) as coordinator:
            # The handler flushes only what is durable, so its snapshots tell of durable rows.
            coordinator.follow(lambda published: self._show(published.epoch))
            rows, deleted = began.rows, began.rows_deleted
            for place, row, chunk in self._read_chunks(began):
                conformed, gone = self.shape.conform(chunk, self.splits[place].name)
                delta = route_rows(
                    self.router,
                    conformed,
                    self.shape.key,
                    deleted=gone,
                    rows_max=self.plan.rows_per_entry_max,
                )
                rows += len(chunk)
                deleted += 0 if gone is None else gone.true_count
                mark = ProgressRecord(
                    number=0, run_id="", split=place, row=row, rows=rows, rows_deleted=deleted
                )
                epoch = coordinator.write(delta)
                self._marks.append((epoch, mark))
                self._shown.append((epoch, mark))
                if self._read_clock() - self._stored_at_seconds >= self.limits.progress_seconds:
                    self._store(coordinator)
                self.between()
            last = coordinator.flush()
            self._store(coordinator)
        # The follower has ended; an epoch may have been flushed before it was noted here.
        self._show(last)

    def _show(self, epoch: int) -> None:
        mark = None
        while self._shown and self._shown[0][0] <= epoch:
            _, mark = self._shown.popleft()
        if mark is not None:
            self.on_progress(mark)

    def _read_chunks(self, began: ProgressRecord) -> Iterator[tuple[int, int, pa.Table]]:
        """(split, first row after the chunk, chunk) from where the track stands."""
        for place in range(began.split, len(self.splits)):
            row = began.row if place == began.split else 0
            for chunk in self.splits[place].read(row):
                row += len(chunk)
                self._bytes_read += chunk.nbytes
                yield place, row, chunk

    def _open_left(self, handler: ShardHandler, began: ProgressRecord) -> None:
        """Open what an earlier run wrote to and did not close, so that closing flushes it."""
        for shard_id in began.tips:
            if shard_id not in handler.open_shards:
                handler.open(Place(shard_id=shard_id, values=ShardValues(spec_id=0)))

    def _store(self, coordinator: BlockingCoordinator[ShardOperations, Tips]) -> None:
        """Record how far the snapshot goes: the handler flushes only what is durable."""
        published = coordinator.snapshot
        mark = None
        while self._marks and self._marks[0][0] <= published.epoch:
            _, mark = self._marks.popleft()
        if mark is not None:
            self._advance(mark.model_copy(update={"tips": dict(published.snapshot)}))

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
            rows_deleted=self._stored.rows_deleted,
            bytes_read=self._bytes_read,
            resumed=began.number > 0 or any(s.entries_found for s in shards.values()),
            shards=shards,
        )
