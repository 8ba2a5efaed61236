"""What shows of reports are built on: numbers, words and tables formatted for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from rich.table import Table
from rich.text import Text

from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, CheckpointReport, LeaseReport

Row = TypeVar("Row")

STYLE = {DONE: "green", NOTHING_TO_DO: "dim", PARTIAL: "yellow"}


def style_outcome(outcome: str) -> Text:
    """An outcome in its colour."""
    return Text(outcome, style=STYLE.get(outcome, "red"))


def format_size(value: int | None) -> str:
    """Bytes for people; `?` when unknown."""
    if value is None:
        return "?"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def format_count(value: int | None) -> str:
    """A count for people; `?` when unknown."""
    return "?" if value is None else f"{value:,}"


def format_generations(numbers: Iterable[int]) -> str:
    """`3-7, 9` for (3, 4, 5, 6, 7, 9); `-` for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "-"


def describe_lease(lease: LeaseReport) -> Text:
    """Who holds a table's lease, or who broke it."""
    why = f": {lease.reason}" if lease.reason else f" for {lease.job}"
    found = lease.airflow.describe() if lease.airflow else lease.run_id
    run = f" (run {found})" if found else ""
    ended = "; that process has ended, so the next run takes it over" if lease.ended else ""
    return Text(
        f"  lease: {lease.state} by {lease.holder}{why}{run}, since {lease.acquired_at} until "
        f"{lease.expires_at}{ended}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Column(Generic[Row]):
    """One column of a table: its heading, and the function that gives the cell for a row.

    A value that is an integer or None is shown as a count.
    """

    name: str
    value: Callable[[Row], str | Text | int | None]
    align: Literal["left", "right"] = "left"
    folds: bool = False


def words(name: str, value: Callable[[Row], str | Text]) -> Column[Row]:
    """Make a left-aligned column of words."""
    return Column(name=name, value=value)


def prose(name: str, value: Callable[[Row], str | Text]) -> Column[Row]:
    """Make a column of sentences, in which a long one wraps over several lines."""
    return Column(name=name, value=value, folds=True)


def numbers(name: str, value: Callable[[Row], str | Text | int | None]) -> Column[Row]:
    """Make a right-aligned column of numbers."""
    return Column(name=name, value=value, align="right")


def build_table(
    rows: Iterable[Row],
    columns: Sequence[Column[Row]],
    *,
    cut: Callable[[Row], Sequence[str | Text]] = lambda row: (),
) -> Table:
    """Build a table with a line for each row.

    If `cut` returns cells for a row, its line shows those and nothing else.
    """
    table = start_table()
    for column in columns:
        overflow: Literal["fold", "ellipsis"] = "fold" if column.folds else "ellipsis"
        table.add_column(
            column.name, justify=column.align, overflow=overflow, no_wrap=not column.folds
        )
    for row in rows:
        table.add_row(*(cut(row) or (_format_cell(column.value(row)) for column in columns)))
    return table


def start_table() -> Table:
    """Return an empty table in the style that all tables share."""
    return Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold dim")


def _format_cell(value: str | Text | int | None) -> str | Text:
    return format_count(value) if value is None or isinstance(value, int) else value


CHECKPOINTS: tuple[Column[CheckpointReport], ...] = (
    words("checkpoint", lambda found: found.name),
    words("state", lambda found: found.state),
    words("version", lambda found: str(found.version)),
    numbers("generations", lambda found: found.generations),
    words("made", lambda found: found.created_at or "-"),
    words("expires", lambda found: found.expires_at or "never"),
    prose("holder", lambda found: found.holder),
)
