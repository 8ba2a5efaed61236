"""The coordinator's delta and flush handler for a MemWAL table.

A delta holds, for each shard, the calls that its writer has to make. A flush makes them, for all
shards concurrently, with one pylance writer per shard. Each call is a WAL entry and returns when
pylance says that it is durable, so what is flushed is durable. The snapshot has the last known
entry of each shard's WAL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import pyarrow as pa

from memwal.clock import SystemClock
from memwal.errors import Refused
from memwal.ingest.progress.resume import ResumedShard, ResumingWriters
from memwal.ingest.routing import Place, Router
from memwal.ingest.values.operations import Kind, Operation, join_operations, make_operations
from memwal.model import FRESHNESS_SECONDS, ShardId
from memwal.ports import Clock
from memwal.store.shards.writers import OpenShard, ShardWriters, Tip

T = TypeVar("T")
# Half of the time within which a watch merges, so that the other half is left to it.
GENERATION_SECONDS = FRESHNESS_SECONDS / 2
# Generations that come so many times faster than they have to are too many.
_SURGE = 16
Writer = OpenShard | ResumedShard
Writers = ShardWriters | ResumingWriters
Tips = Mapping[ShardId, Tip]


@dataclass(kw_only=True, slots=True)
class ShardOperations:
    """The coordinator's delta: for each shard, the calls of its writer, in order."""

    by_place: dict[Place, list[Operation]] = field(default_factory=dict)
    bytes: int = 0

    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.by_place

    def merge(self, other: Self) -> None:
        """Append the calls of `other`."""
        for place, more in other.by_place.items():
            self.by_place.setdefault(place, []).extend(more)
        self.bytes += other.bytes

    def size_bytes(self) -> int:
        """The rows' size."""
        return self.bytes


def route_rows(
    router: Router,
    rows: pa.Table,
    key: Sequence[str],
    *,
    deleted: pa.Array | None = None,
    rows_max: int,
) -> ShardOperations:
    """The delta of `rows` in the table's schema; `deleted` marks those that delete their key.

    Raises Usage, Unsupported, Refused: see `Router.route` and `make_operations`.
    """
    delta = ShardOperations()
    offset = 0
    for batch in rows.combine_chunks().to_batches():
        gone = None if deleted is None else deleted.slice(offset, batch.num_rows)
        offset += batch.num_rows
        for routed in router.route(batch, gone):
            taken = routed.take(batch)
            todo = make_operations(
                taken, None if gone is None else gone.take(routed.indices), key, rows_max=rows_max
            )
            delta.by_place.setdefault(routed.place, []).extend(todo)
            delta.bytes += taken.nbytes
    return delta


@dataclass(frozen=True, kw_only=True, slots=True)
class HandlerLimits:
    """Bounds on the handler. `rows_per_entry_max` has to be below pylance's `max_memtable_rows`.

    Rows become a generation `generation_every_seconds` after they were put, if not before; with
    None, when the writer's own limits say so, or at the end.
    """

    shards_open_max: int = 1024
    shards_in_flight_max: int = 16
    rows_per_entry_max: int = 50_000
    generation_every_seconds: float | None = None


