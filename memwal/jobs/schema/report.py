"""What `schema` reports of a table, and what people see of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_size, numbers, words
from memwal.jobs.schema.apply import Altered
from memwal.jobs.schema.plan import SchemaPlan, Unrest
from memwal.model import ColumnInfo, ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, AuditItem, Section, TableReport
from memwal.text import count_of


class ColumnReport(Section):
    """A column, or with a dot in its name a member of one."""

    name: str
    type: str
    nullable: bool
    field_id: int
    indexes: tuple[str, ...] = ()


class SchemaTableReport(TableReport):
    """One table's columns, as they are at the end. `steps` are the changes: made, or to be made.

    `indexes_dropped` go with their columns, or were built by others meanwhile. Shards that are
    `in_the_way` are not at rest; `pending` generations are merged first.
    """

    columns: tuple[ColumnReport, ...] = ()
    steps: tuple[str, ...] = ()
    applied: bool = False
    commits: int = 0
    conflicts: int = 0
    rows_rewritten: int = 0
    bytes_rewritten: int = 0
    indexes_dropped: tuple[str, ...] = ()
    pending: int = 0
    in_the_way: tuple[Unrest, ...] = ()
    fenced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("commits", "rows_rewritten", "bytes_rewritten")

    def audited(self) -> Iterable[AuditItem]:
        """The commit."""
        if self.commits:
            yield AuditItem(
                action="rewrite",
                kind="schema",
                path="data",
                bytes=self.bytes_rewritten,
                version=self.version_after,
                reason="; ".join(self.steps),
                done=True,
            )


def report_schema(
    name: str,
    before: int,
    view: TableView,
    plan: SchemaPlan,
    done: Altered | None,
    *,
    indexes: Mapping[int, Sequence[str]],
    doomed: Sequence[str],
    unrest: Sequence[Unrest],
    fenced: Sequence[ShardId] = (),
) -> SchemaTableReport:
    """The report of a table; `done` is None where nothing was to be applied."""
    worked = plan.has_work if done is None else bool(done.commits)
    return SchemaTableReport(
        table=name,
        outcome=DONE if worked else NOTHING_TO_DO,
        version_before=before,
        version_after=view.version,
        columns=tuple(_list_columns(view.columns, indexes, "")),
        steps=plan.steps,
        applied=done is not None,
        commits=0 if done is None else done.commits,
        conflicts=0 if done is None else done.conflicts,
        rows_rewritten=0 if done is None else done.written.rows,
        bytes_rewritten=0 if done is None else done.written.bytes,
        indexes_dropped=tuple(doomed),
        pending=sum(len(shard.pending) for shard in view.shards) if plan.has_work else 0,
        in_the_way=tuple(unrest),
        fenced=tuple(fenced),
        warnings=plan.warnings,
    )


def _list_columns(
    columns: Sequence[ColumnInfo], indexes: Mapping[int, Sequence[str]], above: str
) -> Iterable[ColumnReport]:
    for column in columns:
        yield ColumnReport(
            name=f"{above}{column.name}",
            type=column.type_text,
            nullable=column.nullable,
            field_id=column.field_id,
            indexes=tuple(indexes.get(column.field_id, ())),
        )
        yield from _list_columns(column.children, indexes, f"{above}{column.name}.")


COLUMNS: tuple[Column[ColumnReport], ...] = (
    words("column", lambda c: c.name),
    words("type", lambda c: c.type),
    words("null", lambda c: "" if c.nullable else "not null"),
    numbers("field", lambda c: c.field_id),
    words("indexes", lambda c: ", ".join(c.indexes)),
)


def show_table(report: SchemaTableReport) -> list[RenderableType]:
    """Render the columns, the changes, and what is on the way."""
    parts: list[RenderableType] = []
    if report.columns:
        parts.append(build_table(report.columns, COLUMNS))
    word = "done" if report.applied else "to do, with --apply"
    parts += [Text(f"  {word}: {step}") for step in report.steps]
    parts += [Text(f"  {word}: drop index {name}") for name in report.indexes_dropped]
    if report.commits:
        size = format_size(report.bytes_rewritten)
        rows = count_of(report.rows_rewritten, "row")
        parts.append(Text(f"  {count_of(report.commits, 'commit')}, {rows} written anew, {size}"))
    if report.pending and not report.applied:
        parts.append(Text(f"  first: merge {count_of(report.pending, 'generation')}"))
    parts += [
        Text(f"  in the way: shard {one.shard_id}: {one.detail}; close its writer, or --fence")
        for one in report.in_the_way
    ]
    parts += [Text(f"  shard {shard}: its writer is fenced, and has to be opened again")
              for shard in report.fenced]  # fmt: skip
    parts += [Text(f"  warning: {text}", style="yellow") for text in report.warnings]
    return parts
