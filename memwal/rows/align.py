"""Lines up the columns of a generation with those of the base table. Pure.

A generation is written under the schema of its day. Fields match by field id AND name: an id alone
is not enough, since `_tombstone` takes the id that the base gives to its next column, and a name
alone would bring a dropped column's values back into one that was added again (seen on pylance 14).
Where one of them differs, the table's history has to tell what happened. Members of structs, lists
and maps are matched like columns.

Lance gives an id out again, perhaps with the same name. So a type that differs under the same id is
taken for a wider one only where the field says that it had that type: `memwal schema` writes that.

A column that the base lacks was dropped from it, or is Lance's own, whose names begin with an
underscore. One of these that is not known (a later Lance adds `__wal_row_id`) tells something of
the rows that would be lost. So that such a column was dropped has to be proven by history, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import Refused, Unsupported
from memwal.format import layout
from memwal.model import ColumnInfo
from memwal.rows.widen import Conversion, is_exact, parse_leaf

_BLOB = "extension<lance.blob.v2<"
_NESTED = re.compile(r"(struct|map|list|large_list|fixed_size_list)<.*>(\[\d+\])?", re.DOTALL)
# A fixed-size list of plain values has no field of its own for them.
_PLAIN_ITEM = re.compile(r"fixed_size_list<.*: ([^:]*?)( not null)?>\[\d+\]", re.DOTALL)
_LARGER = {("list", ""): ("large_list", "")}


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
class Recast:
    """A field that has another id in the base than one of its name in the generation.

    Lance's own cast gives it one, in one commit; a field that was dropped and added again gets one,
    too, in two.
    """

    before: int
    after: int
    name: str


IsProven = Callable[[Rename | Recast], bool]
"""Whether the table's history shows that values stayed: a rename (or a drop), a cast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """How to read a generation as base rows.

    `columns` maps each base column to the generation's column of its values; None means that it has
    none. `conversions` has those whose values are not read as they are. `keys` name a row.
    """

    columns: Mapping[str, str | None]
    conversions: Mapping[str, Conversion] = field(default_factory=dict)
    keys: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        """The generation's columns that are read, in base order."""
        return tuple(self.sources_of(self.columns))

    def sources_of(self, columns: Iterable[str]) -> list[str]:
        """The generation's columns for these base columns, without those that it lacks."""
        return [source for name in columns if (source := self.columns[name]) is not None]

    @property
    def drifted(self) -> list[str]:
        """The base columns that a filter can't be asked for in the generation itself."""
        return [
            name
            for name, source in self.columns.items()
            if name != source or name in self.conversions
        ]

    def without_defaults(self) -> Alignment:
        """The same, with NULL for what was not written."""
        conversions = {n: replace(how, default=None) for n, how in self.conversions.items()}
        return replace(self, conversions=conversions)


def refuse_column(name: str, what: str) -> Unsupported:
    """The error for a column that may be Lance's own, and that this build doesn't know."""
    return Unsupported(
        "MW-K11",
        f"the {what} has a column {name!r}, which no retained version of the table has: a newer "
        "Lance may have added it for itself. Its values would be lost, so these rows are neither "
        "read nor merged",
    )


