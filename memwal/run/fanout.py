"""Runs units for a job that fans out more than once: per table, and again after a lost race.

An engine is started when it is first needed and stays up till the end of the job: a Spark
application whose context was stopped can't count on getting another one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from memwal.errors import MemWalError
from memwal.ports import Engine
from memwal.run.engine import EngineChoice, choose_engine
from memwal.run.open import Progress, RunOptions, asked_engine, start_engine

if TYPE_CHECKING:
    from memwal.run.engines.spark import SparkEngine

Unit = TypeVar("Unit")
Result = TypeVar("Result")


class Fanout:
    """The engines of one job. Use as a context manager."""

    def __init__(self, options: RunOptions, progress: Progress) -> None:
        self._options = options
        self._progress = progress
        self._engines: dict[str, tuple[Engine, Callable[[], None]]] = {}
        self.choice = self._choose(0, 0)

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        *,
        what: str,
        in_memory_bytes: int,
        lost: Callable[[Unit, MemWalError], Result] | None = None,
    ) -> Sequence[Result]:
        """Run units where their size says; `choice` then tells the largest engine that ran."""
        if not units:
            return ()
        engine = self._started(self._choose(len(units), in_memory_bytes))
        self._progress.start(what, len(units))
        return engine.run(work, units, self._progress.done, lost)

    def spark(self) -> SparkEngine:
        """The Spark engine itself, for rows that go through Spark. Raises Unsupported, Refused."""
        choice = EngineChoice(name="spark", reason="rows go through Spark")
        return cast("SparkEngine", self._started(choice))

    def here(self, reason: str) -> None:
        """Say that this process does the work itself, without an engine's units."""
        asked = asked_engine(self._options) == "local"
        self.choice = EngineChoice(name="local", reason="asked for" if asked else reason)
        self._progress.say(f"engine: local ({self.choice.reason})")

    def _started(self, choice: EngineChoice) -> Engine:
        if choice.name not in self._engines:
            self._progress.say(f"engine: {choice.name} ({choice.reason})")
            self._engines[choice.name] = start_engine(choice, self._options)
        if self.choice.name != "spark":
            self.choice = choice
        return self._engines[choice.name][0]

    def _choose(self, units: int, in_memory_bytes: int) -> EngineChoice:
        return choose_engine(
            asked_engine(self._options),
            units=units,
            in_memory_bytes=in_memory_bytes,
            spark_installed=importlib.util.find_spec("pyspark") is not None,
        )

    def __enter__(self) -> Fanout:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, stop in self._engines.values():
            stop()
