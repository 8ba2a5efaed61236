"""Workers that are threads of this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, unexpected
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.watch.model import Round
from memwal.jobs.watch.ports import RoundEnd
from memwal.run import cancel
from memwal.run.progress import Progress, Quiet


class ThreadWorkers:
    """The Workers port."""

    def __init__(self, options: MaintainOptions, progress: Progress, *, rounds_max: int) -> None:
        self._options = options
        self._clock = SystemClock()
        self._progress = progress
        self._rounds_max = rounds_max
        self._running = 0
        self._ended: queue.SimpleQueue[RoundEnd] = queue.SimpleQueue()

    def can_take(self, *, large: bool) -> bool:
        """Whether a thread is free."""
        return self._running < self._rounds_max

    def start(self, table: ResolvedTable, work: Round) -> None:
        """Begin a round."""
        self._running += 1
        threading.Thread(target=self._run, args=(table, work), daemon=True).start()

    def wait(self, seconds: float) -> Sequence[RoundEnd]:
        """The rounds that ended."""
        ended = []
        try:
            ended.append(
                self._ended.get(timeout=seconds) if seconds > 0 else self._ended.get_nowait()
            )
            while True:
                ended.append(self._ended.get_nowait())
        except queue.Empty:
            pass
        self._running -= len(ended)
        return ended

    def stop(self, seconds_max: float) -> Sequence[RoundEnd]:
        """Let each finish the commit in hand."""
        cancel.cancel()
        deadline, ended = self._clock.monotonic_seconds() + seconds_max, list[RoundEnd]()
        while self._running and (left := deadline - self._clock.monotonic_seconds()) > 0:
            ended += self.wait(left)
        return ended

    def _run(self, table: ResolvedTable, work: Round) -> None:
        began = self._clock.monotonic_seconds()
        report, failed = None, None
        try:
            options = replace(self._options, tables=[table], jobs=work.jobs)
            (found,) = run_maintain(options, Quiet(self._progress)).tables
            report = found if isinstance(found, MaintainTableReport) else None
        except MemWalError as error:
            failed = error
        except BaseException as error:
            failed = unexpected(error)
        self._ended.put(
            RoundEnd(
                work=work,
                seconds=self._clock.monotonic_seconds() - began,
                report=report,
                error=failed,
            )
        )
