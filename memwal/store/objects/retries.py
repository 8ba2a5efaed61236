"""Retries, by the Clock port and with a total deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception

from memwal.ports import Clock, backoff_seconds

T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.1


def retry(
    call: Callable[[], T],
    passes: Callable[[BaseException], bool],
    clock: Clock,
    *,
    seconds_max: float,
    wait_seconds_max: float,
    attempts_max: int,
) -> T:
    """Call again while what it raises `passes`, and the deadline and the attempts allow it.

    Raises what the last attempt raised. No wait begins that would end after `seconds_max`.
    """
    started = clock.monotonic_seconds()

    def is_last(state: RetryCallState) -> bool:
        passed = clock.monotonic_seconds() - started
        return state.attempt_number >= attempts_max or passed + state.upcoming_sleep > seconds_max

    def choose_wait(state: RetryCallState) -> float:
        return backoff_seconds(
            clock, state.attempt_number, wait_seconds_max, first_seconds=_FIRST_WAIT_SECONDS
        )

    retrying = Retrying(
        retry=retry_if_exception(passes),
        wait=choose_wait,
        stop=is_last,
        sleep=clock.sleep,
        reraise=True,
    )
    return retrying(call)
