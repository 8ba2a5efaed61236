"""Rounds inside warm worker processes, and the Workers port over them.

There is a lane for small rounds, and one for large ones. A small round never waits for a large one,
and starts no JVM. Large rounds run in one process, in which Spark starts with the first round that
uses it, and ends with the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memwal.config import ResolvedTable
from memwal.errors import EXIT_FAILED, MemWalError
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.watch.plan import Round
from memwal.jobs.watch.ports import RoundEnd
from memwal.ports import Clock
from memwal.report import JobReport
from memwal.run.engines.launcher import find_obstacle
from memwal.run.engines.pool import SharedEngines, Started
from memwal.run.fanout import start_engine
from memwal.run.metrics.start import start_metrics
from memwal.run.process import logs
from memwal.run.progress import Progress, Silent
from memwal.run.workers import cancel
from memwal.run.workers.pool import Lane, UnitEnd, WorkerLimits, WorkerPool
from memwal.run.workers.process import Post, ignore_signals

_LOG = logging.getLogger("memwal")


class RoundWorker:
    """Runs rounds in this process, on engines that are kept from one round to the next."""

    def __init__(self, options: MaintainOptions) -> None:
        """`options` apply to every round, apart from its own table and jobs."""
        self.spent = False
        self._telemetry = start_metrics(shown=False, warn=_LOG.warning)
        self._has_spark = False
        self._options = options
        self._engines = SharedEngines(self._start_engine)
        self._engines.get("local")  # started first, as it resets any earlier cancellation

    def run(self, unit: tuple[ResolvedTable, Round], post: Post) -> JobReport:
        """Run a round on a table, under one lease; raises what makes the round fail as a whole."""
        table, work = unit

        def begin(step: str) -> None:
            cancel.check()
            if step in work.jobs:
                post.say("doing", step)

        progress = _PostProgress(post)
        self._options = replace(self._options, tables=[table], jobs=work.jobs, steps=begin)
        failed = True
        try:
            options = replace(self._options, name="watch", engines=self._engines)
            done = run_maintain(options, progress)
            failed = done.tables[0].exit_code == EXIT_FAILED
        finally:
            # The session's JVM may have died, and nothing would start another one in this process.
            self.spent = failed and self._has_spark
        return done

    def cancel(self) -> None:
        """Stop before the next commit."""
        self._engines.cancel()

    def close(self) -> None:
        """End the engines."""
        self._engines.__exit__()
        self._telemetry.close()

    def _start_engine(self, name: str) -> Started:
        started = start_engine(name, self._options)
        if name == "spark":
            self._has_spark = True
            ignore_signals()  # Spark has just taken one of them
        return started


class _PostProgress(Silent):
    """The progress of a round: sends only warnings and traces; the rest is in its report."""

    def __init__(self, post: Post) -> None:
        self._post = post

    def warn(self, text: str) -> None:
        """Send a warning."""
        self._post.say("warning", text)

    def trace(self, text: str) -> None:
        """Send a traceback."""
        self._post.say("trace", text)


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
        if work.large and not self._told and self.options.asked_engine == "auto":
            self._told = True
            if obstacle := find_obstacle():
                self.progress.warn(f"{obstacle}: large rounds run in one process")
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
