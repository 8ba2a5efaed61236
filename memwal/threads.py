"""Work on many things in threads: waiting for a store, and Lance, leave the GIL alone."""

from __future__ import annotations

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
    if min(threads_max, len(things)) < 2:
        return [work(thing) for thing in things]
    pool = ThreadPoolExecutor(min(threads_max, len(things)))
    try:
        here = [copy_context() for _ in things]
        return list(pool.map(lambda context, thing: context.run(work, thing), here, things))
    finally:
        pool.shutdown(cancel_futures=True)
