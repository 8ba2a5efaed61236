"""The Workers port over warm processes: a lane for small rounds, and one for large ones.

A small round never waits for a large one, and starts no JVM. Large rounds run in one process, in
which Spark starts with the first round that uses it, and ends with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.maintain.job import MaintainOptions
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.watch.model import Round
from memwal.jobs.watch.ports import RoundEnd
from memwal.jobs.watch.unit import RoundWorker
from memwal.ports import Clock
from memwal.report import JobReport
from memwal.run.engines.pool import has_spark
from memwal.run.process import logs
from memwal.run.progress import Progress
from memwal.run.workers.pool import Lane, UnitEnd, WorkerLimits, WorkerPool

_SMALL, _LARGE = "small", "large"


@dataclass(kw_only=True)
class ProcessWorkers:
    """The Workers port over worker processes. `options` apply to every round."""

    options: MaintainOptions
    progress: Progress
    clock: Clock
    workers_max: int
    limits: WorkerLimits
    on_replaced: Callable[[str], None] = lambda reason: None
    _rounds: dict[Hashable, Round] = field(default_factory=dict)
    _told: bool = False

    def __post_init__(self) -> None:
        small = replace(self.options, engine="local")
        lanes = {
            _SMALL: Lane(make=partial(RoundWorker, small), workers_max=self.workers_max),
            _LARGE: Lane(make=partial(RoundWorker, self.options), workers_max=1),
        }
        self.pool = WorkerPool(
            lanes=lanes,
            clock=self.clock,
            limits=self.limits,
            say=self._say,
            on_replaced=self.on_replaced,
        )
        if self.options.acts:
            self.pool.warm(_SMALL)  # while tables are looked at for the first time

    def can_take(self, *, large: bool) -> bool:
        """Whether a round would start at once."""
        return self.pool.can_take(_LARGE if large else _SMALL)

    def start(self, table: ResolvedTable, work: Round) -> None:
        """Begin a round."""
        if work.large and not (self._told or has_spark() or self.options.asked_engine != "auto"):
            self._told = True
            self.progress.warn("pyspark is not installed: large rounds run in one process")
        self._rounds[work.table] = work
        self.pool.start(_LARGE if work.large else _SMALL, work.table, (table, work))

    def wait(self, seconds: float) -> Sequence[RoundEnd]:
        """The rounds that ended."""
        return [self._read(end) for end in self.pool.wait(seconds)]

    def stop(self, seconds_max: float) -> Sequence[RoundEnd]:
        """Let each worker finish its current commit, and end the processes (see the port)."""
        return [self._read(end) for end in self.pool.stop(seconds_max)]

    def _read(self, end: UnitEnd) -> RoundEnd:
        work, result = self._rounds.pop(end.key), end.result
        if isinstance(result, JobReport):
            (report,) = result.tables
            assert isinstance(report, MaintainTableReport)
            return RoundEnd(work=work, seconds=end.seconds, report=report, requests=result.requests)
        error = result if isinstance(result, MemWalError) else MemWalError(f"no report: {result!r}")
        return RoundEnd(work=work, seconds=end.seconds, error=error)

    def _say(self, key: Hashable, level: str, text: str) -> None:
        table = None if key is None else str(key)
        with logs.about(table=table):
            if level == "trace":
                self.progress.trace(text)
            else:
                self.progress.warn(text if table is None else f"{table}: {text}")
