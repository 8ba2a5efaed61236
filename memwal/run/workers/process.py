"""What runs inside a worker process of `memwal.run.workers.pool`: units, one after the other.

The process obeys only its parent: a Ctrl-C in the terminal, or a service manager that signals the
whole group, must not end it in the middle of a commit. When the parent is gone, its end of the pipe
is closed; the current unit then stops before its next commit, and the process ends.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from memwal.errors import MemWalError, make_sendable, unexpected
from memwal.run.process import pandas_skip, process_memory

ORPHANED_SECONDS_MAX = 60.0
"""How long a unit may still take to reach its next commit once the parent is gone."""


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the parent's log; at the level `doing`, what the unit does from now on."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a unit: its result or its error, and the process's memory afterwards.

    A process that is `spent` should not get another unit.
    """

    result: object
    resident_bytes: int
    spent: bool


class Worker(Protocol):
    """Does units in a worker process; the same object serves all units of the process."""

    spent: bool
    """Whether the process should be replaced after its unit."""

    def run(self, unit: Any, post: Post) -> object:
        """Do a unit. An error it raises becomes the unit's result, and the process goes on."""
        ...

    def cancel(self) -> None:
        """Make the current unit stop before its next commit. Called in another thread."""
        ...

    def close(self) -> None:
        """Clean up; no more units will come."""
        ...


MakeWorker = Callable[[], Worker]
"""Makes the worker inside its process, where it arrives by pickle; imports what units need."""


class Post(logging.Handler):
    """Sends messages to the parent, from any thread; drops them once the parent is gone."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.WARNING)
        self._pipe = pipe
        self._turn = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message. Raises what pickling it raises."""
        data = ForkingPickler.dumps(message)  # unlocked: pickling may log, and so come back here
        with self._turn, suppress(OSError):
            self._pipe.send_bytes(data)

    def say(self, level: str, text: str) -> None:
        """A line for the parent's log."""
        self.send(Said(level, text))

    def emit(self, record: logging.LogRecord) -> None:
        """Send what a library logs as a warning."""
        try:
            self.say("warning", record.getMessage())
        except Exception:  # the message does not match its arguments
            self.handleError(record)


def serve(descriptor: int) -> None:
    """Do the units that come through the inherited socket, until the parent ends it."""
    ignore_signals()
    os.set_inheritable(descriptor, False)
    process_memory.limit_arenas()
    pandas_skip.start()
    pipe = Connection(descriptor)
    post = Post(pipe)
    logging.getLogger().addHandler(post)
    logging.captureWarnings(True)
    with suppress(EOFError):
        worker: Worker = pipe.recv()()
        units: SimpleQueue[tuple[object] | None] = SimpleQueue()
        threading.Thread(target=_listen, args=(pipe, units, worker), daemon=True).start()
        while (found := units.get()) is not None:
            _answer(post, worker, _do(worker, found[0], post))
        worker.close()


def ignore_signals() -> None:
    """Ignore the signals that end a process: the parent handles them. Main thread only."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _listen(pipe: Connection, units: SimpleQueue[tuple[object] | None], worker: Worker) -> None:
    """Queue what the parent sends: units, and None when no more will come."""
    with suppress(EOFError, OSError):
        while True:
            message = pipe.recv()
            units.put(message)
            if message is None:
                _cancel(worker)
    units.put(None)
    _cancel(worker)
    threading.Event().wait(ORPHANED_SECONDS_MAX)
    os._exit(1)


def _cancel(worker: Worker) -> None:
    with suppress(Exception):  # the engine may be gone already
        worker.cancel()


def _do(worker: Worker, unit: object, post: Post) -> object:
    try:
        return worker.run(unit, post)
    except MemWalError as error:
        return make_sendable(error)
    except BaseException as error:  # a Rust panic in Lance is not an Exception
        post.say("trace", traceback.format_exc())
        return unexpected(error)


def _answer(post: Post, worker: Worker, result: object) -> None:
    try:
        post.send(Done(result, resident_bytes(), worker.spent))
    except Exception as error:  # whatever pickling raises
        post.send(Done(unexpected(error), resident_bytes(), worker.spent))


def resident_bytes() -> int:
    """This process's resident memory; its peak where the host has no `/proc`."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