class ShardHandler:
    """The coordinator's flush handler for a MemWAL table. Close it after the coordinator."""

    def __init__(
        self,
        writers: Writers,
        *,
        limits: HandlerLimits | None = None,
        join: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """With `join`, small adjacent operations share a call; without, each is one WAL entry."""
        self._writers = writers
        self._limits = limits or HandlerLimits()
        self._join = join
        self._clock = clock or SystemClock()
        self._open: dict[ShardId, Writer] = {}
        self._put_at: dict[ShardId, float] = {}
        """When the oldest row was put that is in no generation, as far as we know."""
        self._closed: dict[ShardId, int] = {}
        """The epochs of the writers that were closed in between."""
        self._batches_max: dict[ShardId, int] = {}
        self._surging: set[ShardId] = set()
        self._pool = ThreadPoolExecutor(
            self._limits.shards_in_flight_max, thread_name_prefix="shard writer"
        )

    @property
    def claimed_shards(self) -> Collection[ShardId]:
        """The shards that have or had a writer."""
        return {*self._open, *self._closed}

    def flush(self, delta: ShardOperations, snapshot: Tips) -> Tips:
        """Write all shards' parts concurrently; raises the first error once all have ended."""
        work = [self._start(self._write, place, todo) for place, todo in delta.by_place.items()]
        tips, errors = dict(snapshot), list[BaseException]()
        for done in work:  # even after an error: none may go on writing once the failure is known
            try:
                shard_id, tip = done.result()
                tips[shard_id] = tip
            except BaseException as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return tips

    def _write(self, place: Place, todo: Sequence[Operation]) -> tuple[ShardId, Tip]:
        writer, shard_id, now = self.open(place), place.shard_id, self._clock.monotonic_seconds()
        put_at, before = self._put_at.setdefault(shard_id, now), writer.memtable.generation
        for operation in self._join_small(todo) if self._join else todo:
            if operation.kind is Kind.PUT:
                writer.put(operation.rows)
            else:
                writer.delete(operation.rows)
        if writer.memtable.generation > before:
            self._put_at[shard_id] = now
            every = self._limits.generation_every_seconds or 0.0
            if shard_id in self._batches_max and now - put_at < every / _SURGE:
                self._surging.add(shard_id)
        return shard_id, writer.tip

    def open(self, place: Place) -> Writer:
        """The shard's writer, opened on first use. Raises Refused for too many open shards.

        Raises Fenced where somebody else has claimed the shard since it was closed in between.
        """
        if place.shard_id not in self._open:
            if len(self._open) >= self._limits.shards_open_max:
                raise Refused(
                    "MW-I21",
                    f"the rows go to more than {self._limits.shards_open_max} shards; a shard spec "
                    "with fewer values would serve better",
                )
            values = place.values
            self._open[place.shard_id] = self._writers.open(
                place.shard_id,
                values.spec_id,
                values.entries,
                self._closed.get(place.shard_id),
                self._batches_max.get(place.shard_id),
            )
        return self._open[place.shard_id]

    def settle(self) -> float | None:
        """Close the writers whose oldest row is due for a generation; their next row opens them.

        A claim leaves objects that stay for good, so there are few: with the limit of batches that
        a writer is opened with then, rows that keep coming make generations without any. Of rows
        that come much faster later, these would be too many, so the limit is raised again.

        Returns after how many seconds the next is due; None where nothing was put. Raises the
        first error once all have ended.
        """
        every, now = self._limits.generation_every_seconds, self._clock.monotonic_seconds()
        if every is None:
            return None
        for shard_id in [s for s, at in self._put_at.items() if now - at >= every]:
            if self._open[shard_id].memtable.is_empty:
                del self._put_at[shard_id]
            else:
                self._batches_max[shard_id] = max(1, self._open[shard_id].memtable.batches // 2)
        for shard_id in self._surging:
            self._batches_max[shard_id] *= _SURGE
        due = {s for s, at in self._put_at.items() if now - at >= every} | self._surging
        self._surging = set()
        closing = {shard_id: self._start(self._open[shard_id].close) for shard_id in due}
        errors = {shard_id: done.exception() for shard_id, done in closing.items()}
        for shard_id, error in errors.items():
            if error is None:
                self._closed[shard_id] = self._open.pop(shard_id).claim.writer_epoch
                self._put_at.pop(shard_id, None)
        for error in errors.values():
            if error is not None:
                raise error
        return min((at + every - now for at in self._put_at.values()), default=None)

    def _join_small(self, todo: Sequence[Operation]) -> list[Operation]:
        found: list[Operation] = []
        for operation in todo:
            rows_max = self._limits.rows_per_entry_max
            both = join_operations(found[-1], operation, rows_max=rows_max) if found else None
            if both is None:
                found.append(operation)
            else:
                found[-1] = both
        return found

    def _start(self, call: Callable[..., T], *args: Any) -> Future[T]:
        """Call it in a thread, or right here when Python is ending and starts no more threads."""
        try:
            return self._pool.submit(call, *args)
        except RuntimeError:
            done: Future[T] = Future()
            try:
                done.set_result(call(*args))
            except BaseException as error:
                done.set_exception(error)
            return done

    def close(self) -> None:
        """Close all writers, each flushing a generation; raises the first error at the end."""
        open_now, self._open = list(self._open.values()), {}
        try:
            closing = [self._start(writer.close) for writer in open_now]
            errors = [error for done in closing if (error := done.exception()) is not None]
        finally:
            self._pool.shutdown()
        if errors:
            raise errors[0]

    def abandon(self) -> None:
        """Release all writers after a failure. What was acknowledged is in the WAL."""
        # A cancelled flush leaves calls running: wait for them before the writers close.
        self._pool.shutdown(cancel_futures=True)
        open_now, self._open = list(self._open.values()), {}
        for writer in open_now:
            writer.abandon()
