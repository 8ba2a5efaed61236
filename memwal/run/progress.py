"""How a job tells people how far it is."""

from __future__ import annotations

import logging
from typing import Protocol

_LOG = logging.getLogger("memwal")


class Progress(Protocol):
    """Where a job's steps, and its lines for people, go."""

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """A step with `total` units, of `bytes_total` together, begins. 0: not known."""
        ...

    def done(self, count: int, bytes_done: int = 0) -> None:
        """This many of the step's units are done, and about so many of its bytes."""
        ...

    def say(self, text: str) -> None:
        """A line for people."""
        ...

    def warn(self, text: str) -> None:
        """A line about trouble: shown of a job inside another job, too."""
        ...

    def trace(self, text: str) -> None:
        """A traceback, shown with `--debug` only."""
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
    """The progress of a job inside another, which shows its own: only trouble gets through."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def warn(self, text: str) -> None:
        """Trouble that the outer job's report does not mention."""
        self._progress.warn(text)

    def trace(self, text: str) -> None:
        """The traceback of an unexpected error."""
        self._progress.trace(text)


class LogProgress:
    """What a job says while it runs, in the log."""

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """A step with `total` units begins."""
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
