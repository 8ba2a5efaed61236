"""`memwal top`."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live

from memwal.cli.console import Terminal, show_report
from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Tables
from memwal.cli.output import Document, Output
from memwal.cli.parse import parse_duration
from memwal.errors import Usage

if TYPE_CHECKING:
    from memwal.jobs.top.plan import Asked, Row, Seen

_KEYS = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b": "escape",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1bOH": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\r": "enter", "\n": "enter", "\x7f": "backspace",
    "\b": "backspace", "\x04": "q",
}  # fmt: skip
_KEY = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
_EVERY_SECONDS_MIN = 0.1

From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="http://HOST:PORT",
        help="Show what the watch sees that serves --metrics-port there, in place of tables.",
    ),
]
Every = Annotated[str, typer.Option("--every", metavar="2s", help="How often to look.")]
Once = Annotated[
    bool, typer.Option("--once", help="Print it once and end, after two looks --every apart.")
]


@command()
def top(
    tables: Tables,
    source: From = None,
    every: Every = "2s",
    once: Once = False,
    *,
    flags: ReadFlags,
    results: Output,
) -> Document:
    """Show live how tables stand.

    That is lag, rate, queue, cost and what runs; without TABLE, of all tables of the configuration.
    Nothing is written. Where stdout is no terminal, it is printed once.
    """
    from memwal.jobs.top.job import TopOptions, run_top
    from memwal.jobs.top.show import show_once

    every_seconds = parse_duration(every, "--every")
    if every_seconds < _EVERY_SECONDS_MIN:
        raise Usage(f"--every {every}: expected {_EVERY_SECONDS_MIN:g}s or more")
    if source is not None and (tables or flags.everything):
        raise Usage("--from shows the tables of that watch: name none beside it")
    chosen = replace(flags, everything=flags.everything or not tables)
    stays = not (once or flags.as_json) and _is_screen()
    options = flags.run_options(
        TopOptions,
        [] if source is not None else chosen.tables(tables),
        every_seconds=every_seconds,
        source=source,
        open_screen=_open_screen if stays else None,
    )
    report, seen = run_top(options)
    results.shows = not stays
    return Document(
        content=report.to_json(),
        show=lambda _, console: show_report(
            report, console, show_tables=lambda _: show_once(seen.rows, seen)
        ),
        report=report,
        tells_errors=True,
    )


def _is_screen() -> bool:
    streams = (sys.stdin, sys.stdout)
    return all(s is not None and s.isatty() for s in streams) and not Terminal().is_dumb_terminal


@dataclass(frozen=True)
class _Screen:
    """The Screen port over the terminal."""

    live: Live

    @property
    def lines(self) -> int:
        """How many rows it has room for."""
        from memwal.jobs.top.show import FRAME_LINES

        return max(1, self.live.console.height - FRAME_LINES)

    def draw(self, rows: Sequence[Row], seen: Seen, asked: Asked) -> None:
        """Show these rows, of all that was seen."""
        from memwal.jobs.top.show import show_screen

        width = self.live.console.width
        shown = show_screen(rows, seen, asked, width=width, lines=self.lines)
        self.live.update(Group(*shown), refresh=True)

    def read_keys(self, seconds: float) -> Sequence[str]:
        """The keys that were pressed; waits so long at most. "q" once the terminal is gone."""
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return ()
        try:
            typed = os.read(sys.stdin.fileno(), 4096)
        except OSError:
            typed = b""
        found = _KEY.findall(typed.decode("utf-8", "replace"))
        return [_KEYS.get(key, key) for key in found] if typed else ["q"]


@contextmanager
def _open_screen() -> Iterator[_Screen]:
    """The terminal, which gives each key at once and without an echo; then as it was before."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        attributes = termios.tcgetattr(terminal)
        attributes[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the terminal as it is here
        termios.tcsetattr(terminal, termios.TCSANOW, attributes)
        with Live(console=Terminal(), screen=True, auto_refresh=False) as live:
            yield _Screen(live)
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