def align(
    base: Sequence[ColumnInfo],
    generation: Sequence[ColumnInfo],
    is_proven: IsProven,
    *,
    keys: Collection[str] = (),
    what: str = "generation",
) -> Alignment:
    """Match a generation's columns to the base's.

    Columns that the base has gained become null, or their default; columns that it has dropped are
    left out. Raises Refused for a type that did not change to one that holds each value, for a
    gained column that may not be null and has no default, and for what history does not prove;
    Unsupported for a column that may be Lance's own.
    """
    matcher = _Matcher(is_proven=is_proven, what=what)
    found = [column for column in generation if column.name != layout.TOMBSTONE]
    columns: dict[str, str | None] = {}
    conversions: dict[str, Conversion] = {}
    for column, (place, how) in zip(base, matcher.match(base, found, ""), strict=True):
        columns[column.name] = None if place is None else found[place].name
        if how is None:
            continue
        if column.name in keys:
            raise _refuse_type(column.name, found[place or 0], column, what)
        conversions[column.name] = how
    ids = {column.field_id for column in base}
    for column in found:
        if column.field_id in ids or not layout.is_reserved(column.name):
            continue
        if not is_proven(Rename(field_id=column.field_id, before=column.name, after=None)):
            raise refuse_column(column.name, what)
    return Alignment(columns=columns, conversions=conversions, keys=tuple(keys))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matcher:
    is_proven: IsProven
    what: str

    def match(
        self,
        new: Sequence[ColumnInfo],
        old: Sequence[ColumnInfo],
        above: str,
        *,
        cast: bool = False,
    ) -> list[tuple[int | None, Conversion | None]]:
        """For each new field the place of its values among the old ones, and how they are made.

        Below a field that Lance has cast all ids are new, and names tell.
        """
        ids = {column.field_id for column in new}
        found: list[tuple[int | None, Conversion | None]] = []
        for column in new:
            place, is_cast = self._find(column, old, ids, cast=cast)
            path = f"{above}{column.name}"
            if place is None:
                found.append((None, self._make_missing(column, path)))
            else:
                found.append((place, self._convert(column, old[place], path, cast=is_cast)))
        return found

    def _find(
        self, column: ColumnInfo, old: Sequence[ColumnInfo], ids: Collection[int], *, cast: bool
    ) -> tuple[int | None, bool]:
        """The place of a field, and whether Lance has cast it."""
        for place, one in enumerate(old):
            if one.field_id == column.field_id and not cast:
                self._check_name(one, column)
                return place, False
        for place, one in enumerate(old):
            if one.name != column.name or (one.field_id in ids and not cast):
                continue
            if cast or self._is_cast(one, column):
                return place, True
        return None, False

    def _is_cast(self, old: ColumnInfo, new: ColumnInfo) -> bool:
        return self.is_proven(Recast(before=old.field_id, after=new.field_id, name=new.name))

    def _check_name(self, old: ColumnInfo, new: ColumnInfo) -> None:
        if old.name == new.name:
            return
        if not self.is_proven(Rename(field_id=new.field_id, before=old.name, after=new.name)):
            raise Refused(
                "MW-K06",
                f"field {new.field_id} is {old.name!r} in the {self.what} and {new.name!r} "
                "in the table, and no retained version shows that it was renamed rather than "
                "dropped and its id used again",
            )

    def _make_missing(self, column: ColumnInfo, path: str) -> Conversion | None:
        if column.default is not None:
            return Conversion(default=column.default)
        if not column.nullable:
            raise Refused(
                "MW-K07",
                f"column {path!r} was added after the {self.what} was written, may not be null and "
                f"has no default, so the {self.what}'s rows have no value for it; `memwal schema "
                f"TABLE --require {path} --default {path}=VALUE --apply` gives it one",
            )
        return None

    def _convert(
        self, new: ColumnInfo, old: ColumnInfo, path: str, *, cast: bool
    ) -> Conversion | None:
        default = None if new.nullable else new.default
        if _is_same(new, old, cast=cast):
            return None if default is None else Conversion(default=default)
        shape, former = _shape(new), _shape(old)
        refusal = _refuse_type(path, old, new, self.what)
        if _BLOB in new.type_text or _BLOB in old.type_text:
            raise refusal
        if shape is None and former is None:
            before, after = parse_leaf(old.type_text), parse_leaf(new.type_text)
            if before is None or after is None or not is_exact(before, after):
                raise refusal
            if not cast and old.type_text not in new.former_types:
                raise refusal
            return Conversion(default=default)
        if shape is None or former is None or shape not in (former, _LARGER.get(former)):
            raise refusal
        if shape[0] == "struct":
            members = self.match(new.children, old.children, f"{path}.", cast=cast)
        else:
            members = [(0, self._convert_items(new, old, f"{path}.item", refusal, cast=cast))]
        return Conversion(members=tuple(members), default=default)

    def _convert_items(
        self, new: ColumnInfo, old: ColumnInfo, path: str, refusal: Refused, *, cast: bool
    ) -> Conversion | None:
        """What a list or map holds: it can't be missing, and has no name to go by."""
        one, other = _item(new), _item(old)
        if one is None or other is None:
            raise refusal
        is_cast = cast or one.field_id != other.field_id
        if is_cast and not cast and not self._is_cast(other, one):
            raise refusal
        return self._convert(one, other, path, cast=is_cast)


def _refuse_type(path: str, old: ColumnInfo, new: ColumnInfo, what: str) -> Refused:
    before, after = parse_leaf(old.type_text), parse_leaf(new.type_text)
    is_narrower = before is not None and after is not None and is_exact(after, before)
    way = f"`memwal schema TABLE --widen {path}={before} --apply` lets these rows be merged"
    return Refused(
        "MW-K08",
        f"column {path!r} changed its type from {old.type_text} to {new.type_text} since the "
        f"{what} was written, and its values are not converted (of a key, none ever are); "
        + (way if is_narrower else f"merge the {what} with the old type restored, or rewrite it"),
    )


def _shape(column: ColumnInfo) -> tuple[str, str] | None:
    """What a nested type is, with the size of a fixed-size list; None for a plain one."""
    found = _NESTED.fullmatch(column.type_text)
    return None if found is None else (found[1], found[2] or "")


def _item(column: ColumnInfo) -> ColumnInfo | None:
    """The field of what a list or a map holds."""
    if column.children:
        return column.children[0]
    found = _PLAIN_ITEM.fullmatch(column.type_text)
    if found is None:
        return None
    former = (_PLAIN_ITEM.fullmatch(text) for text in column.former_types)
    return ColumnInfo(
        field_id=-1,
        name="item",
        type_text=found[1],
        nullable=not found[2],
        former_types=tuple(one[1] for one in former if one),
    )


def _is_same(new: ColumnInfo, old: ColumnInfo, *, cast: bool) -> bool:
    """Whether a type is the same, with its nested fields' ids: those can be dropped and added too.

    A blob's nested fields are Lance's own, and a generation has fewer of them than the base.
    """
    if new.type_text != old.type_text:
        return False
    if new.type_text.startswith(_BLOB):
        return True
    return len(new.children) == len(old.children) and all(
        (cast or a.field_id == b.field_id)
        and a.name == b.name
        and a.default is None
        and _is_same(a, b, cast=cast)
        for a, b in zip(new.children, old.children, strict=True)
    )


def names_of(columns: Iterable[ColumnInfo]) -> dict[int, str]:
    """Each field's name by its id, members too, depth first."""
    found: dict[int, str] = {}
    for column in columns:
        found |= {column.field_id: column.name, **names_of(column.children)}
    return found
