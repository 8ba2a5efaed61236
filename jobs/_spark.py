"""The Spark engine: units fan out over executors. The only importer of pyspark."""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from memwal.errors import Refused

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_POLL_SECONDS = 0.5
# A task that dies with its worker is tried again: safe, since a unit looks at progress first.
_LOCAL_TASK_FAILURES_MAX = 3
# Spark's launcher logs before it has read any setting; this file keeps its start quiet.
_LOG4J = Path(__file__).with_name("log4j2.properties")
_LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_LOG4J}"
    ),
}


class SparkEngine:
    """The Engine port over one Spark application, which serves every table of a run."""

    name = "spark"

    def __init__(self, *, master: str | None = None, app_name: str = "memwal") -> None:
        """Start (or, under spark-submit, join) the session.

        Raises Refused when `spark.speculation` is on: it would run a shard's commits twice at once,
        which stays right but turns every commit into a race.
        """
        # py4j logs a traceback of its own when a run is cancelled.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: "while sending command" not in record.msg)
        # Starting the JVM is a fork and an exec; lance's warning is about forks that go on.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        # Without it, workers take `python3` from PATH instead of this environment.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName(app_name)
        if not _submitted():
            master = master or f"local[*,{_LOCAL_TASK_FAILURES_MAX}]"
            builder = builder.master(master)
            if master.startswith("local"):
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
                for key, value in _LOCAL_CONF.items():
                    builder = builder.config(key, value)
        elif master:
            builder = builder.master(master)
        self._session = builder.getOrCreate()
        self._context = self._session.sparkContext
        self._groups = itertools.count()
        self._context.setLogLevel("ERROR")
        if self._context.getConf().get("spark.speculation", "false").lower() == "true":
            self.stop()
            raise Refused(
                "spark.speculation is on: speculative copies of a task would race each other's "
                "commits; set spark.speculation=false for this application"
            )

    @property
    def session(self) -> SparkSession:
        """For jobs that bring rows through Spark."""
        return self._session

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        on_done: Callable[[int], None],
    ) -> Sequence[Result]:
        """Run `work` on each unit, one task each. An interrupt cancels the job's tasks."""
        group = f"memwal-{id(self):x}-{next(self._groups)}"
        self._context.setJobGroup(group, "memwal", interruptOnCancel=True)
        finished = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(group, on_done, finished), daemon=True)
        watcher.start()
        try:
            results = list(self._context.parallelize(units, len(units)).map(work).collect())
        except BaseException:
            # Python tasks go on for some seconds after this returns (field notes A2). Whatever they
            # still commit is whole and marked, so the table stays right.
            self._context.cancelJobGroup(group)
            raise
        finally:
            finished.set()
            watcher.join()
        on_done(len(units))
        return results

    def cancel(self) -> None:
        """End every job of the application."""
        self._context.cancelAllJobs()

    def stop(self) -> None:
        """End the application."""
        self._session.stop()

    def _watch(self, group: str, on_done: Callable[[int], None], finished: threading.Event) -> None:
        tracker = self._context.statusTracker()
        while not finished.wait(_POLL_SECONDS):
            done = 0
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                stages = [tracker.getStageInfo(s) for s in (job.stageIds if job else ())]
                done += sum(stage.numCompletedTasks for stage in stages if stage)
            on_done(done)


def _submitted() -> bool:
    """Whether spark-submit started this process (it then sets the master itself)."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
