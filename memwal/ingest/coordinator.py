"""The write coordinator: writes get epochs, collect in one delta, and are flushed by one thread.

After OpenData RFC 0003. Writes accumulate in the pending delta. A flush takes it and leaves none,
so that writes go on meanwhile; one flush runs at a time. It begins when a caller waits for it, when
the oldest pending write is old enough, or when the delta is full; while it is full, writers wait.
Between flushes the same thread settles what the handler has left open.

Every write gets the next epoch; epochs live in memory only. What a flush handler has returned from
is durable, so one watermark is enough: the epoch of the newest snapshot. Both change in one step.

A failure is final, because what the failed flush left behind is unknown: every waiter and every
later caller gets the error. The caller has to find out what a new coordinator must write again.

Generic, and without Lance: what is written, and where, is up to the flush handler.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Condition, Thread
from typing import Generic, Protocol, Self, TypeVar

from memwal.clock import SystemClock
from memwal.errors import MemWalError, Refused, Usage

SnapshotT = TypeVar("SnapshotT")


class Delta(Protocol):
    """Writes that wait for a flush. The coordinator owns a delta from the moment it is written."""

    def is_empty(self) -> bool:
        """Whether there is nothing to flush."""
        ...

    def merge(self, other: Self) -> None:
        """Take in `other`, which was written later."""
        ...

    def size_bytes(self) -> int:
        """About how much memory it takes; called often."""
        ...


DeltaT = TypeVar("DeltaT", bound=Delta)
DeltaT_contra = TypeVar("DeltaT_contra", contravariant=True)


class FlushHandler(Protocol[DeltaT_contra, SnapshotT]):
    """Persists deltas, one at a time and in the order of their epochs."""

    def flush(self, delta: DeltaT_contra, snapshot: SnapshotT) -> SnapshotT:
        """Make `delta` durable on top of `snapshot`, and return the new snapshot.

        Whatever it raises fails the coordinator for good.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorLimits:
    """Bounds on one coordinator.

    At `pending_bytes_max` a flush begins, and no write is accepted until it has taken the pending
    ones. The oldest pending write waits at most `flush_interval_seconds` for its flush to begin;
    with None, for ever.
    """

    pending_bytes_max: int = 64 * 1024 * 1024
    flush_interval_seconds: float | None = 1.0


class Closed(Refused):
    """The coordinator was shut down and takes no more commands."""


def _make_closed() -> Closed:
    return Closed("MW-I02", "the write coordinator was shut down")


class FlushFailed(MemWalError):
    """A flush failed; the coordinator is finished.

    What a waiter asked for may or may not be stored: check the store before writing it again.
    `__cause__` is what the flush handler raised; its exit code and outcome are kept.
    """

    def __init__(self, cause: BaseException, durable_epoch: int) -> None:
        super().__init__(f"writes after epoch {durable_epoch} are not known to be stored: {cause}")
        self.__cause__ = cause
        self.durable_epoch = durable_epoch
        if isinstance(cause, MemWalError):
            self.exit_code = cause.exit_code
            self.outcome = cause.outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(Generic[SnapshotT]):
    """A snapshot, and the highest epoch that is in it."""

    snapshot: SnapshotT
    epoch: int


def check_process(made_in: int) -> None:
    """Raise Usage outside the process `made_in`: no thread survives a fork."""
    if os.getpid() != made_in:
        raise Usage(
            f"this writer was made in process {made_in}, and this is a child that was forked from "
            "it: write there, or open a writer of the child's own once the parent's is closed (two "
            "of them fence each other)"
        )


