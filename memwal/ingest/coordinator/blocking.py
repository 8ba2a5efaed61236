"""The write coordinator for callers without an event loop: the same methods, as plain calls."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, suppress
from threading import Thread
from typing import Any, Generic, TypeVar

from memwal.ingest.coordinator.core import Published, Subscription, WriteCoordinator, check_process
from memwal.ingest.coordinator.ports import Closed, Delta, FlushFailed, Reached, State

DeltaT = TypeVar("DeltaT", bound=Delta)
SnapshotT = TypeVar("SnapshotT")
T = TypeVar("T")


class BlockingCoordinator(
    AbstractContextManager["BlockingCoordinator[DeltaT, SnapshotT]"], Generic[DeltaT, SnapshotT]
):
    """Runs a coordinator on an event loop in a thread of its own. Any thread may call it.

    As a context manager it shuts down at the end; after an error in the block, pending writes may
    stay unflushed.
    """

    def __init__(self, make: Callable[[], WriteCoordinator[DeltaT, SnapshotT]]) -> None:
        """`make` is called on the event loop; its errors are raised here."""
        self._made_in = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="write coordinator", daemon=True)
        self._thread.start()
        self._followers: list[asyncio.Task[None]] = []
        try:
            self._coordinator = self._call(_make(make))
        except BaseException:
            self._stop()
            raise

    @property
    def state(self) -> State:
        """What the coordinator is doing."""
        return self._here.state

    @property
    def snapshot(self) -> Published[SnapshotT]:
        """The newest snapshot."""
        return self._here.subscribe().current

    @property
    def durable_epoch(self) -> int:
        """The highest epoch that would survive a crash."""
        return self._here.durable_epoch

    @property
    def _here(self) -> WriteCoordinator[DeltaT, SnapshotT]:
        """The coordinator. Raises Usage in a forked process."""
        check_process(self._made_in)
        return self._coordinator

    def follow(self, told: Callable[[Published[SnapshotT]], None]) -> None:
        """Call `told` with newer snapshots, in the coordinator's thread; some may be skipped.

        It should be quick. The last call is over when `shutdown` returns, which also raises any
        error of `told`.
        """
        self._followers.append(self._call(_follow(self._coordinator.subscribe(), told)))

    def write(self, delta: DeltaT) -> int:
        """Hand over a delta; returns its epoch."""
        return self._call(self._coordinator.write(delta))

    def flush(self, epoch: int | None = None, until: Reached = Reached.DURABLE) -> int:
        """Wait until `epoch` (None: all written so far) has reached the watermark."""
        return self._call(self._coordinator.flush(epoch, until))

    def write_durable(self, delta: DeltaT) -> int:
        """Write a delta and wait until it is durable; returns its epoch."""
        return self._call(self._coordinator.write_durable(delta))

    def shutdown(self) -> None:
        """Flush what is pending, wait until all is durable, and end."""
        check_process(self._made_in)
        if self._loop.is_closed():
            return
        try:
            self._call(self._coordinator.shutdown())
            self._call(_end_of(self._followers))
        finally:
            self._stop()

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.shutdown()
        elif not self._loop.is_closed() and os.getpid() == self._made_in:
            self._call(self._coordinator.abandon())
            self._stop()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if os.getpid() != self._made_in or self._loop.is_closed():
            work.close()
            check_process(self._made_in)
            raise Closed("MW-I02", "the write coordinator was shut down")
        call = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return call.result()
        except BaseException:
            call.cancel()
            raise

    def _stop(self) -> None:
        if self._followers:
            self._call(_end_of(self._followers, raises=False))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _follow(
    subscription: Subscription[SnapshotT], told: Callable[[Published[SnapshotT]], None]
) -> asyncio.Task[None]:
    async def follow() -> None:
        with suppress(Closed, FlushFailed):  # the writer gets these errors
            while True:
                told(await subscription.changed())

    return asyncio.ensure_future(follow())


async def _end_of(tasks: list[asyncio.Task[None]], *, raises: bool = True) -> None:
    await asyncio.gather(*tasks, return_exceptions=not raises)


async def _make(
    make: Callable[[], WriteCoordinator[DeltaT, SnapshotT]],
) -> WriteCoordinator[DeltaT, SnapshotT]:
    return make()
