"""Numbers and tables for people, as every command shows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from memwal.report import DONE, NOTHING_TO_DO
from memwal.text import one_line

STYLE = {DONE: "green", NOTHING_TO_DO: "dim", "partial": "yellow"}


def size_text(value: int | None) -> str:
    """Bytes for people; `?` when unknown."""
    if value is None:
        return "?"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def age_text(seconds: float | None) -> str:
    """A time span for people, in its largest fitting unit; `?` when unknown."""
    if seconds is None:
        return "?"
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def count_text(value: int | None) -> str:
    """A count for people; `?` when unknown."""
    return "?" if value is None else f"{value:,}"


def generations_text(numbers: tuple[int, ...]) -> str:
    """`3-7, 9` for (3, 4, 5, 6, 7, 9); `-` for none."""
    if not numbers:
        return "-"
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Terminal(Console):
    """A console that shows every text on one line, escaped, and takes no markup out of it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, emoji=False, markup=False, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A plain text: what is printed, or stands in a table's cell."""
        return super().render_str(one_line(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Anything else, down to the styled texts in it."""
        if isinstance(renderable, Text) and not renderable.plain.isprintable():
            renderable = _escaped(renderable)
        return super().render(renderable, options)


def _escaped(text: Text) -> Text:
    pieces = text.divide(range(1, len(text)))
    for piece in pieces:
        piece.plain = one_line(piece.plain)
    return Text("", end=text.end, style=text.style).join(pieces)


def grid_of(*columns: str) -> Table:
    """An empty table with these columns; words to the left, numbers to the right."""
    grid = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold dim")
    for column in columns:
        grid.add_column(column, justify="left" if column in _LEFT else "right", no_wrap=True)
    return grid


_LEFT = {
    "",
    "method",
    "action",
    "kind",
    "path",
    "table",
    "reason",
    "shard",
    "status",
    "pending",
    "index",
    "outcome",
    "join",
    "oldest pending",
    "finished",
    "job",
    "engine",
    "what",
}
