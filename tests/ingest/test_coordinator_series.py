"""The coordinator as a time-series store uses it: ids are given out at a flush, in one snapshot.

The store keeps a dictionary of series, and samples that name series by id, in buckets of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from hypothesis import given
from hypothesis import strategies as st

from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import CoordinatorLimits, Flushed, Reached


@dataclass(frozen=True)
class Stored:
    """What is in storage, at one moment."""

    series: Mapping[int, str] = field(default_factory=dict)
    samples: tuple[tuple[int, int, int], ...] = ()
    """(bucket, series id, value)"""

    def of(self, bucket: int) -> list[tuple[str, int]]:
        return [(self.series[s], value) for b, s, value in self.samples if b == bucket]

    def orphans(self) -> list[tuple[int, int, int]]:
        return [sample for sample in self.samples if sample[1] not in self.series]


class Storage:
    """Applies each batch whole; `history` is what a crash after each of them leaves."""

    def __init__(self) -> None:
        self.history = [Stored()]

    @property
    def now(self) -> Stored:
        return self.history[-1]

    async def apply(self, series: Mapping[int, str], samples: list[tuple[int, int, int]]) -> None:
        now = self.now
        self.history.append(Stored({**now.series, **series}, (*now.samples, *samples)))


@dataclass(kw_only=True)
class Samples:
    """Samples by labels: ids come at the flush."""

    samples: list[tuple[int, str, int]]

    def is_empty(self) -> bool:
        return not self.samples

    def merge(self, other: Self) -> None:
        self.samples += other.samples

    def size_bytes(self) -> int:
        return len(self.samples)


class SamplesHandler:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    async def flush(self, delta: Samples, snapshot: Stored) -> Flushed[Stored]:
        ids = {labels: number for number, labels in snapshot.series.items()}
        new: dict[int, str] = {}
        samples = []
        for bucket, labels, value in delta.samples:
            if labels not in ids:
                ids[labels] = len(ids)
                new[ids[labels]] = labels
            samples.append((bucket, ids[labels], value))
        await self.storage.apply(new, samples)
        return Flushed(snapshot=self.storage.now)


class SampleStore:
    def __init__(self, storage: Storage) -> None:
        self.coordinator: WriteCoordinator[Samples, Stored] = WriteCoordinator(
            SamplesHandler(storage),
            storage.now,
            limits=CoordinatorLimits(flush_interval_seconds=None),
        )
        self.snapshots = self.coordinator.subscribe()

    async def write(self, bucket: int, labels: str, value: int) -> None:
        await self.coordinator.write(Samples(samples=[(bucket, labels, value)]))

    async def flush(self) -> None:
        await self.coordinator.flush(until=Reached.DURABLE)

    def query(self, bucket: int) -> list[tuple[str, int]]:
        return self.snapshots.current.snapshot.of(bucket)


def test_a_flush_is_seen_at_once_by_who_looked_before() -> None:
    async def play() -> None:
        store = SampleStore(Storage())
        assert store.query(1) == []
        await store.write(1, "cpu", 10)
        await store.write(2, "cpu", 10)
        await store.flush()
        assert store.query(1) == store.query(2) == [("cpu", 10)]

    asyncio.run(play())


steps = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.integers(0, 99)),
        st.none(),
    ),
    max_size=40,
)


@given(steps)
def test_no_crash_leaves_an_orphan_and_no_sample_is_lost(script) -> None:
    async def play() -> None:
        storage = Storage()
        store = SampleStore(storage)
        written = []
        for step in script:
            if step is None:
                await store.flush()
            else:
                await store.write(*step)
                written.append(step)
        await store.flush()
        assert not any(stored.orphans() for stored in storage.history)
        now = storage.now
        assert [(b, now.series[s], value) for b, s, value in now.samples] == written
        assert len(set(now.series.values())) == len(now.series)

    asyncio.run(play())
