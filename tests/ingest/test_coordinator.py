"""The write coordinator, step by step: time and flushes move only when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from memwal.errors import Refused, StoreUnavailable
from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import Closed, CoordinatorLimits, FlushFailed, Reached, State
from memwal.testing.ingest import GatedHandler, ListDelta, ManualAsyncClock, settle


class Scene:
    """A coordinator with its fakes."""

    def __init__(self, handler: GatedHandler | None = None, **limits: Any) -> None:
        self.handler = handler or GatedHandler(durable_apart=False)
        self.clock = ManualAsyncClock()
        self.coordinator: WriteCoordinator[ListDelta, tuple[int, ...]] = WriteCoordinator(
            self.handler,
            (),
            limits=CoordinatorLimits(**{"flush_interval_seconds": 10.0, **limits}),
            clock=self.clock,
        )

    async def write(self, *items: int) -> int:
        return await self.coordinator.write(ListDelta(items=list(items)))

    def later(self, work: Coroutine[Any, Any, int | None]) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)


def scenario(play: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(asyncio.wait_for(play(), timeout=60))

    run.__name__ = play.__name__
    return run


@scenario
async def test_states_and_epochs() -> None:
    scene = Scene()
    coordinator = scene.coordinator
    assert coordinator.state is State.IDLE
    assert [await scene.write(1), await scene.write(2)] == [1, 2]
    assert coordinator.state is State.ACCUMULATING
    flush = scene.later(coordinator.flush())
    await settle()
    assert coordinator.state is State.FLUSHING
    assert await scene.write(3) == 3  # goes on meanwhile, into a fresh delta
    scene.handler.finish_flush()
    assert await flush == 2
    assert (coordinator.state, coordinator.durable_epoch) == (State.ACCUMULATING, 2)
    assert scene.handler.flushed == [(1, 2)]


@scenario
async def test_flush_during_a_flush_waits_for_the_next_one() -> None:
    scene = Scene()
    await scene.write(1)
    first = scene.later(scene.coordinator.flush())
    await settle()
    await scene.write(2)
    second = scene.later(scene.coordinator.flush())
    await settle()
    scene.handler.finish_flush()
    await settle()
    assert first.done() and not second.done()
    assert scene.handler.flushing == [(2,)]
    scene.handler.finish_flush()
    assert await second == 2


@scenario
async def test_an_epoch_in_flight_needs_no_flush_of_its_own() -> None:
    scene = Scene()
    await scene.write(1)
    scene.later(scene.coordinator.flush())
    await settle()
    await scene.write(2)
    again = scene.later(scene.coordinator.flush(1))
    await settle()
    scene.handler.finish_flush()
    assert await again == 1
    await settle()
    assert scene.handler.flushing == []  # nobody asked for epoch 2


@scenario
async def test_flushed_and_durable_are_two_events() -> None:
    scene = Scene(GatedHandler())
    await scene.write(1)
    durable = scene.later(scene.coordinator.flush())
    flushed = scene.later(scene.coordinator.flush(until=Reached.FLUSHED))
    await settle()
    scene.handler.finish_flush()
    assert await flushed == 1
    assert (scene.coordinator.flushed_epoch, scene.coordinator.durable_epoch) == (1, 0)
    assert not durable.done() and scene.handler.stored == []
    scene.handler.finish_durable()
    assert await durable == 1
    assert scene.handler.stored == [1]


@scenario
async def test_a_durable_write_returns_when_it_would_survive() -> None:
    scene = Scene(GatedHandler())
    written = scene.later(scene.coordinator.write_durable(ListDelta(items=[1])))
    await settle()
    assert scene.handler.flushing == [(1,)]  # nobody else asked, and no time has passed
    scene.handler.finish_flush()
    await settle()
    assert not written.done()
    scene.handler.finish_durable()
    assert await written == 1
    assert scene.handler.stored == [1]


@scenario
async def test_a_later_flush_is_not_durable_before_an_earlier_one() -> None:
    scene = Scene(GatedHandler(gated=False))
    await scene.write(1)
    await scene.coordinator.flush(until=Reached.FLUSHED)
    await scene.write(2)
    await scene.coordinator.flush(until=Reached.FLUSHED)
    await settle()
    scene.handler.finish_durable(which=1)
    await settle()
    assert scene.coordinator.durable_epoch == 0
    scene.handler.finish_durable()
    assert await scene.coordinator.flush() == 2


@scenario
async def test_the_timer_counts_from_the_oldest_pending_write() -> None:
    scene = Scene()
    await scene.write(1)
    await settle()
    scene.clock.advance(6)
    await scene.write(2)
    await settle()
    scene.clock.advance(3)
    await settle()
    assert scene.coordinator.state is State.ACCUMULATING
    scene.clock.advance(1)
    await settle()
    assert scene.handler.flushing == [(1, 2)]


@scenario
async def test_of_a_write_and_the_timer_the_write_comes_first() -> None:
    scene = Scene()
    await scene.write(1)
    await settle()
    scene.clock.advance(10)
    late = scene.later(scene.write(2))
    await settle()
    assert await late == 2
    assert scene.handler.flushing == [(1, 2)]


@scenario
async def test_a_timer_that_fires_during_a_flush_starts_the_next() -> None:
    scene = Scene()
    await scene.write(1)
    scene.later(scene.coordinator.flush())
    await settle()
    await scene.write(2)
    await settle()
    scene.clock.advance(10)
    await settle()
    assert scene.handler.flushing == [(1,)]
    scene.handler.finish_flush()
    await settle()
    assert scene.handler.flushing == [(2,)]


@scenario
async def test_size_starts_a_flush_and_holds_writes_back() -> None:
    scene = Scene(pending_bytes_max=3)
    await scene.write(1, 2, 3)
    await settle()
    assert scene.handler.flushing == [(1, 2, 3)]
    await scene.write(4, 5, 6, 7)  # one delta is taken in whole, however large
    held = scene.later(scene.write(8))
    behind = scene.later(scene.write(9))
    await settle()
    assert not held.done() and not behind.done()
    assert scene.coordinator.pending_bytes == 4
    scene.handler.finish_flush()
    assert (await held, await behind) == (3, 4)
    assert scene.handler.flushing == [(4, 5, 6, 7)]


@scenario
async def test_the_queue_is_bounded() -> None:
    scene = Scene(queue_depth_max=2, pending_bytes_max=1)
    await scene.write(0)
    await settle()
    await scene.write(1)
    tasks = [scene.later(scene.write(n)) for n in range(2, 12)]
    await settle()
    # One write is held back, one was taken out of the queue; two wait there, the rest outside.
    assert scene.coordinator._queue.qsize() == 2
    assert not any(task.done() for task in tasks)
    for _ in range(12):
        scene.handler.finish_flush()
        await settle()
    assert [await task for task in tasks] == list(range(3, 13))
    assert [n for flushed in scene.handler.flushed for n in flushed] == list(range(12))


@scenario
async def test_a_failed_flush_reaches_everybody() -> None:
    scene = Scene(pending_bytes_max=2)
    await scene.write(1, 2)
    await settle()
    await scene.write(3, 4)
    waiting = [
        scene.later(scene.coordinator.flush(1)),
        scene.later(scene.coordinator.flush(2)),
        scene.later(scene.write(5)),  # held back
        scene.later(scene.write(6)),  # behind it
        scene.later(scene.coordinator.shutdown()),
    ]
    follower = asyncio.ensure_future(scene.coordinator.subscribe().changed())
    await settle()
    scene.handler.finish_flush(StoreUnavailable("the disk is gone"))
    await settle()
    assert scene.coordinator.state is State.FAILED
    for task in (*waiting, follower):
        with pytest.raises(FlushFailed, match="the disk is gone") as caught:
            await task
        assert isinstance(caught.value.__cause__, StoreUnavailable)
    for late in (scene.write(7), scene.coordinator.flush(), scene.coordinator.shutdown()):
        with pytest.raises(FlushFailed, match="after epoch 0 are not known"):
            await late


@scenario
async def test_a_write_that_never_gets_durable_fails_all_after_it() -> None:
    scene = Scene(GatedHandler(gated=False))
    await scene.write(1)
    await scene.coordinator.flush(until=Reached.FLUSHED)
    waiting = scene.later(scene.coordinator.flush())
    await settle()
    scene.handler.finish_durable(Refused("MW-H01", "somebody else took over"))
    with pytest.raises(FlushFailed, match="somebody else took over") as caught:
        await waiting
    assert caught.value.exit_code == Refused.exit_code


@scenario
async def test_shutdown_flushes_first_and_refuses_later_commands() -> None:
    scene = Scene(GatedHandler())
    await scene.write(1)
    end = scene.later(scene.coordinator.shutdown())
    await settle()
    with pytest.raises(Closed):
        await scene.write(2)
    scene.handler.finish_flush()
    await settle()
    assert not end.done()
    scene.handler.finish_durable()
    await end
    assert scene.handler.stored == [1]
    await scene.coordinator.shutdown()
    with pytest.raises(Closed):
        await scene.coordinator.flush()


@scenario
async def test_abandoning_leaves_pending_writes_out_and_nobody_waiting() -> None:
    scene = Scene()
    await scene.write(1)
    waiting = scene.later(scene.coordinator.flush())
    await settle()
    await scene.coordinator.abandon()
    with pytest.raises(FlushFailed):
        await waiting
    assert scene.handler.flushed == []


@scenario
async def test_empty_deltas_have_epochs_and_no_flush() -> None:
    scene = Scene()
    assert await scene.write() == 1
    assert await scene.coordinator.flush() == 1
    await scene.write(1)
    flush = scene.later(scene.coordinator.flush())
    await settle()
    assert await scene.write() == 3
    last = scene.later(scene.coordinator.flush())
    await settle()
    scene.handler.finish_flush()
    assert (await flush, await last) == (3, 3)
    assert scene.handler.flushed == [(1,)]


@scenario
async def test_an_epoch_that_was_never_given_out() -> None:
    scene = Scene()
    await scene.write(1)
    with pytest.raises(ValueError, match="epoch 2 was never assigned"):
        await scene.coordinator.flush(2)
    assert scene.coordinator.state is State.ACCUMULATING


@scenario
async def test_a_cancelled_writer_is_either_told_an_epoch_or_not_written() -> None:
    scene = Scene(pending_bytes_max=1)
    await scene.write(1)
    await settle()
    await scene.write(2)
    gone = scene.later(scene.write(3))
    stays = scene.later(scene.write(4))
    await settle()
    gone.cancel()
    for _ in range(3):
        scene.handler.finish_flush()
        await settle()
    assert await stays == 3
    assert scene.handler.flushed == [(1,), (2,), (4,)]


@scenario
async def test_a_snapshot_and_its_epoch_change_together() -> None:
    scene = Scene()
    seen: list[tuple[int, ...]] = []

    async def look() -> None:
        while scene.coordinator.state is not State.IDLE or not seen:
            current = scene.coordinator.subscribe().current
            assert len(current.snapshot) == current.epoch == scene.coordinator.flushed_epoch
            seen.append(current.snapshot)
            await asyncio.sleep(0)

    for number in (1, 2):
        await scene.write(number)
    looking = scene.later(look())
    flush = scene.later(scene.coordinator.flush())
    await settle()
    await scene.write(3)
    scene.handler.finish_flush()
    await flush
    last = scene.later(scene.coordinator.flush())
    await settle()
    scene.handler.finish_flush()
    await asyncio.gather(last, looking)
    assert set(seen) >= {(), (1, 2)}


@scenario
async def test_subscribers_share_one_snapshot() -> None:
    scene = Scene(GatedHandler(gated=False, durable_apart=False))
    first, second = scene.coordinator.subscribe(), scene.coordinator.subscribe()
    await scene.write(1)
    await scene.coordinator.flush()
    await scene.write(2)
    await scene.coordinator.flush()
    seen = await first.changed()
    assert (seen.snapshot, seen.epoch) == ((1, 2), 2)
    assert second.current is seen
    changed = asyncio.ensure_future(first.changed())
    await settle()
    assert not changed.done()
    await scene.coordinator.shutdown()
    with pytest.raises(Closed):
        await changed
