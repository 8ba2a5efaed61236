"""What `schema` reports of a table, and what people see of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, format_size, numbers, words
from memwal.jobs.schema.apply import Altered
from memwal.jobs.schema.plan import SchemaPlan
from memwal.model import ColumnInfo, ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, AuditItem, Section, TableReport
from memwal.text import count_of


class ColumnReport(Section):
    """A column, or with a dot in its name a member of one. `default` is JSON."""

    name: str
    type: str
    nullable: bool
    field_id: int
    default: str | None = None
    former_types: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()


class PendingReport(Section):
    """A generation of an earlier schema, and what becomes of its rows when they are merged or read.

    `converted`, `null`, `default` and `dropped` are columns. `stuck` is why none of them is taken,
    and what gets it going.
    """

    shard_id: str
    generation: int
    converted: tuple[str, ...] = ()
    null: tuple[str, ...] = ()
    default: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    stuck: str | None = None


class SchemaTableReport(TableReport):
    """One table's columns, as they are at the end. `steps` are the changes: made, or to be made.

    `indexes_rebuilt` were dropped for them and built again, or will be. `unflushed` are shards with
    rows in the WAL that no generation has; of the schema before, `memwal rescue` flushes them.
    """

    columns: tuple[ColumnReport, ...] = ()
    steps: tuple[str, ...] = ()
    applied: bool = False
    commits: int = 0
    conflicts: int = 0
    rows_rewritten: int = 0
    bytes_rewritten: int = 0
    indexes_rebuilt: tuple[str, ...] = ()
    pending: tuple[PendingReport, ...] = ()
    unflushed: tuple[str, ...] = ()
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
    pending: Iterable[PendingReport],
    unflushed: Sequence[ShardId],
    fenced: Sequence[ShardId] = (),
    owed: Sequence[str] = (),
) -> SchemaTableReport:
    """The report of a table; `done` is None where nothing was to be applied."""
    works = plan.has_work or bool(owed)
    worked = done is not None and bool(done.commits or done.indexes)
    doomed = [n for i in sorted(plan.touched) for n in indexes.get(i, ())]
    return SchemaTableReport(
        table=name,
        outcome=DONE if worked or (done is None and works) else NOTHING_TO_DO,
        version_before=before,
        version_after=view.version,
        columns=tuple(_list_columns(view.columns, indexes, "")),
        steps=plan.steps,
        applied=done is not None,
        commits=0 if done is None else done.commits,
        conflicts=0 if done is None else done.conflicts,
        rows_rewritten=0 if done is None else done.written.rows,
        bytes_rewritten=0 if done is None else done.written.bytes,
        indexes_rebuilt=tuple(dict.fromkeys((*owed, *doomed))) if done is None else done.indexes,
        pending=tuple(pending),
        unflushed=tuple(unflushed),
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
            default=column.default,
            former_types=column.former_types,
            indexes=tuple(indexes.get(column.field_id, ())),
        )
        yield from _list_columns(column.children, indexes, f"{above}{column.name}.")


COLUMNS: tuple[Column[ColumnReport], ...] = (
    words("column", lambda c: c.name),
    words("type", lambda c: c.type),
    words("null", lambda c: "" if c.nullable else "not null"),
    numbers("field", lambda c: c.field_id),
    words("default", lambda c: c.default or ""),
    words("indexes", lambda c: ", ".join(c.indexes)),
)


def show_table(report: SchemaTableReport) -> list[RenderableType]:
    """Render the columns, the changes, and what is on the way."""
    parts: list[RenderableType] = []
    if report.columns:
        parts.append(build_table(report.columns, COLUMNS))
    word = "done" if report.applied else "to do, with --apply"
    parts += [Text(f"  {word}: {step}") for step in report.steps]
    if report.indexes_rebuilt:
        parts.append(Text(f"  {word}: build again {', '.join(report.indexes_rebuilt)}"))
    if report.commits:
        size = format_size(report.bytes_rewritten)
        rows = count_of(report.rows_rewritten, "row")
        parts.append(Text(f"  {count_of(report.commits, 'commit')}, {rows} written anew, {size}"))
    for one in report.pending:
        parts.append(Text(f"  shard {one.shard_id}, generation {one.generation}: {_tell(one)}"))
    parts += [
        Text(f"  shard {shard} has rows in its WAL: its writer flushes them, or `memwal rescue`")
        for shard in report.unflushed
    ]
    parts += [Text(f"  shard {shard}: its writer is fenced, and has to be opened again")
              for shard in report.fenced]  # fmt: skip
    parts += [Text(f"  warning: {text}", style="yellow") for text in report.warnings]
    return parts


def _tell(one: PendingReport) -> str:
    if one.stuck is not None:
        return f"stuck: {one.stuck}"
    found = {
        "converted": one.converted,
        "NULL": one.null,
        "default where NULL": one.default,
        "left out": one.dropped,
    }
    return "; ".join(f"{word} {', '.join(names)}" for word, names in found.items() if names)
