"""Lines up the columns of a generation, or of a WAL entry, with those of the base table. Pure.

Rows are stored under the schema of their writer's day. Columns match by field id AND name: an id
alone is not enough, since `_tombstone` takes the id that the base gives to its next column, and a
name alone would bring a dropped column's values back into one that was added again. One that
matches in neither was added or dropped meanwhile, which Lance allows while rows wait: it is NULL,
or left out. All else is refused, as nothing tells what the values would be.

An id that no file of the base has is given out again, perhaps with the same name. So a column may
be another one than the one that the rows were written for, although both match: `reused`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from memwal.errors import Refused, Unsupported
from memwal.format import layout
from memwal.model import ColumnInfo

_BLOB_TYPE = "extension<lance.blob.v2<BlobType>>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Which of the base's columns rows have; those that they lack are NULL."""

    lacking: frozenset[str] = frozenset()

    def stored(self, columns: Iterable[str]) -> list[str]:
        """Of these columns, those that the rows have."""
        return [name for name in columns if name not in self.lacking]


def align(
    base: Sequence[ColumnInfo],
    stored: Sequence[ColumnInfo],
    what: str,
    reused: Collection[int] = (),
) -> Alignment:
    """Match the columns of rows that are stored to the base's. `what` they are: a generation.

    `reused` are the ids of fields that the base may have given out after the rows were written.
    Raises Refused for a column that the base has under another name, type or meaning, and for a
    gained one that may not be NULL; Unsupported for one that may be Lance's own: their names begin
    with an underscore, and one that is not known would be lost.
    """
    by_id = {c.field_id: c for c in stored if c.name != layout.TOMBSTONE}
    lacking = set()
    for column in base:
        old = by_id.pop(column.field_id, None)
        if old is None:
            if not column.nullable:
                raise _refuse_missing(column.name, what)
            lacking.add(column.name)
        elif old.name != column.name:
            raise _refuse_renamed(old.field_id, old.name, column.name, what)
        elif column.field_id in reused:
            raise _refuse_reused(column.name, what)
        elif _shape(old) != _shape(column):
            raise _refuse_type(column.name, old.type_text, column.type_text, what)
    for old in by_id.values():
        if layout.is_reserved(old.name):
            raise _refuse_column(old.name, what)
    return Alignment(lacking=frozenset(lacking))


def check_entry(
    fields: Iterable[tuple[int | None, str]],
    base: Sequence[ColumnInfo],
    what: str,
    reused: Collection[int] = (),
) -> None:
    """Check the columns of a WAL entry before a writer of pylance's replays it.

    That writer goes by ids, whatever the names, and leaves out what the table lacks. `fields` are
    ids and names; where the entry's writer left no id, the column goes by its name.
    Raises Refused and Unsupported as `align` does.
    """
    by_id = {column.field_id: column.name for column in base}
    for field_id, name in fields:
        if field_id is None:
            continue
        if by_id.get(field_id, name) != name:
            raise _refuse_renamed(field_id, name, by_id[field_id], what)
        if field_id in reused:
            raise _refuse_reused(name, what)
    for _, name in fields:
        if layout.is_reserved(name) and name not in by_id.values():
            raise _refuse_column(name, what)


def _refuse_column(name: str, what: str) -> Unsupported:
    return Unsupported(
        "MW-K11",
        f"the {what} has a column {name!r}, which the table lacks: a newer Lance may have added it "
        "for itself. Its values would be lost, so these rows are neither read nor merged",
    )


def _refuse_renamed(field_id: int, old: str, new: str, what: str) -> Refused:
    return Refused(
        "MW-K06",
        f"field {field_id} is {old!r} in the {what} and {new!r} in the table: it was renamed, or "
        "its id was given out again, while rows waited. If it was renamed, give the column its "
        f"former name (Lance's alter_columns), rescue what is in a WAL, merge, and rename it "
        f"with `memwal schema TABLE --rename {old}={new} --apply`. Else drop {new!r}, rescue, "
        "merge, and add it again",
    )


def _refuse_reused(name: str, what: str) -> Refused:
    return Refused(
        "MW-K12",
        f"column {name!r} was dropped and added again under the same field id, and the {what} may "
        f"have values of the former one. To leave these out, drop {name!r}, rescue what is in a "
        "WAL, merge, and add it",
    )


def _refuse_missing(name: str, what: str) -> Refused:
    return Refused(
        "MW-K07",
        f"column {name!r} may not be NULL, and the {what} was written before it was there. Let it "
        "be NULL (Lance's alter_columns), merge, update the rows without a value, and forbid "
        "NULL again",
    )


def _refuse_type(name: str, old: str, new: str, what: str) -> Refused:
    change = f"has the type {old} in the {what} and {new} in the table"
    if old == new:
        change = f"of type {new} has other members in the {what} than in the table"
    return Refused(
        "MW-K08",
        f"column {name!r} {change}: values are never converted on their way. Restore a version of "
        "the table from before the change, merge, and change the type with `memwal schema`",
    )


def _shape(column: ColumnInfo) -> tuple[object, ...]:
    """A type with its nested fields' ids and names: those can be dropped and re-added too.

    A blob's nested fields are Lance's own, and a generation has fewer of them than the base.
    """
    if column.type_text == _BLOB_TYPE:
        return (column.type_text,)
    return (
        column.type_text,
        tuple((c.field_id, c.name, _shape(c)) for c in column.children),
    )
