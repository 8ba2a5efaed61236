"""What the screen of `top` looks like, at any size and whatever tables are called."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

import pytest
from rich.console import Group
from rich.text import Text

from memwal.cli.console import Terminal
from memwal.errors import StoreUnavailable
from memwal.jobs.top.plan import Asked, Row, Seen
from memwal.jobs.top.show import FRAME_LINES, show_screen

ROWS = [
    Row(
        table=f"lake_{n:03}",
        pending_generations=n,
        pending_bytes=n * 1_000_000,
        oldest_pending_seconds=float(n),
        freshness_seconds=60.0,
        index_lag_generations=0,
        rows_per_second=n / 3,
        reclaimable_bytes=0,
        queue=n,
        running="merge",
        holder="anna@host:7",
        running_seconds=3.0,
    )
    for n in range(100)
]


def draw(
    rows: Sequence[Row],
    asked: Asked = Asked(),  # noqa: B008
    *,
    width: int = 120,
    lines: int = 10,
    seen: Seen | None = None,
) -> list[str]:
    console = Terminal(file=StringIO(), width=width, height=lines + FRAME_LINES)
    seen = seen or Seen(rows=rows)
    console.print(Group(*show_screen(rows, seen, asked, width=width, lines=lines)))
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(("width", "lines"), [(30, 10), (65, 200), (149, 1)])
def test_it_fills_the_screen_and_no_more(width: int, lines: int) -> None:
    drawn = draw(ROWS, width=width, lines=lines)
    assert len(drawn) == lines + FRAME_LINES
    assert max(Text(line).cell_len for line in drawn) <= width
    assert all(line.startswith("lake_") for line in drawn[2 : 2 + min(lines, 100)])


def test_a_narrow_screen_keeps_what_matters_most() -> None:
    assert draw(ROWS)[1].split() == [
        "table", "pending", "bytes", "lag", "target", "index", "rows/s", "garbage", "queue",
        "running",
    ]  # fmt: skip
    narrow = draw(ROWS, width=60)
    assert narrow[1].split() == ["table", "pending", "lag", "rows/s", "queue", "running"]
    assert narrow[-2].split()[:4] == ["lake_009", "9", "9", "s"]


def test_the_last_line_has_the_place_and_the_keys() -> None:
    assert draw(ROWS)[-1] == (
        "1-10 of 100  q quit  s sort: lag  r reverse  / filter  j k Space page"
    )
    assert draw(ROWS, Asked(first=95))[-1].startswith("91-100 of 100")
    assert draw([])[-1].startswith("no table  q quit")
    typing = draw(ROWS[:1], Asked(text="ake", typing=True, reverse=True))[-1]
    assert typing == (
        "1-1 of 1  Enter ends, Esc clears  s sort: lag  r reversed  filter: /ake_  j k Space page"
    )


def test_names_and_errors_do_nothing_to_the_terminal() -> None:
    odd = "evil\x1b[2J\n\u202e"
    away = StoreUnavailable(odd)
    rows = [Row(table=odd, error=odd, cause=away), Row(table="[red]b", running=odd)]
    for text in (
        *draw(rows, Asked(text=odd), seen=Seen(rows=rows, source=odd, problem=away)),
        *draw(rows, seen=Seen(rows=rows, source=odd)),
    ):
        assert text.isprintable()
    drawn = draw(rows)
    assert drawn[2].startswith("evil\\x1b[2J\\n\\u202e")
    assert drawn[3].startswith("[red]b")


def test_what_is_wrong_comes_first() -> None:
    late = Row(table="late", oldest_pending_seconds=9.0, freshness_seconds=5.0)
    rows = [late, Row(table="b", error="SEALED")]
    head = draw(rows, seen=Seen(rows=rows, requests_per_second=0.25))[0]
    assert head == "2 tables, 1 late, 1 with an error, ? rows/s merged, looks make 0.2 requests/s"
    dollars = Seen(source="http://there", requests_per_second=12.0, dollars=1234.5)
    head = "http://there: 0 tables, ? rows/s merged, 12 requests/s, $1,234.50 a month"
    assert draw(ROWS, seen=dollars)[0] == head
    away = Seen(source="http://there", problem=StoreUnavailable("http://there: refused"))
    assert draw([], seen=away)[0].startswith("http://there: refused; before that: 0 tables")
