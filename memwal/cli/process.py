"""A command's process: its standard streams, which may be closed, full, or read only in part, and
its start.

Messages along the way must not end a run, so trouble with stderr is ignored. If a result can't go
to stdout, stderr says so, unless the reader closed it because it has all it wants (`| head`).

The garbage collector pauses until a command has imported what it needs. It runs after every 700 new
objects, and the start makes 300,000, nearly all of them modules and their parts, which are never
freed. Scanning them takes a fifth of the time, and again when the interpreter ends.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, TextIO, cast

_OBJECTS_AT_START = 1_000_000
_USUAL = gc.get_threshold()


@cache  # counting what is frozen walks through all of it
def pause_collecting() -> None:
    """Pause the collector; has an effect once in a process."""
    if not gc.get_freeze_count():
        gc.set_threshold(_OBJECTS_AT_START)
        atexit.register(gc.freeze)


@cache
def resume_collecting() -> None:
    """Collect as usual again, except for the objects that exist now; all imports are done."""
    if not gc.get_freeze_count():
        gc.freeze()
        gc.set_threshold(*_USUAL)


def prepare() -> None:
    """Make closed streams harmless; called once in a process, before anything opens a file.

    The number of a closed stream would go to the next file that is opened, which might hold data.
    `sys.stdout` stays None if it was closed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    if not isinstance(sys.stderr, _Unfailing):
        sys.stderr = cast("TextIO", _Unfailing(sys.stderr))


def deliver(write: Callable[[], object]) -> str | None:
    """Write a result to stdout with `write`; return what prevented that, if anything.

    A reader that closes its end early is not a problem.
    """
    if sys.stdout is None:
        return "it is closed"
    try:
        write()
        sys.stdout.flush()
    except OSError as error:
        return give_up(error)
    return None


def is_reader_gone() -> bool:
    """Whether stdout is a pipe that nobody reads any longer."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def is_one_place() -> bool:
    """Whether stdout and stderr go to the same terminal, pipe or file."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False


def give_up(error: OSError) -> str | None:
    """Write nothing more to stdout, and return why, as `deliver` does.

    Otherwise what is left in its buffer would fail again when the process ends.
    """
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return None if isinstance(error, BrokenPipeError) else error.strerror or str(error)


class _Unfailing:
    """Wraps a text stream, or none, so that writing never fails."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream if stream is not None else open(os.devnull, "w")  # noqa: PTH123, SIM115

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
