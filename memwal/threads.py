"""Work on many things in threads: waiting for a store, and Lance, leave the GIL alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

Thing = TypeVar("Thing")
Result = TypeVar("Result")


def side_by_side(
    work: Callable[[Thing], Result], things: Sequence[Thing], threads_max: int
) -> list[Result]:
    """What `work` returns for each thing, in their order. Context variables are as they are here.

    Raises what the first of them raised, in their order; those that have not begun by then, or when
    the run is cancelled, are left.
    """
    threads = min(threads_max, len(things))
    if threads < 2:
        return [work(thing) for thing in things]
    here = copy_context()
    results: dict[int, Result] = {}
    failed: dict[int, BaseException] = {}
    # Threads take the next number each: of ten thousand things, a future each would cost more than
    # many of them do.
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
