"""How long to wait before another attempt.

The wait is random, up to a bound that doubles with each attempt, so that contenders spread out
instead of colliding again.
"""

from __future__ import annotations

from memwal.ports import Clock


def backoff_seconds(
    clock: Clock, attempt: int, seconds_max: float, *, first_seconds: float = 0.05
) -> float:
    """Return how many seconds to wait after the given attempt; attempts are counted from 1."""
    return clock.random() * min(seconds_max, first_seconds * 2.0 ** min(attempt, 30))


def back_off(clock: Clock, attempt: int, seconds_max: float, deadline_seconds: float) -> bool:
    """Wait, and return True; False at once if the wait would pass the deadline.

    The deadline is by the monotonic clock.
    """
    seconds = backoff_seconds(clock, attempt, seconds_max)
    if clock.monotonic_seconds() + seconds > deadline_seconds:
        return False
    clock.sleep(seconds)
    return True
