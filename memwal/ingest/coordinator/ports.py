"""What the write coordinator is generic over, and the errors that it answers with.

Source: OpenData RFC 0003. A delta is what was written and not flushed yet; a flush handler makes
it part of the stored state. The coordinator uses both only through these ports.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, Self, TypeVar

from memwal.errors import MemWalError, Refused

SnapshotT = TypeVar("SnapshotT")
DeltaT_contra = TypeVar("DeltaT_contra", contravariant=True)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Flushed(Generic[SnapshotT]):
    """The result of a flush: the new snapshot, and when it is durable.

    `durable` ends when the flushed writes would survive a crash, or raises when they will not. None
    means that they would already.
    """

    snapshot: SnapshotT
    durable: Awaitable[None] | None = None


class FlushHandler(Protocol[DeltaT_contra, SnapshotT]):
    """Persists deltas, one at a time and in the order of their epochs."""

    async def flush(self, delta: DeltaT_contra, snapshot: SnapshotT) -> Flushed[SnapshotT]:
        """Apply `delta` on top of `snapshot`. Whatever it raises fails the coordinator for good."""
        ...


class AsyncClock(Protocol):
    """The coordinator's time, behind a port so that its runs can be replayed."""

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking other tasks."""
        ...


class SystemAsyncClock:
    """The AsyncClock port on this host."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorLimits:
    """Bounds on one coordinator.

    At most `queue_depth_max` commands are queued; further callers wait. At `pending_bytes_max` a
    flush begins, and no write is accepted until it has taken the pending ones. The oldest pending
    write waits at most `flush_interval_seconds` for its flush to begin; with None, for ever.
    """

    queue_depth_max: int = 1024
    pending_bytes_max: int = 64 * 1024 * 1024
    flush_interval_seconds: float | None = 1.0


class Closed(Refused):
    """The coordinator was shut down and takes no more commands."""


class FlushFailed(MemWalError):
    """A flush, or the wait for its durability, failed; the coordinator is finished.

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


DeltaT = TypeVar("DeltaT", bound=Delta)


class State(Enum):
    """What the coordinator is doing."""

    IDLE = "idle"
    """Nothing pending, no flush."""
    ACCUMULATING = "accumulating"
    """Writes are pending, no flush runs."""
    FLUSHING = "flushing"
    """A flush runs; new writes go to a fresh pending delta."""
    FAILED = "failed"
    """A flush failed; every caller gets its error."""


class Reached(Enum):
    """Which watermark a flush waits for."""

    FLUSHED = "flushed"
    DURABLE = "durable"


@dataclass(kw_only=True, slots=True, eq=False)
class Write(Generic[DeltaT]):
    """Add a delta; the answer is its epoch."""

    delta: DeltaT
    answer: asyncio.Future[int]


@dataclass(kw_only=True, slots=True, eq=False)
class Flush:
    """Wait for a watermark to reach `epoch`, or everything written so far when that is None."""

    epoch: int | None
    until: Reached
    answer: asyncio.Future[int]


@dataclass(kw_only=True, slots=True, eq=False)
class Shutdown:
    """Flush what is pending, and end."""

    answer: asyncio.Future[int]


@dataclass(kw_only=True, slots=True, eq=False)
class Durability:
    """A flush that is not known to be durable yet; without a task it already is."""

    epoch: int
    task: asyncio.Task[None] | None


Command = Write[Any] | Flush | Shutdown


@dataclass(kw_only=True, slots=True, eq=False)
class Tasks:
    """The tasks that the coordinator waits for."""

    command: asyncio.Task[Command] | None = None
    flush: asyncio.Task[Any] | None = None
    timer: asyncio.Task[None] | None = None
    durable: deque[Durability] = field(default_factory=deque)

    def list_next(self, *, commands: bool) -> list[asyncio.Task[Any]]:
        """The tasks that may end next; with `commands`, that includes the next command."""
        first = self.durable[0].task if self.durable else None
        found = [self.flush, first, self.timer, self.command if commands else None]
        return [task for task in found if task is not None]

    def list_all(self) -> list[asyncio.Task[Any]]:
        """Every task that has not been handled yet."""
        found = [self.command, self.flush, self.timer, *(d.task for d in self.durable)]
        return [task for task in found if task is not None]


def make_future() -> asyncio.Future[int]:
    """A future for an answer, on the running loop."""
    return asyncio.get_running_loop().create_future()


async def wait_for(durable: Awaitable[None]) -> None:
    """Wrap any awaitable in a coroutine, since a task needs one."""
    await durable


def answer_with(answer: asyncio.Future[int], value: int) -> None:
    """Answer, unless the caller has gone away."""
    if not answer.done():
        answer.set_result(value)


def refuse(answer: asyncio.Future[int], error: BaseException) -> None:
    """Answer with an error, unless the caller has gone away."""
    if not answer.done():
        answer.set_exception(error)
