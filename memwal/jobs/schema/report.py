"""What `schema` reports of a table, and what people see of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.grid import Column, build_table, format_size, numbers, words
from memwal.jobs.schema.apply import Altered
from memwal.jobs.schema.plan import Unrest
from memwal.model import ColumnInfo, ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, AuditItem, Section, TableReport, describe_error
from memwal.text import count_of

_LATE = "the columns are changed: drop indexes that were built over them meanwhile"


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
        """The claims, and the commits."""
        for shard in self.fenced:
            path = layout.shard_folder(ShardId(shard))
            yield AuditItem(action="claim", kind="shard", path=path, shard_id=shard, done=True)
        if not self.commits:
            return
        for name in self.indexes_dropped:
            yield AuditItem(action="drop", kind="index", path="_indices", reason=name, done=True)
        yield AuditItem(
            action="rewrite",
            kind="schema",
            path="data",
            bytes=self.bytes_rewritten,
            version=self.version_after,
            reason="; ".join(self.steps),
            done=self.applied,
        )


def report_schema(
    name: str,
    before: int,
    done: Altered,
    fenced: Collection[ShardId],
    *,
    acts: bool = True,
    view: TableView | None = None,
    indexes: Mapping[int, Sequence[str]] | None = None,
    unrest: Sequence[Unrest] = (),
    error: MemWalError | None = None,
) -> SchemaTableReport:
    """The report of a table; unless it `acts`, `done` has what would be done.

    There is no view of a table that failed with the `error` after something was done.
    """
    plan = done.plan
    worked = bool(done.commits) if acts else plan.has_work
    waiting = view.shards if view is not None and plan.has_work else ()
    late = (_LATE,) if error is not None and done.applied else ()
    return SchemaTableReport(
        table=name,
        **describe_error(error, DONE if worked else NOTHING_TO_DO),
        cause=error,
        version_before=before,
        version_after=None if view is None else view.version,
        columns=() if view is None else tuple(_list_columns(view.columns, indexes or {}, "")),
        steps=plan.steps,
        applied=done.applied,
        commits=done.commits,
        conflicts=done.conflicts,
        rows_rewritten=done.written.rows,
        bytes_rewritten=done.written.bytes,
        indexes_dropped=done.dropped,
        pending=sum(len(shard.pending) for shard in waiting),
        in_the_way=tuple(unrest),
        fenced=tuple(fenced),
        warnings=(*plan.warnings, *late),
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
    told = ("to do, with --apply", "done")
    parts += [Text(f"  {told[report.applied]}: {step}") for step in report.steps]
    dropped = told[report.commits > 0]
    parts += [Text(f"  {dropped}: drop index {name}") for name in report.indexes_dropped]
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
    return parts
