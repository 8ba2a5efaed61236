"""The commands of the write coordinator, and the tasks that it waits for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from memwal.ingest.coordinator.ports import Delta

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
