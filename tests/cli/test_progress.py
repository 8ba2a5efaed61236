"""What a long step looks like: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from memwal.cli.progress import BarDisplay, JsonDisplay, LogDisplay
from memwal.run.process.logs import JsonLog
from memwal.testing.objects import ManualClock

MIB = 1024 * 1024


def show_bar(what: str, total: int, bytes_total: int, *done: tuple[int, int]) -> str:
    """The last frame of a bar, in plain text."""
    out = io.StringIO()
    now = iter(range(10_000))
    console = Console(file=out, force_terminal=True, width=140, color_system=None)
    console.get_time = lambda: float(next(now))
    bar = BarDisplay(console)
    bar.start(what, total, bytes_total)
    for count, bytes_done in done:
        bar.done(count, bytes_done)
    assert bar._bar is not None
    with console.capture() as captured:
        console.print(bar._bar.get_renderable())
    bar.stop()
    return captured.get()


def test_a_bar_counts_units_or_bytes_and_says_what_is_left() -> None:
    assert "shards" in (shown := show_bar("shards", 8, 0, (3, 0)))
    assert "3/8" in shown
    steps = [(1000 * n, n * MIB) for n in range(1, 7)]
    by_bytes = show_bar("rows", 9000, 9 * MIB, *steps)
    assert "6.0/9.0 MiB" in by_bytes and "0:00:0" in by_bytes
    assert "6000/?" in show_bar("rows", 0, 0, *steps)


def lines_of(display: LogDisplay, clock: ManualClock) -> None:
    """A step that goes on from 100 of 1000 rows, 10 a second."""
    display.start("rows", 1000, 500_000)
    for count in range(100, 1001, 50):
        display.done(count, count * 500)
        clock.advance(5)


def test_elsewhere_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    lines_of(LogDisplay(clock), clock)
    said = [line.split("[info] ")[1] for line in capsys.readouterr().err.splitlines()]
    assert len(said) == 3
    facts = "bytes_done=75000 bytes_total=500000 done=150 per_second=10 seconds_left=85 step=rows"
    assert set(said[0].split()) == {"going", "on", "total=1000", *facts.split()}


def test_the_same_as_objects() -> None:
    lines: list[str] = []
    clock = ManualClock()
    lines_of(JsonDisplay(JsonLog(lines.append), clock), clock)
    found = [json.loads(line) for line in lines]
    assert [line["message"] for line in found] == ["going on"] * 3
    assert found[1]["done"] == 450 and found[1]["seconds_left"] == 55
