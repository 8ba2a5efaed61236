"""How a job shows its progress."""

from __future__ import annotations

import logging
from typing import Protocol

_LOG = logging.getLogger("memwal")


class Progress(Protocol):
    """Receives a job's steps, and the lines that it prints for people."""

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """Begin a step of `total` units with `bytes_total` bytes together; 0 means not known."""
        ...

    def done(self, count: int, bytes_done: int = 0) -> None:
        """Report that `count` of the step's units are done, and about `bytes_done` of its bytes."""
        ...

    def say(self, text: str) -> None:
        """A line for people."""
        ...

    def warn(self, text: str) -> None:
        """A line about trouble; shown even for a job inside another job."""
        ...

    def trace(self, text: str) -> None:
        """A traceback; shown with `--debug` only."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """Not shown."""

    def done(self, count: int, bytes_done: int = 0) -> None:
        """Not shown."""

    def say(self, text: str) -> None:
        """Not shown."""

    def warn(self, text: str) -> None:
        """Not shown."""

    def trace(self, text: str) -> None:
        """Not shown."""


class Quiet(Silent):
    """The progress of a job inside another job: only warnings and tracebacks get through."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def warn(self, text: str) -> None:
        """Trouble that the outer job's report does not mention."""
        self._progress.warn(text)

    def trace(self, text: str) -> None:
        """The traceback of an unexpected error."""
        self._progress.trace(text)


class LogProgress:
    """Writes a job's progress to Python's log."""

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """Log the beginning of a step with `total` units."""
        _LOG.info("%s: %d", what, total)

    def done(self, count: int, bytes_done: int = 0) -> None:
        """Not logged."""

    def say(self, text: str) -> None:
        """A line for people."""
        _LOG.info("%s", text)

    def warn(self, text: str) -> None:
        """A line about trouble."""
        _LOG.warning("%s", text)

    def trace(self, text: str) -> None:
        """A traceback."""
        _LOG.debug("%s", text)


SILENT = Silent()
