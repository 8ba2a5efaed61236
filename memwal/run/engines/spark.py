"""The Spark engine: units fan out over executors. The only importer of pyspark."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, TaskContext, cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from memwal.errors import MemWalError, Refused, Unsupported, WorkerDied, make_sendable
from memwal.run.engines import executors
from memwal.run.engines.executors import find_fault
from memwal.run.submit import PACKAGE, is_local, zip_package
from memwal.run.units import split_memory, split_requests

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_POLL_SECONDS = 0.5
# Spark retries a task whose worker dies. That is safe: a unit checks what is committed first.
_LOCAL_TASK_FAILURES_MAX = 3
# Spark's launcher logs before it has read any setting; this file keeps its start quiet.
_LOG4J = Path(__file__).with_name("log4j2.properties")
_LOCAL_CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.driver.extraJavaOptions": (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_LOG4J}"
    ),
}


# What Spark says when a task's process, or the executor around it, is gone.
_DEATH = re.compile(r"Python worker exited unexpectedly|ExecutorLostFailure")
_LOCAL_MASTER = re.compile(r"local(?:\[\s*(?:\d+|\*)\s*(?:,\s*(\d+)\s*)?\])?")
_SIDE_BY_SIDE_MAX = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """What came of a unit: its result, the error it raised, or why it could not be done.

    It could not be done when its process died, or the executor is unfit (modules, versions).
    """

    result: Any = None
    error: Exception | None = None
    undone: MemWalError | None = None

    @property
    def died(self) -> bool:
        return isinstance(self.undone, WorkerDied)


_DIED = _Outcome(
    undone=WorkerDied(
        "the worker process died in every attempt, also with nothing of this run beside it. Data "
        "that is damaged deep inside a file can do that, and so can too little memory: see the "
        "executor's log. What was committed before stays"
    )
)


@dataclass(frozen=True, slots=True)
class _Task(Generic[Unit, Result]):
    """Runs a unit in a Spark task, and never raises: one unit must not fail the others' stage.

    So a task is only retried when its process died. Once `attempts_max` are used up, one more
    attempt, which Spark must allow, only reports that. `driver` holds the driver's versions; each
    task checks them, because an executor may join after `_require_executors`.
    """

    work: Callable[[Unit], Result]
    attempts_max: int
    driver: Mapping[str, str]
    executor_cores: int | None = None

    def side_by_side(self) -> int:
        """How many tasks the executor runs at once, each in a process of its own.

        An executor is taken to have all the host's cores unless the application says otherwise.
        """
        cores = self.executor_cores or os.cpu_count() or 1
        return max(1, cores // int(TaskContext.get().cpus()))

    def __call__(self, unit: Unit) -> _Outcome:
        if TaskContext.get().attemptNumber() >= self.attempts_max:
            return _DIED
        if fault := find_fault(self.driver):
            return _Outcome(undone=Unsupported("MW-E07", fault))
        try:
            return _Outcome(result=self.work(split_memory(unit, self.side_by_side())))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a Rust panic in Lance is not an Exception
            return _Outcome(error=make_sendable(error))


class SparkEngine:
    """The Engine port over one Spark application, which serves every table of a run."""

    name = "spark"

    def __init__(self, *, master: str | None = None, lance_may_differ: bool = False) -> None:
        """Start the session, or join it under spark-submit.

        Raises Unsupported on Spark Connect, and Refused when `spark.speculation` is on: that would
        run a shard's commits twice at once, which stays correct but makes every commit a race.
        """
        if "SPARK_REMOTE" in os.environ or (master or "").startswith("sc://"):
            raise Unsupported(
                "MW-E05",
                "jobs need a driver of their own, which Spark Connect does not give: name a master "
                "(spark://…, yarn, k8s://…, local[*]), without SPARK_REMOTE. Reading works on it",
            )
        # py4j logs a traceback of its own when a run is cancelled.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: "while sending command" not in record.msg)
        # The JVM is started by fork and exec; lance's warning is about forks without an exec.
        warnings.filterwarnings("ignore", message="lance is not fork-safe")
        # Without it, workers take `python3` from PATH instead of this environment.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("memwal")
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit sets the master itself
            master = master or f"local[*,{_LOCAL_TASK_FAILURES_MAX}]"
            builder = builder.master(master).config("spark.ui.showConsoleProgress", "false")
            if master.startswith("local"):
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
                for key, value in _LOCAL_CONF.items():
                    builder = builder.config(key, value)
        elif master:
            builder = builder.master(master)
        self._session = builder.getOrCreate()
        self._context = self._session.sparkContext
        self._groups = itertools.count()
        self._looking = threading.Lock()
        self._shipped = tempfile.TemporaryDirectory(prefix="memwal-")
        self._context.setLogLevel("ERROR")
        if self._context.getConf().get("spark.speculation", "false").lower() == "true":
            self.stop()
            raise Refused(
                "MW-E06",
                "spark.speculation is on: speculative copies of a task would race each other's "
                "commits; set spark.speculation=false for this application",
            )
        self._driver = executors.find_versions()
        self._driver["Spark"] = executors.spark_release(self._context.version)
        if lance_may_differ:
            del self._driver["pylance"]

    def _require_executors(self) -> None:
        """Raise Unsupported when executors lack a module, or have other versions than the driver.

        pylance's version counts too, unless `lance_may_differ`. This is checked once, in one small
        stage.
        """
        with self._looking:  # tables of a backfill come here concurrently
            fault = self._executors_fault
        if fault:
            raise Unsupported("MW-E07", f"{fault}. {executors.HOW}")

    @cached_property
    def _executors_fault(self) -> str | None:
        # When memwal is imported from a zip, Spark has shipped it already.
        if PACKAGE.is_dir() and not is_local(self._context.master):
            self._context.addPyFile(str(zip_package(Path(self._shipped.name))))
        cloudpickle.register_pickle_by_value(executors)
        driver = self._driver
        tasks = range(min(self._context.defaultParallelism, _SIDE_BY_SIDE_MAX))
        try:
            found = self._job("memwal", lambda _: find_fault(driver), tasks)
        except Unsupported as error:
            return str(error)
        return "; ".join(sorted({fault for fault in found if fault})) or None

    @property
    def session(self) -> SparkSession:
        """The session, for jobs whose rows go through Spark. Raises Unsupported, as `run` does."""
        self._require_executors()
        return self._session

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        on_done: Callable[[int], None],
        lost: Callable[[Unit, MemWalError], Result] | None = None,
    ) -> Sequence[Result]:
        """Run `work` on each unit, one task each. An interrupt cancels the job's tasks.

        A unit whose process dies is retried as often as Spark retries a task, and then once more
        with nothing of this run beside it, because another task may have brought the process down.
        Raises Unsupported when executors lack a module, or have other versions than the driver.
        """
        self._require_executors()
        group = f"memwal-{id(self):x}-{next(self._groups)}"
        with self._watch_jobs(group, on_done, len(units)):
            beside = 1 + min(len(units), self._context.defaultParallelism)
            shared = [split_requests(unit, beside) for unit in units]
            outcomes = self._side_by_side(group, work, shared)
            for place, unit in enumerate(units):
                if outcomes[place].died:
                    outcomes[place] = self._alone(group, work, unit)
        return [
            _result_of(unit, outcome, lost) for unit, outcome in zip(units, outcomes, strict=True)
        ]

    def _side_by_side(
        self, group: str, work: Callable[[Unit], Result], units: Sequence[Unit]
    ) -> list[_Outcome]:
        attempts = _task_attempts(self._context)
        if attempts > 1:
            return self._job(group, self._task(work, attempts - 1), units)
        # Spark does not retry here, so each unit gets its own job, which can fail alone.
        pool = ThreadPoolExecutor(
            min(len(units), self._context.defaultParallelism, _SIDE_BY_SIDE_MAX)
        )
        futures = [pool.submit(self._alone, group, work, unit) for unit in units]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # Cancel repeatedly: a thread may be about to start its job.
            while left := [future for future in futures if not future.done()]:
                self._cancel_jobs(group)
                wait(left, timeout=_POLL_SECONDS)
            raise
        finally:
            pool.shutdown()

    def _task(self, work: Callable[[Unit], Result], attempts_max: int) -> _Task[Unit, Result]:
        master = self._context.master
        asked = self._context.getConf().get("spark.executor.cores")
        cores = self._context.defaultParallelism if is_local(master) else int(asked or 0)
        if not cores and master.startswith(("yarn", "k8s")):
            cores = 1
        return _Task(work, attempts_max, self._driver, cores)

    def _alone(self, group: str, work: Callable[[Unit], Result], unit: Unit) -> _Outcome:
        try:
            (outcome,) = self._job(group, self._task(work, 1), [unit])
        except Py4JJavaError as error:
            if _DEATH.search(str(error)):
                return _DIED
            raise
        return outcome

    def _job(
        self, group: str, task: Callable[[Unit], Result], units: Sequence[Unit]
    ) -> list[Result]:
        # Set for each job: the job group belongs to the thread.
        self._context.setJobGroup(group, "memwal", interruptOnCancel=True)
        try:
            return list(self._context.parallelize(units, len(units)).map(task).collect())
        except (Py4JJavaError, PythonException) as error:
            if fault := executors.explain_failure(str(error)):
                raise Unsupported("MW-E07", fault) from None
            raise

    @contextmanager
    def _watch_jobs(
        self, group: str, on_done: Callable[[int], None], total: int | None
    ) -> Iterator[None]:
        """Report progress while the block runs; cancel its jobs when it ends in an error."""
        finished = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(group, on_done, total, finished), daemon=True
        )
        watcher.start()
        try:
            yield
        except BaseException:
            # Python tasks go on for some seconds after this returns. Whatever they
            # still commit is complete and marked, so the table stays right.
            self._cancel_jobs(group)
            raise
        finally:
            finished.set()
            watcher.join()
        if total is not None:
            on_done(total)

    @contextmanager
    def watch(self, on_done: Callable[[int], None]) -> Iterator[None]:
        """Report how many tasks of the block's jobs are done; cancel the jobs on an error.

        There is no total: how many tasks there will be is not known before they start.
        """
        group = f"memwal-{id(self):x}-{next(self._groups)}"
        self._context.setJobGroup(group, "memwal", interruptOnCancel=True)
        with self._watch_jobs(group, on_done, None):
            yield

    def cancel(self) -> None:
        """End every job of the application."""
        self._context.cancelAllJobs()

    def stop(self) -> None:
        """End the application."""
        # A closing terminal ends the JVM as well; then there is nothing left to stop.
        with suppress(Py4JError, OSError):
            self._session.stop()
        self._shipped.cleanup()

    def _cancel_jobs(self, group: str) -> None:
        with suppress(Py4JError, OSError):
            self._context.cancelJobGroup(group)

    def _watch(
        self,
        group: str,
        on_done: Callable[[int], None],
        total: int | None,
        finished: threading.Event,
    ) -> None:
        tracker = self._context.statusTracker()
        while not finished.wait(_POLL_SECONDS):
            done = 0
            for job_id in tracker.getJobIdsForGroup(group):
                job = tracker.getJobInfo(job_id)
                stages = [tracker.getStageInfo(s) for s in (job.stageIds if job else ())]
                done += sum(stage.numCompletedTasks for stage in stages if stage)
            # A unit that died is counted again when it runs alone.
            on_done(done if total is None else min(done, total))


def _result_of(
    unit: Unit, outcome: _Outcome, lost: Callable[[Unit, MemWalError], Result] | None
) -> Result:
    if outcome.error is not None:
        raise outcome.error
    if outcome.undone is not None:
        if lost is None:
            raise outcome.undone
        return lost(unit, outcome.undone)
    result: Result = outcome.result
    return result


def _task_attempts(context: SparkContext) -> int:
    """How often Spark tries a task.

    A local master has the number in its name (`local[N, F]`), and without one does not retry.
    """
    local = _LOCAL_MASTER.fullmatch(context.master)
    if local is not None:
        return int(local[1] or 1)
    return int(str(context.getConf().get("spark.task.maxFailures", "4")))
