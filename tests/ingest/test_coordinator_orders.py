"""The coordinator's promises about order, under any interleaving of callers, flushes and time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from memwal.errors import StoreUnavailable
from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import CoordinatorLimits, FlushFailed, Reached, State
from memwal.testing.ingest import GatedHandler, ListDelta, ManualAsyncClock, settle

PENDING_BYTES_MAX = 6
INTERVAL_SECONDS = 5.0


class Orders(RuleBasedStateMachine):
    """Commands are sent without waiting for their answers; answers are checked as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.handler = GatedHandler()
        self.clock = ManualAsyncClock()
        self.coordinator = self.loop.run_until_complete(self.make())
        self.subscription = self.coordinator.subscribe()
        self.next_item = 0
        self.sent: list[tuple[tuple[int, ...], asyncio.Task[int]]] = []
        self.flushes: list[tuple[Reached, asyncio.Task[int]]] = []
        self.watermarks = (0, 0)
        self.failed = False

    async def make(self) -> WriteCoordinator[ListDelta, tuple[int, ...]]:
        limits = CoordinatorLimits(
            queue_depth_max=3,
            pending_bytes_max=PENDING_BYTES_MAX,
            flush_interval_seconds=INTERVAL_SECONDS,
        )
        return WriteCoordinator(self.handler, (), limits=limits, clock=self.clock)

    def start(self, work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        task = self.loop.create_task(work)
        self.rest()
        return task

    def rest(self) -> None:
        self.loop.run_until_complete(settle())

    def teardown(self) -> None:
        if not self.failed:
            self.drain()
        assert all(task.done() for _, task in [*self.sent, *self.flushes])
        for _, task in [*self.sent, *self.flushes]:
            task.exception()
        self.loop.run_until_complete(self.coordinator.abandon())
        self.loop.close()

    def drain(self) -> None:
        """Let everything pass; then all that was written is flushed in order."""
        end = self.loop.create_task(self.coordinator.shutdown())
        self.rest()
        while not end.done():
            if self.handler.flushing:
                self.handler.finish_flush()
            elif self.handler.settling:
                self.handler.finish_durable()
            self.rest()
        epochs = [task.result() for _, task in self.sent]
        assert epochs == list(range(1, len(epochs) + 1))
        everything = [item for items, _ in self.sent for item in items]
        assert [item for items in self.handler.flushed for item in items] == everything
        assert sorted(self.handler.stored) == everything  # each became durable once

    # ---- what may happen

    @precondition(lambda self: not self.failed)
    @rule(size=st.integers(0, 4))
    def write(self, size: int) -> None:
        items = tuple(range(self.next_item, self.next_item + size))
        self.next_item += size
        task = self.start(self.coordinator.write(ListDelta(items=list(items))))
        self.sent.append((items, task))

    @precondition(lambda self: not self.failed)
    @rule(until=st.sampled_from(Reached), back=st.integers(0, 3))
    def flush(self, until: Reached, back: int) -> None:
        known = [task.result() for _, task in self.sent if task.done()]
        epoch = known[-1 - back] if back < len(known) else None
        self.flushes.append((until, self.start(self.coordinator.flush(epoch, until))))

    @precondition(lambda self: self.handler.flushing)
    @rule()
    def finish_flush(self) -> None:
        self.handler.finish_flush()
        self.rest()

    @precondition(lambda self: self.handler.settling)
    @rule(which=st.integers(0, 3))
    def finish_durable(self, which: int) -> None:
        self.handler.finish_durable(which=which % len(self.handler.settling))
        self.rest()

    @rule()
    def pass_time(self) -> None:
        self.clock.advance(INTERVAL_SECONDS)
        self.rest()

    @precondition(lambda self: self.handler.flushing and len(self.sent) > 8)
    @rule()
    def fail(self) -> None:
        self.handler.finish_flush(StoreUnavailable("no answer"))
        self.rest()
        self.failed = True
        for _, task in [*self.sent, *self.flushes]:
            assert task.done(), "somebody is left waiting"
        assert self.coordinator.state is State.FAILED

    # ---- what holds at every moment

    @invariant()
    def one_flush_at_a_time(self) -> None:
        assert len(self.handler.flushing) <= 1

    @invariant()
    def watermarks_rise_and_keep_their_order(self) -> None:
        flushed, durable = self.coordinator.flushed_epoch, self.coordinator.durable_epoch
        assert durable <= flushed
        assert (flushed, durable) >= self.watermarks and durable >= self.watermarks[1]
        self.watermarks = (flushed, durable)

    @invariant()
    def the_snapshot_is_exactly_what_is_flushed(self) -> None:
        current = self.subscription.current
        assert current.epoch == self.coordinator.flushed_epoch
        by_epoch = [items for items, _ in self.sent]
        wanted = [item for items in by_epoch[: current.epoch] for item in items]
        assert list(current.snapshot) == wanted
        assert [item for items in self.handler.flushed for item in items] == wanted

    @invariant()
    def answers_come_when_they_are_true(self) -> None:
        stored = set(self.handler.stored)
        for until, task in self.flushes:
            if not task.done() or isinstance(task.exception(), FlushFailed):
                continue
            reached = task.result()
            assert reached <= self.coordinator.flushed_epoch
            if until is Reached.DURABLE:
                assert reached <= self.coordinator.durable_epoch
                assert {i for items, _ in self.sent[:reached] for i in items} <= stored

    @invariant()
    def pending_writes_are_bounded(self) -> None:
        # The last write that was taken in may go beyond the limit, by its own size.
        assert self.coordinator.pending_bytes < PENDING_BYTES_MAX + 4


TestOrders = Orders.TestCase
TestOrders.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
