"""Lines up the columns of a generation with those of the base table. Pure.

A generation is written under the schema of its day. Columns match by field id AND name: an id alone
is not enough, since `_tombstone` takes the id that the base gives to its next column, and a name
alone would bring a dropped column's values back into one that was added again (seen on pylance 14).

A column that the base lacks was dropped from it, or is Lance's own, whose names begin with an
underscore. One of these that is not known (a later Lance adds `__wal_row_id`) tells something of
the rows that would be lost. So that such a column was dropped has to be proven by history, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memwal.errors import Refused, Unsupported
from memwal.format import layout
from memwal.model import ColumnInfo

_BLOB_TYPE = "extension<lance.blob.v2<BlobType>>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rename:
    """A base column whose field id the generation knows under another name.

    That is a rename, or an id that was freed and given out again. Only the table's history tells.
    `after` is None for a column that the base lacks, and that may be Lance's own.
    """

    field_id: int
    before: str
    after: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """How to read a generation as base rows; `renames` must be confirmed before it is used.

    `columns` maps each base column to the generation's column of its values; None means null.
    """

    columns: Mapping[str, str | None]
    renames: tuple[Rename, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The generation's columns that are read, in base order."""
        return tuple(self.sources_of(self.columns))

    def sources_of(self, columns: Iterable[str]) -> list[str]:
        """The generation's columns for these base columns, without those that it lacks."""
        return [source for name in columns if (source := self.columns[name]) is not None]

    def check_renames(self, is_proven: Callable[[Rename], bool], what: str) -> None:
        """Raise Refused for a rename that the table's history does not prove.

        Raises Unsupported for a column that may be Lance's own, and that the table never had.
        """
        for rename in self.renames:
            if is_proven(rename):
                continue
            if rename.after is None:
                raise refuse_column(rename.before, what)
            raise Refused(
                "MW-K06",
                f"field {rename.field_id} is {rename.before!r} in the {what} and {rename.after!r} "
                "in the table, and no retained version shows that it was renamed rather than "
                "dropped and its id used again",
            )


def refuse_column(name: str, what: str) -> Unsupported:
    """The error for a column that may be Lance's own, and that this build doesn't know."""
    return Unsupported(
        "MW-K11",
        f"the {what} has a column {name!r}, which no retained version of the table has: a newer "
        "Lance may have added it for itself. Its values would be lost, so these rows are neither "
        "read nor merged",
    )


def align(base: Sequence[ColumnInfo], generation: Sequence[ColumnInfo]) -> Alignment:
    """Match a generation's columns to the base's.

    Columns that the base has gained become null, columns that it has dropped are left out; where
    their names may be Lance's own, `renames` has them.
    Raises Refused for a changed type, and for a gained column that may not be null.
    """
    by_id = {c.field_id: c for c in generation if c.name != layout.TOMBSTONE}
    columns: dict[str, str | None] = {}
    renames: list[Rename] = []
    for column in base:
        old = by_id.get(column.field_id)
        if old is None:
            if not column.nullable:
                raise Refused(
                    "MW-K07",
                    f"column {column.name!r} was added after the generation was written and may "
                    "not be null, so the generation's rows have no value for it",
                )
            columns[column.name] = None
            continue
        if old.name != column.name:
            renames.append(Rename(field_id=column.field_id, before=old.name, after=column.name))
        if _shape(old) != _shape(column):
            raise Refused(
                "MW-K08",
                f"column {column.name!r} changed its type from {old.type_text} to "
                f"{column.type_text} since the generation was written; merge the generation with "
                "the old schema restored, or rewrite it",
            )
        columns[column.name] = old.name
    ids = {column.field_id for column in base}
    renames += (
        Rename(field_id=field_id, before=column.name, after=None)
        for field_id, column in by_id.items()
        if field_id not in ids and layout.is_reserved(column.name)
    )
    return Alignment(columns=columns, renames=tuple(renames))


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
