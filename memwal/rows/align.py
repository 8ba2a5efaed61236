"""Lines up the columns of a generation with those of the base table. Pure.

A generation is written under the schema of its day. Columns match by field id AND name: an id alone
is not enough, since `_tombstone` takes the id that the base gives to its next column, and a name
alone would bring a dropped column's values back into one that was added again (seen on pylance 14).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwal.errors import Refused
from memwal.format import layout
from memwal.model import ColumnInfo

_BLOB_TYPE = "extension<lance.blob.v2<BlobType>>"


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnSource:
    """Where one base column's values come from: a generation's column, or null (None)."""

    column: str
    source: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rename:
    """A base column whose field id the generation knows under another name.

    That is a rename, or an id that was freed and given out again. Only the table's history tells.
    """

    field_id: int
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """How to read a generation as base rows; `renames` must be confirmed before it is used."""

    columns: tuple[ColumnSource, ...]
    renames: tuple[Rename, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The generation's columns that are read, in base order."""
        return tuple(c.source for c in self.columns if c.source is not None)


def align(base: Sequence[ColumnInfo], generation: Sequence[ColumnInfo]) -> Alignment:
    """Match a generation's columns to the base's.

    Columns that the base has gained become null, columns that it has dropped are left out.
    Raises Refused for a changed type, and for a gained column that may not be null.
    """
    by_id = {c.field_id: c for c in generation if c.name != layout.TOMBSTONE}
    columns: list[ColumnSource] = []
    renames: list[Rename] = []
    for column in base:
        old = by_id.get(column.field_id)
        if old is None:
            columns.append(_fill_column(column))
            continue
        if old.name != column.name:
            renames.append(Rename(field_id=column.field_id, before=old.name, after=column.name))
        if _shape(old) != _shape(column):
            raise Refused(
                f"column {column.name!r} changed its type from {old.type_text} to "
                f"{column.type_text} since the generation was written; merge the generation with "
                "the old schema restored, or rewrite it"
            )
        columns.append(ColumnSource(column=column.name, source=old.name))
    return Alignment(columns=tuple(columns), renames=tuple(renames))


def _fill_column(column: ColumnInfo) -> ColumnSource:
    if not column.nullable:
        raise Refused(
            f"column {column.name!r} was added after the generation was written and may not be "
            "null, so the generation's rows have no value for it"
        )
    return ColumnSource(column=column.name, source=None)


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
