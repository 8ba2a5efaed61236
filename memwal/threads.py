"""Runs work on many things in threads: waiting for a store, and Lance, release the GIL."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from threading import Lock
from typing import TypeVar

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Thing], Result], things: Sequence[Thing], threads_max: int
) -> list[Result]:
    """Return what `work` returns for each thing, in the order of `things`.

    `work` sees the caller's context variables. If any call fails, the error of the earliest thing
    is raised; things that have not begun when a call fails or the run is cancelled are skipped.
    """
    threads = min(threads_max, len(things))
    if threads < 2:
        return [work(thing) for thing in things]
    here = copy_context()
    results: dict[int, Result] = {}
    failed: dict[int, BaseException] = {}
    # Each thread takes the next number: with ten thousand things, a future for each would often
    # cost more than the work itself.
    numbers = iter(range(len(things)))

    def take_turns() -> None:
        for number in numbers:
            try:
                results[number] = here.copy().run(work, things[number])
            except BaseException as error:
                failed[number] = error
                leave_the_rest()

    def leave_the_rest() -> None:
        deque(numbers, maxlen=0)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for running in [pool.submit(take_turns) for _ in range(threads)]:
                running.result()
        finally:
            leave_the_rest()
    if failed:
        raise failed[min(failed)]
    return [results[number] for number in range(len(things))]


class Tally:
    """How many things threads have done together, and of how many bytes; each step is shown."""

    def __init__(self, show: Callable[[int, int], object]) -> None:
        self._show, self._lock = show, Lock()
        self._count = self._bytes = 0

    def add(self, size_bytes: int) -> None:
        """One more thing is done."""
        with self._lock:
            self._count, self._bytes = self._count + 1, self._bytes + size_bytes
            self._show(self._count, self._bytes)


@contextmanager
def in_threads(
    work: Callable[[Thing], Result],
    things: Sequence[Thing],
    threads_max: int,
    *,
    stop: Callable[[], None],
) -> Iterator[list[Future[Result]]]:
    """Start `work` on each thing, for a block that follows the futures.

    `work` sees the caller's context variables. The block's end waits for calls that run and drops
    those that wait; an error that the block raises, such as an interrupt, calls `stop` first.
    """
    pool = ThreadPoolExecutor(threads_max)
    try:
        yield [pool.submit(copy_context().run, work, thing) for thing in things]
    except BaseException:
        stop()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
