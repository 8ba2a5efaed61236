"""Lines up the columns of a generation with those of the base table. Pure.

A generation is written under the schema of its day. Columns match by field id AND name: an id alone
is not enough, since `_tombstone` takes the id that the base gives to its next column, and a name
alone would bring a dropped column's values back into one that was added again (seen on pylance 14).
Members of structs and lists match in the same way.

An id is given out again, too, perhaps with the same name. So another type is converted only where
the base's column says that it had it (`ColumnInfo.former_types`): `memwal schema` writes that down.

A column that the base lacks was dropped from it, or is Lance's own, whose names begin with an
underscore. One of these that is not known (a later Lance adds `__wal_row_id`) tells something of
the rows that would be lost. So that such a column was dropped has to be proven by history, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from memwal.errors import Refused, Unsupported
from memwal.format import layout
from memwal.model import ColumnInfo
from memwal.rows.convert import Change
from memwal.rows.widen import is_exact

_LISTS = ("list", "large_list", "fixed_size_list")
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

    `columns` maps each base column to the generation's column of its values; None means null, or
    the default. `changes` has the columns whose values are converted, `defaults` those that have
    another value for NULL, as JSON.
    """

    columns: Mapping[str, str | None]
    renames: tuple[Rename, ...] = ()
    changes: Mapping[str, Change] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)

    @property
    def drifted(self) -> frozenset[str]:
        """The columns that a predicate on the generation itself would judge wrongly."""
        renamed = (name for name, source in self.columns.items() if name != source)
        return frozenset((*renamed, *self.changes, *self.defaults))

    @property
    def sources(self) -> tuple[str, ...]:
        """The generation's columns that are read, in base order."""
        return tuple(self.sources_of(self.columns))

    def sources_of(self, columns: Iterable[str]) -> list[str]:
        """The generation's columns for these base columns, without those that it lacks."""
        return [source for name in columns if (source := self.columns[name]) is not None]

    def check_keys(self, primary_key: Iterable[str]) -> None:
        """Raise Refused for a key that was converted: rows are told apart by what is stored."""
        for name in primary_key:
            if name in self.changes or name in self.defaults:
                raise Refused("MW-K08", f"column {name!r} is of the key and changed its type")

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

    Columns that the base has gained become null or their default, columns that it has dropped are
    left out; where their names may be Lance's own, `renames` has them.
    Raises Refused for a changed type that can't be converted exactly, and for a gained column that
    may not be null and has no default.
    """
    by_id = {c.field_id: c for c in generation if c.name != layout.TOMBSTONE}
    columns: dict[str, str | None] = {}
    renames: list[Rename] = []
    changes: dict[str, Change] = {}
    for column in base:
        old = by_id.get(column.field_id)
        if old is None:
            if not column.nullable and column.default is None:
                raise Refused(
                    "MW-K07",
                    f"column {column.name!r} was added after the generation was written and may "
                    "not be null, so the generation's rows have no value for it; `memwal schema "
                    f"TABLE --require {column.name} --default {column.name}=VALUE` gives them one",
                )
            columns[column.name] = None
            continue
        columns[column.name] = old.name
        renames += _find_rename(column, old)
        if (change := _find_change(column, old, renames)) is not None:
            changes[column.name] = change
    ids = {column.field_id for column in base}
    renames += (
        Rename(field_id=field_id, before=column.name, after=None)
        for field_id, column in by_id.items()
        if field_id not in ids and layout.is_reserved(column.name)
    )
    return Alignment(
        columns=columns,
        renames=tuple(renames),
        changes=changes,
        defaults={c.name: c.default for c in base if c.default is not None},
    )


def names_of(columns: Iterable[ColumnInfo]) -> dict[int, str]:
    """Each field's name by its id, members too."""
    found: dict[int, str] = {}
    for column in columns:
        found |= {column.field_id: column.name, **names_of(column.children)}
    return found


def _find_rename(column: ColumnInfo, old: ColumnInfo) -> list[Rename]:
    if old.name == column.name:
        return []
    return [Rename(field_id=column.field_id, before=old.name, after=column.name)]


def _find_change(column: ColumnInfo, old: ColumnInfo, renames: list[Rename]) -> Change | None:
    """How the old column's values become the new one's; None: as they are. Adds to `renames`."""
    if _shape(old) == _shape(column):
        return None
    kinds = _kind(column), _kind(old)
    if kinds == ("struct", "struct") and column.children:
        return _change_struct(column, old, renames)
    is_list = kinds[0] == kinds[1] or kinds == ("large_list", "list")
    if is_list and kinds[0] in _LISTS and len(column.children) == len(old.children) == 1:
        if kinds[0] == "fixed_size_list" and _list_size(column) != _list_size(old):
            raise _refuse_type(column, old)
        item = _find_change(column.children[0], old.children[0], renames)
        return Change(members=((0, item),))
    if old.type_text in column.former_types and is_exact(old.type_text, column.type_text):
        return Change()
    raise _refuse_type(column, old)


def _change_struct(column: ColumnInfo, old: ColumnInfo, renames: list[Rename]) -> Change:
    places = {child.field_id: place for place, child in enumerate(old.children)}
    members: list[tuple[int | None, Change | None]] = []
    for child in column.children:
        place = places.get(child.field_id)
        if place is None:
            if not child.nullable:
                raise _refuse_type(column, old)
            members.append((None, None))
            continue
        renames += _find_rename(child, old.children[place])
        members.append((place, _find_change(child, old.children[place], renames)))
    return Change(members=tuple(members))


def _refuse_type(column: ColumnInfo, old: ColumnInfo) -> Refused:
    return Refused(
        "MW-K08",
        f"column {column.name!r} changed its type from {old.type_text} to {column.type_text} since "
        "the generation was written, and it is not known that its values are the same in that "
        f"type; `memwal schema TABLE --widen {column.name}=TYPE` gives it one that holds them",
    )


def _kind(column: ColumnInfo) -> str:
    return column.type_text.partition("<")[0]


def _list_size(column: ColumnInfo) -> str:
    return column.type_text.rpartition("[")[2]


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
