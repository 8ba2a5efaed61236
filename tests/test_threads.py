"""Work side by side: results in order, the first error in order, and context variables."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from memwal.threads import Tally, side_by_side

HERE: ContextVar[str] = ContextVar("HERE", default="nowhere")


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_results_are_in_the_order_of_the_things(threads: int) -> None:
    assert side_by_side(lambda n: n * n, range(1000), threads) == [n * n for n in range(1000)]
    assert side_by_side(str, [], threads) == []


def test_the_first_error_in_order_is_raised_and_the_rest_is_left() -> None:
    second_failed = threading.Event()
    done: list[int] = []

    def work(number: int) -> None:
        if number == 0:
            assert second_failed.wait(10)
            raise ValueError("first")
        if number == 1:
            second_failed.set()
            raise ValueError("second")
        done.append(number)

    with pytest.raises(ValueError, match="first"):
        side_by_side(work, range(10_000), 2)
    assert len(done) < 9_998


def test_each_thing_sees_the_callers_context_and_not_the_one_before_it() -> None:
    def work(number: int) -> str:
        seen = HERE.get()
        HERE.set(f"thing {number}")
        return seen

    token = HERE.set("caller")
    try:
        assert side_by_side(work, range(50), 3) == ["caller"] * 50
    finally:
        HERE.reset(token)


def test_a_run_that_is_cancelled_leaves_what_has_not_begun() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(1000), 4)
    assert len(begun) <= 4


def test_what_threads_have_done_is_counted_together() -> None:
    shown: list[tuple[int, int]] = []
    tally = Tally(lambda count, size: shown.append((count, size)))
    side_by_side(tally.add, [3] * 100, 4)
    assert shown == [(n, 3 * n) for n in range(1, 101)]
