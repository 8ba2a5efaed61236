"""The local engine, and engines that concurrent runs of one process share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from memwal.ports import Engine
from memwal.run.units import share_memory
from memwal.run.workers import cancel
from memwal.threads import in_threads

Unit = TypeVar("Unit")
Result = TypeVar("Result")


class LocalEngine:
    """The Engine port in this process."""

    name = "local"

    def __init__(self, *, workers_max: int | None = None) -> None:
        self._workers_max = workers_max or max(2, os.cpu_count() or 2)
        # Concurrent runs have thread pools of their own; this bounds all their units together.
        self._slots = threading.BoundedSemaphore(self._workers_max)
        cancel.begin()

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        on_done: Callable[[int], None],
        lost: object = None,
    ) -> Sequence[Result]:
        """Run `work` on each unit. An interrupt stops running units before their next commit.

        An error of a unit is raised once all units have ended, and does not affect later runs.
        `lost` is unused: a unit that kills its process kills this one.
        """
        units, tasks = share_memory(units, self._workers_max)
        with in_threads(partial(self._one, work), units, tasks, stop=cancel.cancel) as futures:
            for done, _ in enumerate(as_completed(futures), start=1):
                on_done(done)
        return [future.result() for future in futures]

    def cancel(self) -> None:
        """Stop running units before their next commit, and don't start those that wait."""
        cancel.cancel()

    def _one(self, work: Callable[[Unit], Result], unit: Unit) -> Result:
        with self._slots:
            cancel.check()
            return work(unit)


Started = tuple[Engine, Callable[[], None]]
"""An engine, and the function that stops it."""


class SharedEngines(AbstractContextManager["SharedEngines"]):
    """Engines that several runs share; each is started once. Use as a context manager."""

    def __init__(self, start: Callable[[str], Started]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._started: dict[str, Started] = {}
        cancel.begin()

    def get(self, name: str) -> Engine:
        """The engine of that name, started on first use. Raises StandDown when cancelled."""
        with self._lock:
            cancel.check()
            if name not in self._started:
                self._started[name] = self._start(name)
            return self._started[name][0]

    def cancel(self) -> None:
        """Make every unit stop before its next commit, and start no more."""
        cancel.cancel()
        with self._lock:
            engines = [engine for engine, _ in self._started.values()]
        for engine in engines:
            engine.cancel()

    def __exit__(self, *error: object) -> None:
        for _, stop in self._started.values():
            stop()