class WriteCoordinator(
    AbstractContextManager["WriteCoordinator[DeltaT, SnapshotT]"], Generic[DeltaT, SnapshotT]
):
    """Serialises writes. Any thread may call it.

    As a context manager it shuts down at the end; after an error in the block, pending writes may
    stay unflushed.
    """

    def __init__(
        self,
        handler: FlushHandler[DeltaT, SnapshotT],
        snapshot: SnapshotT,
        *,
        limits: CoordinatorLimits | None = None,
        settle: Callable[[], float | None] = lambda: None,
    ) -> None:
        """`settle` is called after each flush, and again after as many seconds as it returned.

        What it raises fails the coordinator as a flush does.
        """
        self._settle = settle
        self._settle_at: float | None = None
        self._made_in = os.getpid()
        self._handler = handler
        self._limits = limits or CoordinatorLimits()
        self._read_clock = SystemClock().monotonic_seconds
        self._changed = Condition()
        self._snapshot = Published(snapshot=snapshot, epoch=0)
        self._pending: DeltaT | None = None
        self._pending_since_seconds = 0.0
        self._assigned = self._taken = self._wanted = 0
        """The last epochs that were assigned, taken by a flush, and that somebody waits for."""
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="write coordinator", daemon=True)
        self._thread.start()

    @property
    def snapshot(self) -> Published[SnapshotT]:
        """The newest snapshot."""
        check_process(self._made_in)
        return self._snapshot

    @property
    def durable_epoch(self) -> int:
        """The highest epoch that would survive a crash."""
        return self.snapshot.epoch

    def write(self, delta: DeltaT) -> int:
        """Hand over a delta and return its epoch. Waits while too much is pending.

        Raises FlushFailed, Closed.
        """
        check_process(self._made_in)
        with self._changed:
            self._check_open()
            while self._is_full():
                self._changed.wait()
                self._check_open()
            self._assigned += 1
            if self._pending is not None:
                self._pending.merge(delta)
            elif not delta.is_empty():
                self._pending, self._pending_since_seconds = delta, self._read_clock()
            elif self._snapshot.epoch == self._taken:  # no flush runs whose end would tell of it
                self._publish(self._snapshot.snapshot)
            self._changed.notify_all()
            return self._assigned

    def flush(self, epoch: int | None = None) -> int:
        """Wait until `epoch` (None: all written so far) is durable.

        Returns the highest epoch that is, which may be beyond `epoch`. Raises FlushFailed, Closed,
        and ValueError for an epoch that was never assigned.
        """
        check_process(self._made_in)
        with self._changed:
            self._check_open()
            epoch = self._assigned if epoch is None else epoch
            if not 0 <= epoch <= self._assigned:
                raise ValueError(f"epoch {epoch} was never assigned")
            self._wanted = max(self._wanted, epoch)
            self._changed.notify_all()
            while self._snapshot.epoch < epoch:
                self._check_alive()
                self._changed.wait()
            return self._snapshot.epoch

    def write_durable(self, delta: DeltaT) -> int:
        """Write a delta, wait until it is durable, and return its epoch."""
        epoch = self.write(delta)
        self.flush(epoch)
        return epoch

    def shutdown(self) -> None:
        """Flush what is pending, wait until all is durable, and end. Raises FlushFailed."""
        check_process(self._made_in)
        self._end(None)
        if not isinstance(self._error, Closed):  # an error in the block was told already
            self._check_alive()

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.shutdown()
        elif os.getpid() == self._made_in:
            self._end(_make_closed())  # what is pending is left out

    def _end(self, error: BaseException | None) -> None:
        with self._changed:
            self._is_closed = True
            self._error = self._error or error
            self._changed.notify_all()
        self._thread.join()

    def _check_open(self) -> None:
        self._check_alive()
        if self._is_closed:
            raise _make_closed()

    def _check_alive(self) -> None:
        if isinstance(self._error, Closed):
            raise self._error
        if self._error is not None:
            raise FlushFailed(self._error, self._snapshot.epoch)

    def _is_full(self) -> bool:
        pending = self._pending
        return pending is not None and pending.size_bytes() >= self._limits.pending_bytes_max

    def _publish(self, snapshot: SnapshotT) -> None:
        """Publish what is in all writes before the pending ones."""
        epoch = self._taken if self._pending is not None else self._assigned
        self._taken = epoch
        self._snapshot = Published(snapshot=snapshot, epoch=epoch)
        self._changed.notify_all()

    # ---- the thread that flushes

    def _run(self) -> None:
        try:
            while self._wait():
                if (delta := self._take()) is not None:
                    snapshot = self._handler.flush(delta, self._snapshot.snapshot)
                    with self._changed:
                        self._publish(snapshot)
                left = self._settle()
                self._settle_at = None if left is None else self._read_clock() + left
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait(self) -> bool:
        """Wait until there is something to flush or to settle; False at the end."""
        with self._changed:
            while (wait_seconds := self._find_wait_seconds()) != 0.0:
                if self._error is not None or (self._is_closed and self._pending is None):
                    return False
                self._changed.wait(wait_seconds)
            return True

    def _take(self) -> DeltaT | None:
        with self._changed:
            delta, self._pending, self._taken = self._pending, None, self._assigned
            self._changed.notify_all()
            return delta

    def _find_wait_seconds(self) -> float | None:
        """For how long nothing is due; 0 if something is, None if only a call can change that."""
        if self._error is not None or (self._is_closed and self._pending is None):
            return None
        due_at = [] if self._settle_at is None else [self._settle_at]
        if self._pending is not None:
            if self._is_closed or self._wanted > self._taken or self._is_full():
                return 0.0
            if (interval := self._limits.flush_interval_seconds) is not None:
                due_at.append(self._pending_since_seconds + interval)
        left = min(due_at, default=None)
        return None if left is None else min(max(0.0, left - self._read_clock()), TIMEOUT_MAX)
