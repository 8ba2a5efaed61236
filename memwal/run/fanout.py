"""Runs the units of a job on the engine that suits their size.

An engine is started when it is first needed and stays up until the job ends, because a Spark
application that has stopped its context may not get another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from memwal.errors import MemWalError
from memwal.ports import Engine
from memwal.run.engines.choice import EngineChoice, choose_engine
from memwal.run.engines.launcher import check_spark, find_obstacle
from memwal.run.engines.pool import LocalEngine, SharedEngines, Started
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.tables import OpenTable
from memwal.run.units import UnitResult, lost_unit

if TYPE_CHECKING:
    from memwal.run.engines.spark import SparkEngine


Unit = TypeVar("Unit")
Result = TypeVar("Result")
Made = TypeVar("Made")


class Fanout(AbstractContextManager["Fanout"]):
    """The engines of one job. Use as a context manager."""

    def __init__(self, options: RunOptions, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._engines: dict[str, Started] = {}
        self.choice = self._choose(0, 0)

    @property
    def used(self) -> EngineChoice | None:
        """The engine that ran units; None when there were none."""
        return None if self.choice.name == "none" else self.choice

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        *,
        what: str,
        in_memory_bytes: int,
        lost: Callable[[Unit, MemWalError], Result] | None = None,
    ) -> Sequence[Result]:
        """Run units on the engine that suits their size.

        `choice` is then the largest engine that has run. `what` names the units where progress is
        shown; when it is empty, nothing is shown.
        """
        if not units:
            return ()
        engine = self._start(self._choose(len(units), in_memory_bytes))
        progress = self._progress if what else SILENT
        progress.start(what, len(units))
        return engine.run(work, units, progress.done, lost)

    def run_for(
        self,
        tables: Sequence[OpenTable],
        work: Callable[[Unit], UnitResult[Made]],
        units: Sequence[Unit],
        *,
        what: str,
        in_memory_bytes: int,
    ) -> Sequence[UnitResult[Made]]:
        """Run units as `run` does, and count each unit's requests on its table in `tables`.

        A unit that kills its process gets a result that holds the error.
        """
        results = self.run(work, units, what=what, in_memory_bytes=in_memory_bytes, lost=lost_unit)
        self.count(tables, results)
        return results

    def run_tasks(
        self,
        table: OpenTable,
        kind: Callable[..., Unit],
        work: Callable[[Unit], UnitResult[Made]],
        tasks: Sequence[object],
        *,
        what: str,
        in_memory_bytes: int,
    ) -> Sequence[Made | MemWalError]:
        """Run tasks of one table, each as a unit of `kind`; returns what each made or its error."""
        place = table.resolved
        units = [
            kind(
                uri=place.uri,
                storage_options=place.storage_options,
                memory_bytes_max=place.settings.memory_bytes_max,
                task=task,
            )
            for task in tasks
        ]
        tables = [table] * len(units)
        results = self.run_for(tables, work, units, what=what, in_memory_bytes=in_memory_bytes)
        return [result.made for result in results]

    def count(self, tables: Sequence[OpenTable], results: Sequence[UnitResult[Any]]) -> None:
        """Count each result's requests on its table, and show its traceback if it has one."""
        for table, result in zip(tables, results, strict=True):
            table.unit_requests.append(result.requests)
            if result.trace:
                self._progress.trace(result.trace)

    def spark(self) -> SparkEngine:
        """The Spark engine, for jobs whose rows go through Spark. Raises Unsupported, Refused."""
        choice = EngineChoice(name="spark", reason="rows go through Spark")
        return cast("SparkEngine", self._start(choice))

    def stay_here(self, reason: str) -> None:
        """Record and say that this process does the work itself, without units."""
        asked = self._options.asked_engine == "local"
        self.choice = EngineChoice(name="local", reason="asked for" if asked else reason)
        self._progress.say(f"engine: local ({self.choice.reason})")

    def _start(self, choice: EngineChoice) -> Engine:
        if choice.name not in self._engines:
            self._progress.say(f"engine: {choice.name} ({choice.reason})")
            self._engines[choice.name] = start_engine(choice.name, self._options)
        if self.choice.name != "spark":
            self.choice = choice
        return self._engines[choice.name][0]

    def _choose(self, units: int, in_memory_bytes: int) -> EngineChoice:
        return choose_engine(
            self._options.asked_engine,
            units=units,
            in_memory_bytes=in_memory_bytes,
            find_obstacle=find_obstacle,
        )

    def __exit__(self, *error: object) -> None:
        while self._engines:
            _, (_, stop) = self._engines.popitem()
            stop()


def share_engines(options: RunOptions) -> SharedEngines:
    """Engines for concurrent runs to share, started as the options ask."""
    return SharedEngines(lambda name: start_engine(name, options))


def start_engine(name: str, options: RunOptions) -> Started:
    """The engine of that name, shared by the options or new. Raises Unsupported, Refused."""
    if options.engines is not None:
        return options.engines.get(name), lambda: None
    if name == "local":
        return LocalEngine(), lambda: None
    check_spark()
    # Imported only when needed: it brings a JVM, and most runs have nothing to do.
    from memwal.run.engines.spark import SparkEngine

    master = options.master or options.shared_setting("master")  # None: as Spark is configured
    engine = SparkEngine(master=master, lance_may_differ=options.untested_lance_allowed)
    return engine, engine.stop
