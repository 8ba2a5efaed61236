"""How far a run is: a bar on a terminal, log lines elsewhere. Imported when it is needed.

A command that only reads says nothing, and importing this takes a tenth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import structlog
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from structlog.typing import EventDict

from memwal.run.logs import JsonLog
from memwal.text import one_line

ROWS = "rows"
"""The one unit that is counted fast enough to have a speed. A total of 0 is unknown."""


class SpeedColumn(ProgressColumn):
    """Units a second."""

    def render(self, task: Task) -> Text:
        """The speed of the last half minute."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="dim")


class BarDisplay:
    """On a terminal: one bar, which goes when its step has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None

    def start(self, what: str, total: int) -> None:
        """Show a bar of `total` units in place of the one before."""
        self.stop()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            *([SpeedColumn()] if what == ROWS else []),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.add_task(what, total=total or None)
        self._bar.start()

    def done(self, count: int) -> None:
        """Fill the bar so far."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=count)

    def say(self, text: str) -> None:
        """Print a line, above the bar."""
        self._console.print(text, style="dim")

    def stop(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class LogDisplay:
    """Elsewhere: a line at the beginning and the end of each step."""

    def __init__(self) -> None:
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ", utc=True),
                _escape_texts,
                structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, pad_level=False),
            ],
            logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        )
        self.say: Callable[[str], object] = structlog.get_logger().info
        self._log: Callable[..., object] = self.say
        self._total = 0

    def start(self, what: str, total: int) -> None:
        """Log that a step of `total` units begins."""
        self._total = total
        self._log("started", step=what, total=total)

    def done(self, count: int) -> None:
        """Log the end of the step."""
        if count == self._total:
            self._log("finished", total=count)

    def stop(self) -> None:
        """Nothing to take away."""


class JsonDisplay(LogDisplay):
    """With `--log-format json`: the same lines as objects."""

    def __init__(self, log: JsonLog) -> None:
        self.say = log.take
        self._log = partial(log.say, "info")
        self._total = 0


def _escape_texts(logger: object, method: str, event: EventDict) -> EventDict:
    return {k: one_line(v) if isinstance(v, str) else v for k, v in event.items()}


Display = BarDisplay | LogDisplay
