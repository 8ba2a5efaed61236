"""Looks in threads of this process: waiting for a store leaves the GIL alone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from memwal.config import ResolvedTable
from memwal.errors import MemWalError, unexpected
from memwal.jobs.watch.ports import LookEnd, Looks


class ThreadLookouts:
    """The Lookouts port: a thread a look. It ends with the process where a store never answers."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._ended: queue.SimpleQueue[LookEnd] = queue.SimpleQueue()

    def start(self, table: ResolvedTable) -> None:
        """Begin a look; returns at once."""
        thread = threading.Thread(target=self._look, args=(table,), daemon=True, name="memwal-look")
        try:
            thread.start()
        except RuntimeError as error:  # no more threads are to be had
            self._ended.put(LookEnd(table=table, error=unexpected(error)))

    def collect(self) -> Sequence[LookEnd]:
        """The looks that ended since; waits for none."""
        return [self._ended.get() for _ in range(self._ended.qsize())]

    def forget(self, table: str) -> None:
        """The table is not watched any more, or is another one now."""
        self._looks.forget(table)

    def _look(self, table: ResolvedTable) -> None:
        try:
            end = LookEnd(table=table, look=self._looks.look(table))
        except MemWalError as error:
            end = LookEnd(table=table, error=error)
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            end = LookEnd(table=table, error=unexpected(error))
        self._ended.put(end)
