"""How long to wait before another attempt.

The wait is random, up to a bound that doubles with each attempt: contenders spread out instead of
meeting again.
"""

from __future__ import annotations

from memwal.ports import Clock


def backoff_seconds(
    clock: Clock, attempt: int, seconds_max: float, *, first_seconds: float = 0.05
) -> float:
    """The wait after the given attempt, counted from 1."""
    return clock.random() * min(seconds_max, first_seconds * 2.0 ** min(attempt, 30))


def back_off(clock: Clock, attempt: int, seconds_max: float, deadline_seconds: float) -> bool:
    """Wait; False, at once, where the wait would pass the deadline by the monotonic clock."""
    seconds = backoff_seconds(clock, attempt, seconds_max)
    if clock.monotonic_seconds() + seconds > deadline_seconds:
        return False
    clock.sleep(seconds)
    return True
