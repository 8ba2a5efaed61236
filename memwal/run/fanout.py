"""Runs the units of a job, on the engine that their size calls for.

An engine is started when it is first needed and stays up till the end of the job: a Spark
application whose context was stopped can't count on getting another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from memwal.errors import MemWalError
from memwal.ports import Engine
from memwal.run.engines.choice import EngineChoice, choose_engine
from memwal.run.engines.local import LocalEngine
from memwal.run.engines.pool import SharedEngines, Started, check_spark, has_spark
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.tables import OpenTable
from memwal.run.units import UnitResult, lost_unit

if TYPE_CHECKING:
    from memwal.run.engines.spark import SparkEngine


class Counted(Protocol):
    """What a unit's result says besides what came of it."""

    @property
    def requests(self) -> Mapping[str, int]:
        """What it asked of the store."""
        ...

    @property
    def trace(self) -> str | None:
        """The traceback of an error nobody expected."""
        ...


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
        """Run units where their size says; `choice` then tells the largest engine that ran.

        `what` the units are is shown with their number; nothing without it.
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
        """The same, with a table for each unit; its requests are counted as the table's.

        A unit that kills its process has the error in its result.
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
        """Run tasks of one table, each as a unit of this `kind`; what each made, or its error."""
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

    def count(self, tables: Sequence[OpenTable], results: Sequence[Counted]) -> None:
        """Count the requests of each result as its table's, and show its traceback."""
        for table, result in zip(tables, results, strict=True):
            table.unit_requests.append(result.requests)
            if result.trace:
                self._progress.trace(result.trace)

    def spark(self) -> SparkEngine:
        """The Spark engine itself, for rows that go through Spark. Raises Unsupported, Refused."""
        choice = EngineChoice(name="spark", reason="rows go through Spark")
        return cast("SparkEngine", self._start(choice))

    def stay_here(self, reason: str) -> None:
        """Say that this process does the work itself, without an engine's units."""
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
            spark_installed=has_spark(),
        )

    def __exit__(self, *error: object) -> None:
        while self._engines:
            _, (_, stop) = self._engines.popitem()
            stop()


def share_engines(options: RunOptions) -> SharedEngines:
    """Engines as the options ask for them, for runs that go on side by side."""
    return SharedEngines(lambda name: start_engine(name, options))


def start_engine(name: str, options: RunOptions) -> Started:
    """The engine of that name: one of the run's own, or a new one. Raises Unsupported, Refused."""
    if options.engines is not None:
        return options.engines.get(name), lambda: None
    if name == "local":
        return LocalEngine(), lambda: None
    check_spark()
    # Imported when it is needed only: it brings a JVM, and most runs have nothing to do.
    from memwal.run.engines.spark import SparkEngine

    engine = SparkEngine(
        master=options.asked_master, lance_may_differ=options.untested_lance_allowed
    )
    return engine, engine.stop
