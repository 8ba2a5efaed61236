"""What people see of `memwal top`: the screen, and the same printed once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from memwal.grid import format_count, format_size, start_table
from memwal.jobs.top.plan import Asked, Row, Seen
from memwal.text import count_of, format_age, one_line

FRAME_LINES = 3
"""What `show_screen` has above the rows, and below them."""
_NAME_WIDTH_MIN = 12
_LAST_WIDTH_MIN = 16
_GAP = 2


class _Column(NamedTuple):
    name: str
    text: Callable[[Row], str]
    align: Literal["left", "right"] = "right"


_COLUMNS = (
    _Column("table", lambda row: one_line(row.table), "left"),
    _Column("pending", lambda row: format_count(row.pending_generations)),
    _Column("bytes", lambda row: format_size(row.pending_bytes)),
    _Column("lag", lambda row: format_age(row.lag_seconds)),
    _Column("target", lambda row: format_age(row.freshness_seconds)),
    _Column("index", lambda row: format_count(row.index_lag_generations)),
    _Column("rows/s", lambda row: _format_rate(row.rows_per_second)),
    _Column("garbage", lambda row: format_size(row.reclaimable_bytes)),
    _Column("queue", lambda row: "-" if row.queue is None else str(row.queue)),
    _Column("running", lambda row: one_line(_describe_run(row)), "left"),
)
# Where a screen has no room for all of them, these are left out, the first first.
_LEFT_OUT = ("target", "garbage", "index", "bytes", "queue", "rows/s", "pending")


def show_once(rows: Sequence[Row], seen: Seen) -> Iterator[RenderableType]:
    """Render all rows, and what they come to."""
    yield _build(rows, _COLUMNS)
    yield _describe(seen)


def show_screen(
    rows: Sequence[Row], seen: Seen, asked: Asked, *, width: int, lines: int
) -> Iterator[RenderableType]:
    """Render a screen of this width, with `lines` for rows of tables."""
    first = max(0, min(asked.first, len(rows) - lines))
    shown = rows[first : first + lines]
    yield _cut(_describe(seen), width)
    yield _build(shown, _choose_columns(shown, width), width)
    yield from [Text()] * (lines - len(shown))
    place = f"{first + 1}-{first + len(shown)} of {len(rows)}" if shown else "no table"
    typed = f"/{one_line(asked.text)}" + ("_" if asked.typing else "")
    keys = [
        place,
        "Enter ends, Esc clears" if asked.typing else "q quit",
        f"s sort: {asked.sort}",
        "r reverse" + ("d" if asked.reverse else ""),
        f"filter: {typed}" if asked.text or asked.typing else "/ filter",
        "j k Space page",
    ]
    yield _cut(Text("  ".join(keys), style="reverse"), width)


def _describe(seen: Seen) -> Text:
    late = sum(row.is_late for row in seen.rows)
    wrong = sum(row.error is not None for row in seen.rows)
    told = [count_of(len(seen.rows), "table")]
    told += [f"{late} late"] * bool(late) + [f"{wrong} with an error"] * bool(wrong)
    told.append(f"{_format_rate(seen.rows_per_second)} rows/s merged")
    whose = "looks make " if seen.source is None else ""
    told.append(f"{whose}{_format_rate(seen.requests_per_second)} requests/s")
    told += [] if seen.dollars is None else [f"${seen.dollars:,.2f} a month"]
    found = Text(style="bold")
    if seen.problem is not None:
        found.append(f"{one_line(str(seen.problem))}; before that: ", style="red")
    elif seen.source is not None:
        found.append(f"{one_line(seen.source)}: ")
    return found.append(", ".join(told))


def _choose_columns(rows: Sequence[Row], width: int) -> list[_Column]:
    columns = list(_COLUMNS)
    for name in _LEFT_OUT:
        if _measure(rows, columns) + _NAME_WIDTH_MIN + _LAST_WIDTH_MIN <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _measure(rows: Sequence[Row], columns: Sequence[_Column]) -> int:
    """The width of all columns but the first and the last, with the gaps."""
    return sum(_GAP + _find_width(rows, column) for column in columns[1:-1]) + _GAP


def _find_width(rows: Sequence[Row], column: _Column) -> int:
    return max(Text(text).cell_len for text in (column.name, *map(column.text, rows)))


def _build(rows: Sequence[Row], columns: Sequence[_Column], width: int | None = None) -> Table:
    """A line a row. The first and the last column share what the others leave of the width."""
    table = start_table()
    widths: dict[str, int] = {}
    if width is not None:
        left = max(0, width - _measure(rows, columns))
        room = max(left - _LAST_WIDTH_MIN, min(left - 1, _NAME_WIDTH_MIN), 1)
        widths["table"] = min(_find_width(rows, columns[0]), room)
        widths["running"] = max(left - widths["table"], 1)
    for column in columns:
        fits = width is not None or column is not columns[-1]  # else an error goes on below
        table.add_column(
            column.name, justify=column.align, no_wrap=fits, width=widths.get(column.name)
        )
    for row in rows:
        table.add_row(*(column.text(row) for column in columns), style=_choose_style(row))
    return table


def _choose_style(row: Row) -> str:
    if row.error is not None:
        return "red"
    return "yellow" if row.is_late else ""


def _describe_run(row: Row) -> str:
    if row.error is not None:
        return row.error
    if row.running is None:
        return f"needs {', '.join(row.needs)}" if row.needs else "-"
    holder = f" by {row.holder}" if row.holder else ""
    return f"{row.running} for {format_age(row.running_seconds)}{holder}"


def _format_rate(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text
