"""What runs inside a worker process of `memwal.run.workers.pool`: units, one after the other.

The process obeys its parent alone: a Ctrl-C in the terminal, or a service manager that signals the
whole group, must not end a commit in the middle. When the parent is gone, its end of the pipe is
closed: the unit in hand ends before its next commit, and then the process.
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
    """A line for the parent's log; with the level `doing`, what the unit does from now on."""

    level: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A unit has ended: its result or its error, and the memory that the process has now.

    A process that is `spent` should not get another one.
    """

    result: object
    resident_bytes: int
    spent: bool


class Worker(Protocol):
    """Does units in a worker process, which keeps it from one unit to the next."""

    spent: bool
    """Whether the process should be replaced after its unit."""

    def run(self, unit: Any, post: Post) -> object:
        """Do a unit. What it raises is its end, and the process goes on."""
        ...

    def cancel(self) -> None:
        """Make the unit in hand stop before its next commit. Called in another thread."""
        ...

    def close(self) -> None:
        """No unit will come any more."""
        ...


MakeWorker = Callable[[], Worker]
"""Makes the worker, in its process; travels there by pickle. Imports what units need."""


class Post(logging.Handler):
    """Sends things to the parent, from any thread. Nobody listens once the parent is gone."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__(logging.WARNING)
        self._pipe = pipe
        self._turn = threading.Lock()

    def send(self, message: object) -> None:
        """Send it. Raises what pickling it does."""
        data = ForkingPickler.dumps(message)  # which may log, and so come back here
        with self._turn, suppress(OSError):
            self._pipe.send_bytes(data)

    def say(self, level: str, text: str) -> None:
        """A line for the parent's log."""
        self.send(Said(level, text))

    def emit(self, record: logging.LogRecord) -> None:
        """What a library logs."""
        try:
            self.say("warning", record.getMessage())
        except Exception:  # of a message that does not go with its arguments
            self.handleError(record)


def serve(descriptor: int) -> None:
    """Do the units that come through the inherited socket, until the parent wants no more."""
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
    """Leave those that end a process to the parent. For the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _listen(pipe: Connection, units: SimpleQueue[tuple[object] | None], worker: Worker) -> None:
    """Take what the parent sends: units, and None when it wants no more."""
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
    with suppress(Exception):  # of an engine that is gone already
        worker.cancel()


def _do(worker: Worker, unit: object, post: Post) -> object:
    try:
        return worker.run(unit, post)
    except MemWalError as error:
        return make_sendable(error)
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        post.say("trace", traceback.format_exc())
        return unexpected(error)


def _answer(post: Post, worker: Worker, result: object) -> None:
    try:
        post.send(Done(result, resident_bytes(), worker.spent))
    except Exception as error:  # whatever pickling raises
        post.send(Done(unexpected(error), resident_bytes(), worker.spent))


def resident_bytes() -> int:
    """The memory of this process; where the host does not tell, the most that it ever had."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
