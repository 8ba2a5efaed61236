"""Engines that several runs of one process share, side by side: each is started once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from memwal.ports import Engine
from memwal.run import cancel as _cancel

Started = tuple[Engine, Callable[[], None]]


class SharedEngines:
    """Use as a context manager; the engines end with it."""

    def __init__(self, start: Callable[[str], Started]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._started: dict[str, Started] = {}
        _cancel.begin()

    def get(self, name: str) -> Engine:
        """The engine of that name, started if it is the first time. Raises StandDown."""
        with self._lock:
            _cancel.check()
            if name not in self._started:
                self._started[name] = self._start(name)
            return self._started[name][0]

    def cancel(self) -> None:
        """Make every unit stop before its next commit, and begin none."""
        _cancel.cancel()
        with self._lock:
            engines = [engine for engine, _ in self._started.values()]
        for engine in engines:
            engine.cancel()

    def __enter__(self) -> SharedEngines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, stop in self._started.values():
            stop()
