"""Signals reach the main thread, whichever thread the kernel gave them to."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

import pytest

from memwal.run.process.signals import wake_main_thread


class Heard(BaseException):
    """The handler ran."""


def hear(number: int, frame: FrameType | None) -> None:
    raise Heard


@pytest.mark.nightly
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_to_another_thread_ends_a_wait(times: int) -> None:
    wake_main_thread()
    before = signal.signal(signal.SIGUSR1, hear)
    waiting = threading.Event()

    def take_one() -> None:
        waiting.wait()
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    try:
        for _ in range(times):
            waiting.clear()
            threading.Thread(target=take_one).start()
            began = time.monotonic()
            with pytest.raises(Heard):
                waiting.set()
                threading.Event().wait(10)
            assert time.monotonic() - began < 9
    finally:
        signal.signal(signal.SIGUSR1, before)
