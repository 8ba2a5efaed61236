"""Fakes for the write coordinator: a manual clock, a delta and a manual flush handler. Shipped."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from memwal.ingest.coordinator.ports import Flushed

# More turns of the event loop than a coordinator needs to come to rest after any step.
_TURNS = 30


async def settle() -> None:
    """Run all that can run until only time or a handler's release would let anything go on."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class ManualAsyncClock:
    """The AsyncClock port, moved by hand."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    async def sleep(self, seconds: float) -> None:
        """Wait until `advance` has moved the clock by `seconds`."""
        self._order += 1
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, self._order, woken))
        await woken

    def advance(self, seconds: float) -> None:
        """Move the clock, and wake the sleepers whose time has come."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)


@dataclass(kw_only=True, slots=True)
class ListDelta:
    """A delta of integers, each of which counts as one byte."""

    items: list[int] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Whether it holds nothing."""
        return not self.items

    def merge(self, other: Self) -> None:
        """Append the items of a later delta."""
        self.items += other.items

    def size_bytes(self) -> int:
        """One byte for each item."""
        return len(self.items)


@dataclass(kw_only=True, slots=True)
class _Gate:
    """Items that wait to be let through or failed."""

    items: tuple[int, ...]
    open: asyncio.Future[None]


class GatedHandler:
    """A flush handler whose flushes end, and become durable, when the test says so.

    The snapshot is all that was flushed, in order; `stored` is the durable part of it.
    """

    def __init__(self, *, gated: bool = True, durable_apart: bool = True) -> None:
        """If not `gated`, flushes end at once; if not `durable_apart`, they are durable then."""
        self._gated = gated
        self._durable_apart = durable_apart
        self._flushes: list[_Gate] = []
        self._durabilities: list[_Gate] = []
        self.flushed: list[tuple[int, ...]] = []
        self.stored: list[int] = []

    @property
    def flushing(self) -> Sequence[tuple[int, ...]]:
        """The flushes in progress; the coordinator promises at most one."""
        return [gate.items for gate in self._flushes]

    @property
    def settling(self) -> Sequence[tuple[int, ...]]:
        """The flushes that have ended and are not durable yet."""
        return [gate.items for gate in self._durabilities]

    async def flush(self, delta: ListDelta, snapshot: tuple[int, ...]) -> Flushed[tuple[int, ...]]:
        """Wait for `finish_flush`, and append the delta to the snapshot."""
        items = tuple(delta.items)
        if self._gated:
            await self._wait(self._flushes, items)
        self.flushed.append(items)
        after = (*snapshot, *items)
        if not self._durable_apart:
            self.stored += items
            return Flushed(snapshot=after)
        return Flushed(snapshot=after, durable=self._settled(items))

    async def _settled(self, items: tuple[int, ...]) -> None:
        await self._wait(self._durabilities, items)
        self.stored += items

    async def _wait(self, gates: list[_Gate], items: tuple[int, ...]) -> None:
        gate = _Gate(items=items, open=asyncio.get_running_loop().create_future())
        gates.append(gate)
        try:
            await gate.open
        finally:
            gates.remove(gate)

    def finish_flush(self, error: Exception | None = None) -> None:
        """End the running flush, with `error` if one is given."""
        _pass(self._flushes[0], error)

    def finish_durable(self, error: Exception | None = None, *, which: int = 0) -> None:
        """Make the oldest flush (or the one at `which`) durable, or fail it with `error`."""
        _pass(self._durabilities[which], error)


def _pass(gate: _Gate, error: Exception | None) -> None:
    if error is None:
        gate.open.set_result(None)
    else:
        gate.open.set_exception(error)
