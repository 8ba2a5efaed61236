"""The schema job's part of the document: columns, changes, and rows that wait."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table
from memwal.report import Section, TableReport
from memwal.text import count_of


class ColumnReport(Section):
    """A column. `default`, in JSON, is what rows get that have no value."""

    name: str
    type: str
    nullable: bool
    field_id: int
    default: str | None = None
    indexes: tuple[str, ...] = ()


class ChangeReport(Section):
    """A change that was asked for and was not made before; `done` in this run."""

    kind: str
    column: str
    what: str
    done: bool = False


class WaitingReport(Section):
    """A generation of another schema: what becomes of it, and why it is stuck if it is."""

    shard_id: str
    generation: int
    becomes: str
    error: str | None = None


class SchemaTableReport(TableReport):
    """One table's columns, as they are after this run, and what it did.

    `rebuilt` are indexes over changed columns, which are built again.
    """

    columns: tuple[ColumnReport, ...] = ()
    changes: tuple[ChangeReport, ...] = ()
    waiting: tuple[WaitingReport, ...] = ()
    rebuilt: tuple[str, ...] = ()
    rows_rewritten: int = 0
    bytes_written: int = 0
    warnings: tuple[str, ...] = ()

    SUMMARISED = ("rows_rewritten", "bytes_written")


_COLUMNS: Sequence[Column[ColumnReport]] = (
    Column(name="column", value=lambda c: c.name),
    Column(name="type", value=lambda c: c.type),
    Column(name="NULL", value=lambda c: "yes" if c.nullable else "no"),
    Column(name="id", value=lambda c: c.field_id),
    Column(name="default", value=lambda c: c.default or ""),
    Column(name="indexes", value=lambda c: ", ".join(c.indexes)),
)


def show_table(report: SchemaTableReport) -> list[RenderableType]:
    """Render the columns, the changes, and each generation that has other columns."""
    parts: list[RenderableType] = [build_table(report.columns, _COLUMNS)]
    for change in report.changes:
        mark = "done" if change.done else "would"
        parts.append(
            Text(f"  {mark}: {change.kind} {change.column} {change.what}".replace("  ", " "))
        )
    if report.rebuilt:
        parts.append(Text(f"  built again: {', '.join(report.rebuilt)}"))
    if report.rows_rewritten:
        parts.append(Text(f"  rewrote {count_of(report.rows_rewritten, 'value')}"))
    for one in report.waiting:
        text = f"  shard {one.shard_id}, generation {one.generation}: {one.error or one.becomes}"
        parts.append(Text(text, style="red" if one.error else ""))
    if any(not change.done for change in report.changes):
        parts.append(Text("  --apply makes these changes"))
    return parts
