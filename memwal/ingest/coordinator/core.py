"""The write coordinator: one task owns all state, and everything else sends it commands.

Source: OpenData RFC 0003. Writes accumulate in one pending delta. A flush takes it and leaves an
empty one, so that writes go on meanwhile; one flush runs at a time. It is started by a caller, by
the age of the oldest pending write, or by the delta's size. Watermarks and the snapshot change in
one step of the task, so that no half-done change is visible.

There is back-pressure in two places: the command queue is bounded, and a write that finds the
pending delta full waits, with all commands behind it, until a flush has taken that delta.

Every write gets the next epoch; epochs live in memory only. The watermark `flushed` is the highest
epoch in the current snapshot, `durable` the highest that would survive a crash, which never
overtakes `flushed`. For a MemWAL table both advance together, since pylance's put returns when it
is durable; they differ for handlers of stores that acknowledge later.

A failure is final, because what the failed flush left behind is unknown: every waiter and every
later caller gets the error. The caller has to find out what a new coordinator must write again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from memwal.errors import Usage
from memwal.ingest.coordinator.ports import (
    AsyncClock,
    Closed,
    Command,
    CoordinatorLimits,
    Delta,
    Durability,
    Flush,
    Flushed,
    FlushFailed,
    FlushHandler,
    Reached,
    Shutdown,
    State,
    SystemAsyncClock,
    Tasks,
    Write,
    answer_with,
    make_future,
    refuse,
    wait_for,
)

SnapshotT = TypeVar("SnapshotT")

Waiter = TypeVar("Waiter")
DeltaT = TypeVar("DeltaT", bound=Delta)
_CLOSED = "the write coordinator was shut down"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(Generic[SnapshotT]):
    """A snapshot, and the highest epoch that is in it."""

    snapshot: SnapshotT
    epoch: int


class Broadcast(Generic[SnapshotT]):
    """Holds the newest snapshot; only the coordinator publishes."""

    def __init__(self, first: SnapshotT) -> None:
        self.current = Published(snapshot=first, epoch=0)
        self._ended: BaseException | None = None
        self._changed = asyncio.Event()

    def publish(self, published: Published[SnapshotT]) -> None:
        """Replace the snapshot and wake those that wait for a newer one."""
        self.current = published
        self._wake()

    def end(self, error: BaseException) -> None:
        """Make waiters fail with `error`: no further snapshot will come."""
        self._ended = error
        self._wake()

    def _wake(self) -> None:
        # Each event wakes once: later waiters wait for the next one.
        self._changed.set()
        self._changed = asyncio.Event()

    async def after(self, epoch: int) -> Published[SnapshotT]:
        """The newest snapshot as soon as it is beyond `epoch`; raises when none will come."""
        while self.current.epoch <= epoch:
            if self._ended is not None:
                raise self._ended
            await self._changed.wait()
        return self.current


class Subscription(Generic[SnapshotT]):
    """One reader's view: always the newest snapshot, never a copy that can grow stale."""

    def __init__(self, broadcast: Broadcast[SnapshotT]) -> None:
        self._broadcast = broadcast
        self._seen_epoch = broadcast.current.epoch

    @property
    def current(self) -> Published[SnapshotT]:
        """The newest snapshot."""
        return self._broadcast.current

    async def changed(self) -> Published[SnapshotT]:
        """Wait for a snapshot newer than the one that this returned last.

        Some may be passed over. Raises FlushFailed or Closed when no newer one will come.
        """
        published = await self._broadcast.after(self._seen_epoch)
        self._seen_epoch = published.epoch
        return published


@dataclass(kw_only=True, slots=True)
class Epochs:
    """The last epoch that was assigned, and the two watermarks."""

    assigned: int = 0
    flushed: int = 0
    durable: int = 0

    def next(self) -> int:
        """Assign the epoch of a new write."""
        self.assigned += 1
        return self.assigned

    def advance_flushed(self, epoch: int) -> None:
        """Advance `flushed`: everything up to `epoch` is in the snapshot."""
        if not self.flushed <= epoch <= self.assigned:
            raise AssertionError(f"flushed goes from {self.flushed} to {epoch}: {self}")
        self.flushed = epoch

    def advance_durable(self, epoch: int) -> None:
        """Advance `durable`: everything up to `epoch` would survive a crash."""
        if not self.durable <= epoch <= self.flushed:
            raise AssertionError(f"durable goes from {self.durable} to {epoch}: {self}")
        self.durable = epoch


