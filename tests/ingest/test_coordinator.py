"""The write coordinator: its epochs, its waiters and its failures. Flushes end when a test says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Self

import pytest

from memwal.errors import Refused, StoreUnavailable
from memwal.ingest.coordinator import Closed, CoordinatorLimits, FlushFailed, WriteCoordinator

WAIT_SECONDS_MAX = 30


@dataclass(kw_only=True)
class Items:
    """A delta of integers, each of which counts as one byte."""

    items: list[int] = field(default_factory=list)

    def is_empty(self) -> bool:
        return not self.items

    def merge(self, other: Self) -> None:
        self.items += other.items

    def size_bytes(self) -> int:
        return len(self.items)


class Handler:
    """A flush handler; with `gated`, a flush waits for `finish`. The snapshot is all in order."""

    def __init__(self, *, gated: bool = True) -> None:
        self.gated = gated
        self.begun: SimpleQueue[tuple[int, ...]] = SimpleQueue()
        self.ends: SimpleQueue[Exception | None] = SimpleQueue()
        self.flushed: list[tuple[int, ...]] = []

    def flush(self, delta: Items, snapshot: tuple[int, ...]) -> tuple[int, ...]:
        items = tuple(delta.items)
        if self.gated:
            self.begun.put(items)
            if (error := self.ends.get()) is not None:
                raise error
        self.flushed.append(items)
        return (*snapshot, *items)

    def begins(self) -> tuple[int, ...]:
        """Wait until a flush begins; returns what it flushes."""
        return self.begun.get(timeout=WAIT_SECONDS_MAX)

    def finish(self, error: Exception | None = None) -> None:
        self.ends.put(error)


class Scene:
    """A coordinator, and threads that call it."""

    def __init__(self, pool: ThreadPoolExecutor, handler: Handler, **limits: Any) -> None:
        self.pool, self.handler = pool, handler
        limits = {"flush_interval_seconds": None, **limits}
        self.coordinator = WriteCoordinator[Items, tuple[int, ...]](
            handler, (), limits=CoordinatorLimits(**limits)
        )

    def write(self, *items: int) -> int:
        return self.coordinator.write(Items(items=list(items)))

    def later(self, call: Any, *arguments: Any) -> Future[Any]:
        return self.pool.submit(call, *arguments)


def get(future: Future[Any]) -> Any:
    return future.result(timeout=WAIT_SECONDS_MAX)


@contextmanager
def play(*, gated: bool = True, **limits: Any) -> Iterator[Scene]:
    with ThreadPoolExecutor(8) as pool:
        scene = Scene(pool, Handler(gated=gated), **limits)
        try:
            yield scene
        finally:
            for _ in range(9):
                scene.handler.finish()
            scene.coordinator.__exit__(KeyError)


def test_epochs_go_on_while_a_flush_runs() -> None:
    with play() as scene:
        assert [scene.write(1), scene.write(2)] == [1, 2]
        assert scene.coordinator.durable_epoch == 0
        flush = scene.later(scene.coordinator.flush)
        assert scene.handler.begins() == (1, 2)
        assert scene.write(3) == 3  # into a fresh delta
        again = scene.later(scene.coordinator.flush, 2)
        scene.handler.finish()
        assert get(flush) == 2 and get(again) == 2
        assert scene.coordinator.snapshot.snapshot == (1, 2)
        assert scene.coordinator.durable_epoch == 2
        assert scene.handler.begun.empty()  # nobody asked for epoch 3


def test_flush_during_a_flush_waits_for_the_next_one() -> None:
    with play() as scene:
        scene.write(1)
        first = scene.later(scene.coordinator.flush)
        assert scene.handler.begins() == (1,)
        second = scene.later(scene.coordinator.write_durable, Items(items=[2]))
        scene.handler.finish()
        assert get(first) == 1
        assert scene.handler.begins() == (2,)
        assert not second.done()
        scene.handler.finish()
        assert get(second) == 2


def test_an_interval_may_be_for_ever() -> None:
    with play(flush_interval_seconds=float("inf")) as scene:
        scene.write(1)
        flush = scene.later(scene.coordinator.flush)
        assert scene.handler.begins() == (1,)
        scene.handler.finish()
        assert get(flush) == 1


@pytest.mark.parametrize("seconds", [0.0, 0.001])
def test_the_oldest_pending_write_is_flushed_in_time(seconds: float) -> None:
    with play(flush_interval_seconds=seconds) as scene:
        scene.write(1)
        assert scene.handler.begins() == (1,)
        scene.write(2)
        assert scene.handler.begun.empty()  # one flush at a time
        scene.handler.finish()
        assert scene.handler.begins() == (2,)


def test_size_starts_a_flush_and_holds_writes_back() -> None:
    with play(pending_bytes_max=3) as scene:
        scene.write(1, 2, 3)
        assert scene.handler.begins() == (1, 2, 3)
        scene.write(4, 5, 6, 7)  # one delta is taken in whole, however large
        held = scene.later(scene.write, 8)
        scene.handler.finish()
        assert scene.handler.begins() == (4, 5, 6, 7)
        assert get(held) == 3


def test_a_held_write_is_not_taken_in() -> None:
    with play(pending_bytes_max=1) as scene:
        scene.write(1)
        assert scene.handler.begins() == (1,)
        scene.write(2)
        held = [scene.later(scene.write, n) for n in range(3, 7)]
        assert not any(write.done() for write in held)
        assert scene.coordinator._assigned == 2
        for _ in range(6):
            scene.handler.finish()
        assert sorted(get(write) for write in held) == [3, 4, 5, 6]
        assert get(scene.later(scene.coordinator.flush)) == 6
        assert all(len(flushed) == 1 for flushed in scene.handler.flushed)


def test_a_failed_flush_reaches_everybody() -> None:
    with play(pending_bytes_max=2) as scene:
        scene.write(1, 2)
        assert scene.handler.begins() == (1, 2)
        scene.write(3, 4)
        waiting = [
            scene.later(scene.coordinator.flush, 1),
            scene.later(scene.coordinator.flush, 2),
            scene.later(scene.write, 5),  # held back
        ]
        scene.handler.finish(StoreUnavailable("the disk is gone"))
        for wait in waiting:
            with pytest.raises(FlushFailed, match="the disk is gone") as caught:
                get(wait)
            assert isinstance(caught.value.__cause__, StoreUnavailable)
            assert caught.value.exit_code == StoreUnavailable.exit_code
        for late in (scene.write, scene.coordinator.flush, scene.coordinator.shutdown):
            with pytest.raises(FlushFailed, match="after epoch 0 are not known"):
                late()
        assert scene.handler.flushed == []


def test_shutdown_flushes_first_and_refuses_later_commands() -> None:
    with play() as scene:
        scene.write(1)
        end = scene.later(scene.coordinator.shutdown)
        assert scene.handler.begins() == (1,)
        with pytest.raises(Closed):
            scene.write(2)
        assert not end.done()
        scene.handler.finish()
        get(end)
        assert scene.handler.flushed == [(1,)]
        scene.coordinator.shutdown()
        with pytest.raises(Closed):
            scene.coordinator.flush()


def test_an_error_in_the_block_leaves_out_what_is_pending_and_nobody_waiting() -> None:
    with play() as scene:
        scene.write(1)
        running = scene.later(scene.coordinator.flush)
        assert scene.handler.begins() == (1,)
        scene.write(2)
        waiting = scene.later(scene.coordinator.flush, 2)
        scene.handler.finish(Refused("MW-H01", "somebody else took over"))
        with pytest.raises(FlushFailed, match="took over"):
            get(running)
        with pytest.raises(KeyError), scene.coordinator:
            raise KeyError
        with pytest.raises(FlushFailed):
            get(waiting)
        assert scene.handler.flushed == []
    with play() as scene:
        with pytest.raises(KeyError), scene.coordinator:
            scene.write(1)
            raise KeyError
        assert scene.handler.flushed == []
        with pytest.raises(Closed):
            scene.coordinator.flush()
        scene.coordinator.shutdown()  # in a `finally`, say


def test_empty_deltas_have_epochs_and_no_flush() -> None:
    with play() as scene:
        assert scene.write() == 1
        assert scene.coordinator.flush() == 1
        scene.write(1)
        flush = scene.later(scene.coordinator.flush)
        assert scene.handler.begins() == (1,)
        assert scene.write() == 3
        assert scene.coordinator.durable_epoch == 1  # not before what was written earlier
        scene.handler.finish()
        assert get(flush) == 3
        assert scene.handler.flushed == [(1,)]


def test_an_epoch_that_was_never_given_out() -> None:
    with play() as scene:
        scene.write(1)
        with pytest.raises(ValueError, match="epoch 2 was never assigned"):
            scene.coordinator.flush(2)


def test_threads_write_side_by_side() -> None:
    with play(gated=False, pending_bytes_max=5, flush_interval_seconds=0.0) as scene:

        def write(n: int) -> int:
            epoch = scene.coordinator.write_durable(Items(items=[n]))
            published = scene.coordinator.snapshot
            # A snapshot and its epoch change together, and cover what was acknowledged.
            assert len(published.snapshot) == published.epoch >= epoch
            assert n in published.snapshot
            return epoch

        epochs = list(scene.pool.map(write, range(300)))
        assert sorted(epochs) == list(range(1, 301))
        scene.coordinator.shutdown()
        # The epochs tell the order in which things were written.
        order = tuple(n for _, n in sorted(zip(epochs, range(300), strict=True)))
        assert scene.coordinator.snapshot.snapshot == order


# ---- in between


def test_what_is_left_open_is_settled_after_a_flush_and_again_in_time() -> None:
    waits: SimpleQueue[float | None] = SimpleQueue()
    handler = Handler(gated=False)
    settled: SimpleQueue[int] = SimpleQueue()

    def settle() -> float | None:
        settled.put(len(handler.flushed))
        return waits.get()

    with WriteCoordinator[Items, tuple[int, ...]](handler, (), settle=settle) as coordinator:
        coordinator.write_durable(Items(items=[1]))
        for wait in (0.0, 0.001, None):
            assert settled.get(timeout=WAIT_SECONDS_MAX) == 1
            waits.put(wait)
        waits.put(None)
        coordinator.write_durable(Items(items=[2]))
        assert settled.get(timeout=WAIT_SECONDS_MAX) == 2
    assert settled.empty()


def test_what_cant_be_settled_fails_every_later_write() -> None:
    def settle() -> float | None:
        raise StoreUnavailable("away")

    coordinator = WriteCoordinator[Items, tuple[int, ...]](Handler(gated=False), (), settle=settle)
    assert coordinator.write_durable(Items(items=[1])) == 1
    coordinator._thread.join(WAIT_SECONDS_MAX)
    for act in (coordinator.flush, coordinator.shutdown, lambda: coordinator.write(Items())):
        with pytest.raises(FlushFailed, match="after epoch 1 are not known to be stored: away"):
            act()
