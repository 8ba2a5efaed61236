from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from memwal.errors import StoreUnavailable
from memwal.ingest.coordinator.blocking import BlockingCoordinator
from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import Closed, CoordinatorLimits, Flushed, FlushFailed, State
from memwal.testing.ingest import GatedHandler, ListDelta


def make(handler: GatedHandler, **limits: int) -> BlockingCoordinator[ListDelta, tuple[int, ...]]:
    return BlockingCoordinator(
        lambda: WriteCoordinator(handler, (), limits=CoordinatorLimits(**limits))
    )


def test_threads_write_side_by_side() -> None:
    handler = GatedHandler(gated=False, durable_apart=False)
    with make(handler, queue_depth_max=4, pending_bytes_max=5) as coordinator:
        with ThreadPoolExecutor(8) as pool:
            epochs = list(
                pool.map(lambda n: coordinator.write_durable(ListDelta(items=[n])), range(200))
            )
        assert sorted(epochs) == list(range(1, 201))
        assert coordinator.durable_epoch == 200
        assert coordinator.snapshot.epoch == 200
    assert sorted(handler.stored) == list(range(200))
    # The epochs tell the order in which things were written.
    order = [n for _, n in sorted(zip(epochs, range(200), strict=True))]
    assert handler.stored == order


def test_shutdown_flushes_and_ends() -> None:
    handler = GatedHandler(gated=False, durable_apart=False)
    coordinator = make(handler)
    coordinator.write(ListDelta(items=[1]))
    coordinator.shutdown()
    coordinator.shutdown()
    assert handler.stored == [1]
    with pytest.raises(Closed):
        coordinator.write(ListDelta(items=[2]))


def test_a_follower_is_told_to_the_end() -> None:
    told: list[tuple[int, tuple[int, ...]]] = []
    with make(GatedHandler(gated=False, durable_apart=False)) as coordinator:
        coordinator.follow(lambda published: told.append((published.epoch, published.snapshot)))
        for n in range(20):
            coordinator.write(ListDelta(items=[n]))
    assert told[-1] == (20, tuple(range(20)))
    epochs = [epoch for epoch, _ in told]
    assert epochs == sorted(set(epochs))


def test_what_a_follower_raises_is_raised_at_the_end() -> None:
    def told(published: object) -> None:
        raise KeyError("told")

    with (
        pytest.raises(KeyError, match="told"),
        make(GatedHandler(gated=False, durable_apart=False)) as coordinator,
    ):
        coordinator.follow(told)
        coordinator.write_durable(ListDelta(items=[1]))


def test_an_error_in_the_block_abandons_what_is_pending() -> None:
    handler = GatedHandler()
    with pytest.raises(KeyError), make(handler) as coordinator:
        coordinator.write(ListDelta(items=[1]))
        raise KeyError
    assert handler.stored == []


class Failing:
    async def flush(self, delta: ListDelta, snapshot: int) -> Flushed[int]:
        raise StoreUnavailable("no answer")


def test_a_failure_is_raised_where_it_is_waited_for() -> None:
    coordinator = BlockingCoordinator(lambda: WriteCoordinator(Failing(), 0))
    coordinator.write(ListDelta(items=[1]))
    with pytest.raises(FlushFailed, match="no answer"):
        coordinator.flush()
    assert coordinator.state is State.FAILED
    with pytest.raises(FlushFailed):
        coordinator.shutdown()


def test_what_making_it_raises_is_raised() -> None:
    def broken() -> WriteCoordinator[ListDelta, int]:
        raise StoreUnavailable("no table")

    with pytest.raises(StoreUnavailable, match="no table"):
        BlockingCoordinator(broken)
