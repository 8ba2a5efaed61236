"""Shows how far a run is: a bar on a terminal, log lines elsewhere.

It is imported only when it is needed: that takes a tenth of a second, and a command that only reads
shows nothing.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from memwal.clock import SystemClock
from memwal.ports import Clock
from memwal.run.process.logs import JsonLog
from memwal.text import iso_time, one_line

_LOGGED_AFTER_SECONDS = 5.0
_LOGGED_EVERY_SECONDS = 30.0


class BarDisplay:
    """The display on a terminal: one bar, which disappears when its step has ended."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """Show a bar of `total` units in place of the last one; it counts bytes if it can."""
        self.stop()
        counts = DownloadColumn(True) if bytes_total else MofNCompleteColumn()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            counts,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._bar.add_task(what, total=bytes_total or total or None)
        self._in_bytes = bytes_total > 0
        self._bar.start()

    def done(self, count: int, bytes_done: int = 0) -> None:
        """Fill the bar up to here."""
        if self._bar is not None:
            [task] = self._bar.tasks
            self._bar.update(task.id, completed=bytes_done if self._in_bytes else count)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, style="dim")

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class LogDisplay:
    """The display elsewhere: a line now and then for a step that takes long."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._stream = sys.stderr
        self._clock = clock or SystemClock()
        self._pace = _Pace(self._clock)

    def say(self, text: str) -> None:
        """Log a line."""
        self._log(text)

    def start(self, what: str, total: int, bytes_total: int = 0) -> None:
        """Begin a step of `total` units."""
        self._pace.start(what, total, bytes_total)

    def done(self, count: int, bytes_done: int = 0) -> None:
        """Log how far the step is: after some seconds, and then every half minute."""
        if facts := self._pace.describe(count, bytes_done):
            self._log("going on", **facts)

    def stop(self) -> None:
        """Do nothing: there is no bar to remove."""

    def _log(self, text: str, **facts: object) -> None:
        at = (iso_time(self._clock.now_nanos()) or "")[:19]
        told = " ".join(f"{name}={_quote(value)}" for name, value in sorted(facts.items()))
        # In one piece, since jobs side by side may write at the same time.
        self._stream.write(f"{at}Z [info] {one_line(text)} {told}".rstrip(" ") + "\n")
        self._stream.flush()


class JsonDisplay(LogDisplay):
    """The display with `--log-format json`: the same lines as JSON objects."""

    def __init__(self, log: JsonLog, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._json = log

    def say(self, text: str) -> None:
        """Log a line, which may be JSON already."""
        self._json.take(text)

    def _log(self, text: str, **facts: object) -> None:
        self._json.say("info", text, **facts)


class _Pace:
    """Decides when a running step gets a line, and what the line says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start("", 0, 0)

    def start(self, what: str, total: int, bytes_total: int) -> None:
        """Begin a step."""
        self.what, self.total, self.bytes_total = what, total, bytes_total
        self._began = self._clock.monotonic_seconds()
        self._next = self._began + _LOGGED_AFTER_SECONDS
        self._before: tuple[int, int] | None = None

    def describe(self, count: int, bytes_done: int) -> dict[str, object]:
        """Return the facts of a line when one is due, and nothing in between."""
        now = self._clock.monotonic_seconds()
        if self._before is None:
            self._before = (count, bytes_done)
        if now < self._next or count == self.total > 0:
            return {}
        self._next = now + _LOGGED_EVERY_SECONDS
        facts: dict[str, object] = {"step": self.what, "done": count, "total": self.total}
        place, end, before = (count, self.total, self._before[0])
        if self.bytes_total:
            facts |= {"bytes_done": bytes_done, "bytes_total": self.bytes_total}
            place, end, before = (bytes_done, self.bytes_total, self._before[1])
        if place > before and end:
            left = (now - self._began) * (end - place) / (place - before)
            facts["seconds_left"] = max(0, round(left))
        facts["per_second"] = round((count - self._before[0]) / (now - self._began))
        return facts


def _quote(value: object) -> str:
    """The value of a fact, in quotes where it would not be one word."""
    text = one_line(str(value))
    return repr(text) if set(text) & set(" =\"'") else text


Display = BarDisplay | LogDisplay
