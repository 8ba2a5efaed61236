"""One track of an ingest: chunks of a source, in order, through the write coordinator.

A track is read and written by one process at a time: the whole ingest, or the staged rows of one
shard. Progress is stored now and then, and only after what it speaks of is durable; what was
written since is found in the WAL when a run goes on (`memwal.ingest.resume`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from memwal.ingest.blocking import BlockingCoordinator
from memwal.ingest.coordinator import WriteCoordinator
from memwal.ingest.line_up import Shape
from memwal.ingest.protocols import CoordinatorLimits, FlushFailed
from memwal.ingest.resume import ResumingWriters, ShardCounts
from memwal.ingest.routing import Place, Router, ShardValues
from memwal.ingest.shards import HandlerLimits, ShardHandler, ShardOperations, Tips, route_rows
from memwal.model import ShardId
from memwal.ports import Clock, Steps
from memwal.store.ingest_records import START, ProgressRecord, Round, recorded, tips_of
from memwal.store.shard_writers import ShardWriters


class Split(Protocol):
    """A part of the source that is read from its beginning, in order."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def chunks(self, first_row: int) -> Iterator[pa.Table]:
        """Its rows from `first_row` on, cut in the plan's way."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackLimits:
    """Bounds on one track.

    A flush begins as soon as none runs; `pending_bytes_max` bounds what gathers meanwhile, and so
    how far reading runs ahead of writing.
    """

    pending_bytes_max: int = 32 * 1024 * 1024
    progress_seconds: float = 5.0
    shards_open_max: int = 1024
    shards_in_flight_max: int = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackResult:
    """What came of a track: `rows` and `rows_deleted` of the whole source, by all runs together."""

    rows: int
    rows_deleted: int
    resumed: bool
    finished_before: bool
    shards: dict[ShardId, ShardCounts]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mark:
    """Up to where the rows of a coordinator's epoch go."""

    epoch: int
    split: int
    row: int
    rows: int
    rows_deleted: int


class Track:
    """Runs one track to its end."""

    def __init__(
        self,
        *,
        name: str,
        splits: Sequence[Split],
        shape: Shape,
        router: Router,
        rows_per_entry_max: int,
        writers: ShardWriters,
        records: Round,
        clock: Clock,
        limits: TrackLimits | None = None,
        on_rows: Callable[[int], None] = lambda rows: None,
        between: Callable[[], None] = lambda: None,
        steps: Steps = lambda step: None,
    ) -> None:
        """`on_rows` is told how many rows were taken in; `between` is called between chunks."""
        self._name = name
        self._splits = splits
        self._shape = shape
        self._router = router
        self._rows_per_entry_max = rows_per_entry_max
        self._writers = writers
        self._records = records
        self._clock = clock
        self._limits = limits or TrackLimits()
        self._on_rows = on_rows
        self._between = between
        self._steps = steps
        self._marks: deque[_Mark] = deque()
        self._stored = START
        self._stored_at = 0.0

    def run(self) -> TrackResult:
        """Write what is not written yet. Raises what the source, the table or a writer raises."""
        self._stored = began = self._records.progress(self._name)
        if began.finished:
            return self._result(began, {})
        self._stored_at = self._clock.monotonic_seconds()
        writers = ResumingWriters(
            self._writers, self._records, tips_of(began), self._shape.key, self._steps
        )
        handler = ShardHandler(writers, limits=self._handler_limits(), join=False)
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
        return self._result(began, {s: shard.counts for s, shard in writers.opened.items()})

    def _handler_limits(self) -> HandlerLimits:
        return HandlerLimits(
            shards_open_max=self._limits.shards_open_max,
            shards_in_flight_max=self._limits.shards_in_flight_max,
            rows_per_entry_max=self._rows_per_entry_max,
        )

    def _write_all(self, handler: ShardHandler, began: ProgressRecord) -> None:
        limits = CoordinatorLimits(
            pending_bytes_max=self._limits.pending_bytes_max, flush_interval_seconds=0.0
        )
        with BlockingCoordinator[ShardOperations, Tips](
            lambda: WriteCoordinator(handler, tips_of(began), limits=limits)
        ) as coordinator:
            rows, deleted = began.rows, began.rows_deleted
            for place, row, chunk in self._chunks(began):
                lined_up, gone = self._shape.lined_up(chunk, self._splits[place].name)
                delta = route_rows(
                    self._router,
                    lined_up,
                    self._shape.key,
                    deleted=gone,
                    rows_max=self._rows_per_entry_max,
                )
                rows += len(chunk)
                deleted += 0 if gone is None else gone.true_count
                epoch = coordinator.write(delta)
                self._marks.append(
                    _Mark(epoch=epoch, split=place, row=row, rows=rows, rows_deleted=deleted)
                )
                self._on_rows(len(chunk))
                self._store_if_due(coordinator)
                self._between()
            coordinator.flush()
            self._store(coordinator)

    def _chunks(self, began: ProgressRecord) -> Iterator[tuple[int, int, pa.Table]]:
        """(split, first row after the chunk, chunk) from where the track stands."""
        for place in range(began.split, len(self._splits)):
            row = began.row if place == began.split else 0
            for chunk in self._splits[place].chunks(row):
                row += len(chunk)
                yield place, row, chunk

    def _store_if_due(self, coordinator: BlockingCoordinator[ShardOperations, Tips]) -> None:
        passed = self._clock.monotonic_seconds() - self._stored_at
        if passed >= self._limits.progress_seconds:
            self._store(coordinator)

    def _open_left(self, handler: ShardHandler, began: ProgressRecord) -> None:
        """Open what an earlier run wrote to and did not close, so that closing flushes it."""
        for shard_id in tips_of(began):
            if shard_id not in handler.open_shards:
                handler.writer(Place(shard_id=shard_id, values=ShardValues(spec_id=0)))

    def _store(self, coordinator: BlockingCoordinator[ShardOperations, Tips]) -> None:
        """Record how far the snapshot goes: the handler flushes only what is durable."""
        published = coordinator.snapshot
        mark = None
        while self._marks and self._marks[0].epoch <= published.epoch:
            mark = self._marks.popleft()
        if mark is None:
            return
        self._advance(
            ProgressRecord(
                number=0,
                run_id=self._records.run_id,
                split=mark.split,
                row=mark.row,
                rows=mark.rows,
                rows_deleted=mark.rows_deleted,
                tips=recorded(published.snapshot),
            )
        )

    def _advance(self, progress: ProgressRecord) -> None:
        """Store progress under the next number."""
        self._steps("progress")
        progress = progress.model_copy(
            update={"number": self._stored.number + 1, "run_id": self._records.run_id}
        )
        self._records.advance(self._name, progress)
        self._stored, self._stored_at = progress, self._clock.monotonic_seconds()

    def _result(self, began: ProgressRecord, shards: dict[ShardId, ShardCounts]) -> TrackResult:
        return TrackResult(
            rows=self._stored.rows,
            rows_deleted=self._stored.rows_deleted,
            resumed=began.number > 0 or any(s.entries_found for s in shards.values()),
            finished_before=began.finished,
            shards=shards,
        )
