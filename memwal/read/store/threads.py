"""Work on many tables of a read in threads: Lance plans each scan for itself, on one core."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from memwal.read.store.sources import Batches, Part, Rows

S = TypeVar("S")
T = TypeVar("T")

_REMOTE_THREADS = 16
_TURNS = 4
_TOGETHER_MAX = 16
# What is read before its turn: so many parts, none of them larger.
_AHEAD_PARTS_MAX = 16
_AHEAD_BYTES_MAX = 8 * 1024 * 1024
# A pool of each size that nobody uses: to start one takes longer than to look into a small table.
_IDLE: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_IDLE.clear)  # a child has none of the threads


def choose_threads(uri: str) -> int:
    """How many threads to read with: local files keep cores busy, a remote store lets them wait.

    More threads than cores would wait for Python's lock, in turn, for most of the time.
    """
    return _REMOTE_THREADS if "://" in uri else min(_REMOTE_THREADS, os.cpu_count() or 1)


def map_parts(work: Callable[[Part], T], parts: Sequence[Part], threads: int) -> dict[int, T]:
    """Apply `work` to each part; returns the results by the part's identity."""
    return {id(part): result for part, result in map_in_order(work, parts, threads)}


def map_in_order(work: Callable[[S], T], items: Sequence[S], threads: int) -> Iterator[tuple[S, T]]:
    """Apply `work` to each item, in threads; stops early when the caller does."""
    # To hand over work costs about as much as to open a small table, so several go together.
    step = min(_TOGETHER_MAX, max(1, len(items) // (_TURNS * threads)))
    groups = [items[start : start + step] for start in range(0, len(items), step)]
    jobs: list[Future[list[tuple[S, T]]]] = []
    with _borrow_pool(threads, jobs) as pool:
        jobs += [pool.submit(lambda some: [(one, work(one)) for one in some], g) for g in groups]
        for job in jobs:
            yield from job.result()


@contextmanager
def _borrow_pool(threads: int, jobs: Collection[Future[Any]]) -> Iterator[ThreadPoolExecutor]:
    """A pool, to which `jobs` are handed; at the end those that have not begun are cancelled."""
    pool = _IDLE.pop(threads, None) or ThreadPoolExecutor(threads)
    try:
        yield pool
    finally:
        for job in jobs:
            job.cancel()
        wait(jobs)
        if _IDLE.setdefault(threads, pool) is not pool:
            pool.shutdown()


def scan_ahead(parts: Sequence[Part], rows: Rows, threads: int) -> Iterator[tuple[Part, Batches]]:
    """Each part with its rows, in order. Small ones are read before their turn."""

    def read(part: Part) -> list[pa.RecordBatch] | None:
        size = part.in_memory_bytes
        return list(part.scan(rows)) if size and size <= _AHEAD_BYTES_MAX else None

    for start in range(0, len(parts), _AHEAD_PARTS_MAX):
        some = parts[start : start + _AHEAD_PARTS_MAX]
        for part, found in map_in_order(read, some, threads):
            yield part, part.scan(rows) if found is None else iter(found)
