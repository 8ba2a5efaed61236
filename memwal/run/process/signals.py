"""Signals that end a process: heard at once, and where it goes on until it is told to end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
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


@cache
def wake_main_thread() -> None:
    """Let the main thread hear each signal at once, even one that another thread was given.

    Python runs handlers in the main thread, and one that waits for a lock is woken by a signal of
    its own only: Linux gives one to any other thread where the main one has something else pending,
    such as SIGCONT. Once a process; main thread only.
    """
    hears, tells = socket.socketpair()
    tells.setblocking(False)
    signal.signal(signal.SIGURG, lambda number, frame: None)  # so that it interrupts a wait
    signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)

    def pass_on() -> None:
        with hears, tells:
            while number := hears.recv(1):
                if number[0] != signal.SIGURG:
                    signal.pthread_kill(main, signal.SIGURG)

    main = threading.get_ident()
    threading.Thread(target=pass_on, daemon=True, name="memwal-signals").start()
