"""Work on many things in threads, where a store is waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(work: Callable[[T], R], things: Sequence[T], threads_max: int) -> list[R]:
    """What `work` makes of each, in their order.

    Raises what it raised for the first of them that failed; what has not begun by then is left.
    """
    if min(threads_max, len(things)) < 2:
        return [work(thing) for thing in things]
    pool = ThreadPoolExecutor(min(threads_max, len(things)))
    try:
        return list(pool.map(work, things))
    finally:
        pool.shutdown(cancel_futures=True)
