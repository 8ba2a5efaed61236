"""The failures that moved the RFC, shown on the pattern that has them and on the coordinator.

The store keeps time series: a dictionary of series, and samples that name series by id, in
buckets of time. `OldStore` is the pattern that the RFC replaces: for each bucket a delta behind a
mutex, a mutex for its flush and a snapshot; buckets in caches; ids given out as samples come in.
Each test plays one script on both.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.ingest.coordinator.core import WriteCoordinator
from memwal.ingest.coordinator.ports import CoordinatorLimits, Flushed, Reached
from memwal.testing.ingest import settle

BUCKETS_CACHED = 1


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
        self.slow: asyncio.Event | None = None

    @property
    def now(self) -> Stored:
        return self.history[-1]

    async def apply(self, series: Mapping[int, str], samples: list[tuple[int, int, int]]) -> None:
        if self.slow is not None:
            await self.slow.wait()
        now = self.now
        self.history.append(Stored({**now.series, **series}, (*now.samples, *samples)))


class Store(Protocol):
    async def write(self, bucket: int, labels: str, value: int) -> None: ...
    async def flush(self) -> None: ...
    def query(self, bucket: int) -> list[tuple[str, int]]: ...


# ---- the old pattern


class OldBucket:
    """A delta, a flush at a time, and a snapshot of its own."""

    def __init__(self, storage: Storage, bucket: int) -> None:
        self.storage = storage
        self.bucket = bucket
        self.new_series: dict[int, str] = {}
        self.samples: list[tuple[int, int, int]] = []
        self.flushing = asyncio.Lock()
        self.snapshot = storage.now

    async def flush(self) -> None:
        if self.flushing.locked():
            return  # somebody else is at it
        async with self.flushing:
            series, self.new_series = self.new_series, {}
            samples, self.samples = self.samples, []
            if series or samples:
                await self.storage.apply(series, samples)
                self.snapshot = self.storage.now


class OldStore:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.ids: dict[str, int] = {}
        self.ingest_cache: OrderedDict[int, OldBucket] = OrderedDict()
        self.query_cache: dict[int, OldBucket] = {}

    async def write(self, bucket: int, labels: str, value: int) -> None:
        if bucket not in self.ingest_cache:
            self.ingest_cache[bucket] = OldBucket(self.storage, bucket)
        self.ingest_cache.move_to_end(bucket)
        while len(self.ingest_cache) > BUCKETS_CACHED:
            self.ingest_cache.popitem(last=False)
        into = self.ingest_cache[bucket]
        if labels not in self.ids:
            self.ids[labels] = len(self.ids)
            into.new_series[self.ids[labels]] = labels
        into.samples.append((bucket, self.ids[labels], value))

    async def flush(self) -> None:
        for bucket in list(self.ingest_cache.values()):
            await bucket.flush()

    def query(self, bucket: int) -> list[tuple[str, int]]:
        if bucket not in self.query_cache:
            self.query_cache[bucket] = OldBucket(self.storage, bucket)
        return self.query_cache[bucket].snapshot.of(bucket)


class RoomyOldStore(OldStore):
    """Without the cache's evictions, so that only the ids go wrong."""

    async def write(self, bucket: int, labels: str, value: int) -> None:
        kept = OrderedDict(self.ingest_cache)
        await super().write(bucket, labels, value)
        self.ingest_cache = OrderedDict({**self.ingest_cache, **kept})


# ---- the coordinator


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


class NewStore:
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


# ---- issue 82


async def lost_by_eviction(store: Store, storage: Storage) -> bool:
    """Whether a write to another bucket costs the first bucket its unflushed sample."""
    await store.write(1, "cpu", 10)
    await store.write(2, "cpu", 20)
    await store.flush()
    samples = {(b, value) for b, _, value in storage.now.samples}
    return samples != {(1, 10), (2, 20)}


async def stale_after_flush(store: Store, storage: Storage) -> bool:
    """Whether a reader who looked before still sees the old state after the flush."""
    store.query(1)
    await store.write(1, "cpu", 10)
    await store.flush()
    return store.query(1) != [("cpu", 10)]


async def buckets_disagree(store: Store, storage: Storage) -> bool:
    """Whether two buckets, flushed together, are seen at different moments."""
    store.query(1)
    await store.write(1, "cpu", 10)
    await store.write(2, "cpu", 10)
    await store.flush()
    return len(store.query(1)) != len(store.query(2))


# ---- issue 95


async def orphaned_by_a_crash(store: Store, storage: Storage) -> bool:
    """Whether any crash leaves samples whose series is in no dictionary."""
    await store.write(1, "cpu", 10)
    await store.write(2, "cpu", 20)
    if isinstance(store, OldStore):
        await store.ingest_cache[2].flush()  # bucket 2 fills up first
    await store.flush()
    return any(stored.orphans() for stored in storage.history)


# ---- in general


async def flush_left_a_write_out(store: Store, storage: Storage) -> bool:
    """Whether a flush that comes while another runs returns without its write."""
    storage.slow = asyncio.Event()
    await store.write(1, "cpu", 10)
    first = asyncio.ensure_future(store.flush())
    await settle()
    await store.write(1, "cpu", 20)
    second = asyncio.ensure_future(store.flush())
    await settle()
    returned_early = second.done()
    storage.slow.set()
    await asyncio.gather(first, second)
    return returned_early or len(storage.now.samples) < 2


FAILURES = [
    (lost_by_eviction, OldStore),
    (stale_after_flush, OldStore),
    (buckets_disagree, RoomyOldStore),
    (orphaned_by_a_crash, RoomyOldStore),
    (flush_left_a_write_out, OldStore),
]


@pytest.mark.parametrize(("failure", "old"), FAILURES, ids=lambda f: f.__name__)
def test_the_old_pattern_fails_and_the_coordinator_does_not(failure, old) -> None:
    async def fails(make) -> bool:
        storage = Storage()
        return await failure(make(storage), storage)

    assert asyncio.run(fails(old)), "the script no longer shows the failure"
    assert not asyncio.run(fails(NewStore))


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
        store = NewStore(storage)
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
