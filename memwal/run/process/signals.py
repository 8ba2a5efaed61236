"""Handles signals that end a process: the main thread hears each at once, and ends in order."""

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
    """Call `end` on the first ending signal, and raise KeyboardInterrupt on each later one.

    Signals that are ignored, as under nohup, stay ignored. Main thread only.
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

    Python runs handlers in the main thread, but a main thread that waits for a lock only wakes for
    a signal delivered to itself, and Linux delivers it to another thread while the main one has
    something else pending, such as SIGCONT. Call once per process, in the main thread.
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