@dataclass(kw_only=True, slots=True)
class Waiters(Generic[Waiter]):
    """The waiters of each epoch."""

    _by_epoch: dict[int, list[Waiter]] = field(default_factory=dict)

    def add(self, epoch: int, waiter: Waiter) -> None:
        """Add a waiter for `epoch`."""
        self._by_epoch.setdefault(epoch, []).append(waiter)

    def take_reached(self, epoch: int) -> list[Waiter]:
        """Remove and return the waiters for `epoch` and earlier ones, in order of epochs."""
        reached = sorted(e for e in self._by_epoch if e <= epoch)
        return [waiter for e in reached for waiter in self._by_epoch.pop(e)]


def check_process(made_in: int) -> None:
    """Raise Usage outside the process `made_in`: no thread or event loop survives a fork."""
    if os.getpid() != made_in:
        raise Usage(
            f"this writer was made in process {made_in}, and this is a child that was forked from "
            "it: write there, or open a writer of the child's own once the parent's is closed (two "
            "of them fence each other)"
        )


class WriteCoordinator(Generic[DeltaT, SnapshotT]):
    """Serialises writes. Create it inside a running event loop; use it from that loop only."""

    def __init__(
        self,
        handler: FlushHandler[DeltaT, SnapshotT],
        snapshot: SnapshotT,
        *,
        limits: CoordinatorLimits | None = None,
        clock: AsyncClock | None = None,
    ) -> None:
        self._made_in = os.getpid()
        self._handler = handler
        self._limits = limits or CoordinatorLimits()
        self._clock = clock or SystemAsyncClock()
        self._queue: asyncio.Queue[Command] = asyncio.Queue(self._limits.queue_depth_max)
        self._broadcast = Broadcast(snapshot)
        self._epochs = Epochs()
        self._pending: DeltaT | None = None
        self._flushing_epoch: int | None = None
        self._flush_wanted = False
        self._parked: Write[DeltaT] | None = None
        self._waiters: dict[Reached, Waiters[asyncio.Future[int]]] = {
            Reached.FLUSHED: Waiters(),
            Reached.DURABLE: Waiters(),
        }
        self._asked: set[asyncio.Future[int]] = set()
        self._putting: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._stopping: list[asyncio.Future[int]] = []
        self._error: FlushFailed | None = None
        self._tasks = Tasks()
        self._owner = asyncio.get_running_loop().create_task(self._run(), name="write coordinator")

    # ---- what callers see

    @property
    def state(self) -> State:
        """What the coordinator is doing now."""
        if self._error is not None:
            return State.FAILED
        if self._tasks.flush is not None:
            return State.FLUSHING
        return State.IDLE if self._pending is None else State.ACCUMULATING

    @property
    def flushed_epoch(self) -> int:
        """The highest epoch in the current snapshot."""
        return self._epochs.flushed

    @property
    def durable_epoch(self) -> int:
        """The highest epoch that would survive a crash."""
        return self._epochs.durable

    @property
    def pending_bytes(self) -> int:
        """The size of the writes that no flush has taken yet."""
        return 0 if self._pending is None else self._pending.size_bytes()

    async def write(self, delta: DeltaT) -> int:
        """Hand over a delta and return its epoch. Waits while too much is queued or pending.

        Raises FlushFailed, Closed.
        """
        return await self._ask(Write(delta=delta, answer=make_future()))

    async def flush(self, epoch: int | None = None, until: Reached = Reached.DURABLE) -> int:
        """Wait until `epoch` (None: all written so far) is durable, or in the snapshot.

        Returns the watermark, which may be beyond `epoch`. Raises FlushFailed, Closed, and
        ValueError for an epoch that was never assigned.
        """
        return await self._ask(Flush(epoch=epoch, until=until, answer=make_future()))

    async def write_durable(self, delta: DeltaT) -> int:
        """Write a delta, wait until it is durable, and return its epoch."""
        epoch = await self.write(delta)
        await self.flush(epoch)
        return epoch

    def subscribe(self) -> Subscription[SnapshotT]:
        """Follow the snapshot."""
        return Subscription(self._broadcast)

    async def abandon(self) -> None:
        """End without flushing what is pending. A running flush is cancelled; waiters fail."""
        self._owner.cancel()
        await asyncio.wait({self._owner})

    async def shutdown(self) -> None:
        """Flush what is pending, wait until all is durable, and end. Raises FlushFailed."""
        if self._is_over and self._error is None:
            return
        await self._ask(Shutdown(answer=make_future()))

    async def _ask(self, command: Command) -> int:
        check_process(self._made_in)
        if self._error is not None:
            raise self._error_for_caller()
        if self._is_over or (self._stopping and not isinstance(command, Shutdown)):
            raise Closed("MW-I02", _CLOSED)
        self._asked.add(command.answer)
        try:
            await self._enqueue(command)
            return await command.answer
        except asyncio.CancelledError:
            command.answer.cancel()
            raise
        finally:
            self._asked.discard(command.answer)
            if command.answer.done() and not command.answer.cancelled():
                command.answer.exception()  # asyncio would log an exception that is never retrieved

    async def _enqueue(self, command: Command) -> None:
        """Wait for a place in the queue. Raises the coordinator's error when that ends first."""
        if not self._queue.full() and not self._putting:
            self._queue.put_nowait(command)
            return
        put = asyncio.ensure_future(self._queue.put(command))
        self._putting.add(put)
        try:
            await put
        except asyncio.CancelledError:
            if not (self._is_over and put.cancelled()):
                put.cancel()
                raise
            raise self._error_for_caller() from None
        finally:
            self._putting.discard(put)

    def _error_for_caller(self) -> Exception:
        if self._error is None:
            return Closed("MW-I02", _CLOSED)
        return FlushFailed(cast(BaseException, self._error.__cause__), self._error.durable_epoch)

    # ---- the owner

    async def _run(self) -> None:
        try:
            while not self._is_finished():
                await self._turn()
        except asyncio.CancelledError as error:
            self._fail(error)
            raise
        except Exception as error:
            self._fail(error)
        finally:
            await self._end()

    async def _turn(self) -> None:
        """Wait for an event and handle it: completions first, then one command."""
        if self._tasks.command is None:
            self._tasks.command = asyncio.ensure_future(self._queue.get())
        tasks = self._tasks.list_next(commands=self._parked is None)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._finish_flush()
        self._advance_durable()
        if self._parked is not None:
            self._take_write(self._parked)
        elif self._tasks.command.done():
            command, self._tasks.command = self._tasks.command.result(), None
            self._take(command)
        if self._tasks.timer is not None and self._tasks.timer.done():
            self._tasks.timer, self._flush_wanted = None, True
        self._start_flush_if_due()

    def _is_finished(self) -> bool:
        everything = self._epochs.assigned
        return bool(self._stopping) and self._parked is None and self._epochs.durable == everything

    def _take(self, command: Command) -> None:
        match command:
            case Write():
                self._take_write(command)
            case Flush():
                self._take_flush(command)
            case Shutdown():
                self._stopping.append(command.answer)
                self._flush_wanted = True

    def _take_write(self, write: Write[DeltaT]) -> None:
        """Add the delta to the pending one, or park it while that is full."""
        self._parked = None
        if self._stopping:
            refuse(write.answer, Closed("MW-I02", _CLOSED))
            return
        if write.answer.cancelled():
            return  # the caller got no epoch, so the write must not reach the store
        if self._pending is not None and self.pending_bytes >= self._limits.pending_bytes_max:
            self._parked = write
            return
        epoch = self._epochs.next()
        if not write.delta.is_empty():
            if self._pending is None:
                self._pending = write.delta
                self._start_timer()
            else:
                self._pending.merge(write.delta)
        elif self._is_clear():
            self._advance_flushed(epoch)
            self._track_durability(epoch, None)
        answer_with(write.answer, epoch)

    def _is_clear(self) -> bool:
        return self._pending is None and self._tasks.flush is None

    def _take_flush(self, command: Flush) -> None:
        epoch = self._epochs.assigned if command.epoch is None else command.epoch
        if not 0 <= epoch <= self._epochs.assigned:
            refuse(command.answer, ValueError(f"epoch {epoch} was never assigned"))
            return
        reached = self._epochs.durable
        if command.until is Reached.FLUSHED:
            reached = self._epochs.flushed
        if epoch <= reached:
            answer_with(command.answer, epoch)
            return
        self._waiters[command.until].add(epoch, command.answer)
        # An epoch in flight needs no other flush; one in the pending delta does, right after it.
        if epoch > (self._flushing_epoch or self._epochs.flushed):
            self._flush_wanted = True

    # ---- flushing

    def _start_flush_if_due(self) -> None:
        full = self.pending_bytes >= self._limits.pending_bytes_max
        if self._tasks.flush is not None or self._pending is None:
            self._flush_wanted = self._flush_wanted and self._tasks.flush is not None
            return
        if not (full or self._flush_wanted):
            return
        delta, self._pending, self._flush_wanted = self._pending, None, False
        self._stop_timer()
        self._flushing_epoch = self._epochs.assigned
        work = self._handler.flush(delta, self._broadcast.current.snapshot)
        self._tasks.flush = asyncio.ensure_future(work)
        if self._parked is not None:
            self._take_write(self._parked)

    def _finish_flush(self) -> None:
        task, epoch = self._tasks.flush, self._flushing_epoch
        if task is None or epoch is None or not task.done():
            return
        self._tasks.flush = self._flushing_epoch = None
        flushed: Flushed[SnapshotT] = task.result()
        if self._pending is None:
            epoch = self._epochs.assigned  # writes since then were empty
        self._broadcast.publish(Published(snapshot=flushed.snapshot, epoch=epoch))
        self._advance_flushed(epoch)
        self._track_durability(epoch, flushed.durable)

    def _advance_flushed(self, epoch: int) -> None:
        self._epochs.advance_flushed(epoch)
        if self._broadcast.current.epoch < epoch:
            current = self._broadcast.current.snapshot
            self._broadcast.publish(Published(snapshot=current, epoch=epoch))
        for answer in self._waiters[Reached.FLUSHED].take_reached(epoch):
            answer_with(answer, epoch)

    def _track_durability(self, epoch: int, durable: Awaitable[None] | None) -> None:
        task = None if durable is None else asyncio.ensure_future(wait_for(durable))
        self._tasks.durable.append(Durability(epoch=epoch, task=task))
        self._advance_durable()

    def _advance_durable(self) -> None:
        """Advance over durable flushes in order: none counts as durable before an earlier one."""
        while self._tasks.durable:
            first = self._tasks.durable[0]
            if first.task is not None:
                if not first.task.done():
                    return
                first.task.result()
            self._tasks.durable.popleft()
            self._epochs.advance_durable(first.epoch)
            for answer in self._waiters[Reached.DURABLE].take_reached(first.epoch):
                answer_with(answer, first.epoch)

    def _start_timer(self) -> None:
        if self._limits.flush_interval_seconds is not None and self._tasks.timer is None:
            sleep = self._clock.sleep(self._limits.flush_interval_seconds)
            self._tasks.timer = asyncio.ensure_future(sleep)

    def _stop_timer(self) -> None:
        if self._tasks.timer is not None:
            self._tasks.timer.cancel()
            self._tasks.timer = None

    # ---- the end

    def _fail(self, error: BaseException) -> None:
        self._error = FlushFailed(error, self._epochs.durable)

    async def _end(self) -> None:
        """Answer all commands that still wait."""
        self._is_over = True
        over: BaseException = self._error or Closed("MW-I02", _CLOSED)
        self._broadcast.end(over)
        for put in self._putting:
            put.cancel()
        if self._error is None:
            got, ended = self._tasks.command, list(self._stopping)
            if got is not None and got.done() and isinstance(got.result(), Shutdown):
                ended.append(got.result().answer)
            queued = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
            ended += [command.answer for command in queued if isinstance(command, Shutdown)]
            for answer in ended:
                answer_with(answer, self._epochs.durable)
        for answer in list(self._asked):
            refuse(answer, self._error_for_caller())
        tasks = self._tasks.list_all()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(Exception, asyncio.CancelledError):
                await task
