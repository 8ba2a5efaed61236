"""The local engine: units side by side in threads of this process. Lance leaves the GIL alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from jobs import _cancel

Unit = TypeVar("Unit")
Result = TypeVar("Result")


class LocalEngine:
    """The Engine port in this process."""

    name = "local"

    def __init__(self, *, workers_max: int | None = None) -> None:
        self._workers_max = workers_max or max(2, os.cpu_count() or 2)

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        on_done: Callable[[int], None],
    ) -> Sequence[Result]:
        """Run `work` on each unit. An interrupt stops running units before their next commit."""
        _cancel.begin()
        pool = ThreadPoolExecutor(min(self._workers_max, len(units)) or 1)
        try:
            futures = [pool.submit(work, unit) for unit in units]
            for done, _ in enumerate(as_completed(futures), start=1):
                on_done(done)
            return [future.result() for future in futures]
        except BaseException:
            _cancel.cancel()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
