"""Signals that end a process which goes on until it is told to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def end_on_signals(end: Callable[[], None]) -> Iterator[None]:
    """The first signal calls `end`, and each later one raises KeyboardInterrupt: there is a hurry.

    One that is ignored stays so, as under nohup. Main thread only.
    """
    told = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal told
        if told:
            raise KeyboardInterrupt
        told = True
        end()

    heard = [number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, hear) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
