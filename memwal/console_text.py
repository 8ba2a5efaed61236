"""Numbers and tables for people, as every command shows them."""

from __future__ import annotations

from rich.table import Table

from memwal.report import DONE, NOTHING_TO_DO

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


def one_line(text: str) -> str:
    """Text out of storage as it may go to a terminal: no line breaks, no control characters."""
    return "".join(c if c.isprintable() else " " for c in text)


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
