"""What people see of a demo: its story as it goes, and what the jobs changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console

from memwal.grid import format_count, format_size, start_table
from memwal.report import JobReport

_BAR_CELLS = 12
_COMPARED = (
    ("keys unlike what was written", "differences", format_count),
    ("pending generations", "pending", format_count),
    ("generations, bytes", "generations", format_size),
    ("WAL, bytes", "wal", format_size),
    ("base table, bytes", "base", format_size),
)


@dataclass(frozen=True, kw_only=True)
class DemoState:
    """What the demo compares: bytes by kind, pending generations, and keys that differ."""

    base: int
    generations: int
    wal: int
    pending: int
    differences: int


@dataclass(frozen=True, kw_only=True)
class Story:
    """Tells the demo as it goes; `show` prints a job's report."""

    console: Console
    show: Callable[[JobReport, Console], None]
    clear: Callable[[], None] = lambda: None
    """Clears a job's progress from the terminal."""

    def begin(self, heading: str, *lines: str) -> None:
        """Begin a chapter."""
        self.clear()
        self.console.print()
        self.console.print(f"== {heading}", style="bold cyan")
        self.say(*lines)

    def say(self, *lines: str) -> None:
        """Print lines of text."""
        self.clear()
        for line in lines:
            self.console.print(line)

    def report(self, report: JobReport) -> JobReport:
        """Show the report of a job, and return it."""
        self.clear()
        self.show(report, self.console)
        return report

    def compare(self, before: DemoState, after: DemoState) -> None:
        """Show two states side by side, with bars."""
        table = start_table()
        for column in ("", "before", "", "after", ""):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for label, name, text in _COMPARED:
            was, now = getattr(before, name), getattr(after, name)
            most = max(was, now, 1)
            table.add_row(
                label,
                text(was),
                Bar(most, 0, was, width=_BAR_CELLS, color="yellow"),
                text(now),
                Bar(most, 0, now, width=_BAR_CELLS, color="green"),
            )
        self.console.print(table)
