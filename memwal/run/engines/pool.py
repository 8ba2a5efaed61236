"""Engines shared by concurrent runs of one process, and whether Spark is installed."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from memwal.errors import Unsupported
from memwal.ports import Engine
from memwal.run.workers import cancel

Started = tuple[Engine, Callable[[], None]]
"""An engine, and the function that stops it."""


def has_spark() -> bool:
    """Whether pyspark is installed."""
    return importlib.util.find_spec("pyspark") is not None


def check_spark() -> None:
    """Raise Unsupported where pyspark is not installed."""
    if not has_spark():
        raise Unsupported("MW-E04", "pyspark is not installed: pip install 'lance-memwal[spark]'")


class SharedEngines(AbstractContextManager["SharedEngines"]):
    """Engines that several runs share; each is started once. Use as a context manager."""

    def __init__(self, start: Callable[[str], Started]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._started: dict[str, Started] = {}
        cancel.begin()

    def get(self, name: str) -> Engine:
        """The engine of that name, started on first use. Raises StandDown when cancelled."""
        with self._lock:
            cancel.check()
            if name not in self._started:
                self._started[name] = self._start(name)
            return self._started[name][0]

    def cancel(self) -> None:
        """Make every unit stop before its next commit, and start no more."""
        cancel.cancel()
        with self._lock:
            engines = [engine for engine, _ in self._started.values()]
        for engine in engines:
            engine.cancel()

    def __exit__(self, *error: object) -> None:
        for _, stop in self._started.values():
            stop()
