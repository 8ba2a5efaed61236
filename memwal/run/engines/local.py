"""The local engine: runs units in threads of this process, since Lance releases the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import TypeVar

from memwal.run.units import share_memory
from memwal.run.workers import cancel

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
        pool = ThreadPoolExecutor(tasks)
        try:
            here = [copy_context() for _ in units]
            futures = [
                pool.submit(context.run, self._one, work, unit)
                for context, unit in zip(here, units, strict=True)
            ]
            for done, _ in enumerate(as_completed(futures), start=1):
                on_done(done)
        except BaseException:  # an interrupt; what a unit raises is in its future
            cancel.cancel()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return [future.result() for future in futures]

    def cancel(self) -> None:
        """Stop running units before their next commit, and don't start those that wait."""
        cancel.cancel()

    def _one(self, work: Callable[[Unit], Result], unit: Unit) -> Result:
        with self._slots:
            cancel.check()
            return work(unit)
