"""Runs rounds inside a worker process."""

from __future__ import annotations

import logging
from dataclasses import replace

from memwal.config import ResolvedTable
from memwal.errors import EXIT_FAILED
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.watch.model import Round
from memwal.report import JobReport
from memwal.run.engines.pool import SharedEngines, Started
from memwal.run.fanout import start_engine
from memwal.run.lease import ChainLeases
from memwal.run.metrics.sink import start_metrics
from memwal.run.progress import Silent
from memwal.run.workers import cancel
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
            with ChainLeases("watch", warn=progress.warn) as leases:
                options = replace(self._options, engines=self._engines, leases=leases)
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
