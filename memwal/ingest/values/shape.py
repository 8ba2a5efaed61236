"""What a chunk has to be like to be written: the table's columns, and values that they can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Usage
from memwal.format import layout
from memwal.ingest.values.exact import convert_column
from memwal.rows.conversions import Conversion
from memwal.rows.pairs import Lenience
from memwal.text import name_columns


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shape:
    """The rows that the table takes.

    `delete_column` is a column of the source that does not go into the table. With
    `missing_as_null`, columns that the source lacks become NULL, replacing the table's values.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    delete_column: str | None = None
    missing_as_null: bool = False
    conversions: frozenset[Conversion] = frozenset()

    @property
    def lenience(self) -> Lenience:
        """What goes in though it is not exact."""
        return Lenience(missing=self.missing_as_null, conversions=self.conversions)

    def check(self, source: pa.Schema, where: str) -> None:
        """Raise Usage when rows with these columns can't be written to the table."""
        names = source.names
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise Usage(f"{where}: column {doubled[0]!r} is there twice")
        if layout.TOMBSTONE in names:
            raise Usage(f"{where}: {layout.TOMBSTONE} is Lance's own; use --delete-column")
        if self.delete_column is not None:
            self._check_delete_column(source, self.delete_column, where)
        unknown = [gap for gap in _find_gaps(self.schema, source) if gap.path != self.delete_column]
        if unknown:
            raise Usage(f"{where}: the table has no column {', '.join(map(str, unknown))}")
        for gap in _find_gaps(source, self.schema):
            if gap.path in self.key:
                raise Usage(f"{where}: column {gap} is missing, and may not be NULL")
        if self.delete_column is None:
            self.check_missing(source, where)
        for field in self.schema:
            if field.name in names:
                self._convert(pa.chunked_array([], source.field(field.name).type), field, where)

    def check_missing(self, source: pa.Schema, where: str, deleted: pa.Array | None = None) -> None:
        """Raise Usage when missing columns would become NULL in rows that are not deleted."""
        missing = _find_gaps(source, self.schema)
        if not missing or (deleted is not None and pc.all(deleted).as_py()):
            return
        for gap in missing:
            if not gap.nullable:
                raise Usage(f"{where}: column {gap} is missing, and may not be NULL")
        if not self.missing_as_null:
            raise Usage(
                f"{where}: without {name_columns(map(str, missing))}, NULL would be written over "
                "what the table has there. --missing-as-null allows that; a row-merge policy of "
                "coalesce keeps what the table has"
            )

    def _check_delete_column(self, source: pa.Schema, name: str, where: str) -> None:
        if name in self.key:
            raise Usage(f"{where}: column {name!r} is the table's key: it can't say what to delete")
        if name not in source.names:
            gap = _Gap(path=name, nullable=False, near=guess_name(name, source.names))
            raise Usage(f"{where}: there is no column {gap} to delete by")
        kind = source.field(name).type
        if not pa.types.is_boolean(kind) and not pa.types.is_null(kind):
            raise Usage(f"{where}: column {name!r} to delete by is {kind}, and has to be boolean")

    def list_types(self) -> dict[str, pa.DataType]:
        """The wanted types by column, for sources without types of their own."""
        own = {} if self.delete_column is None else {self.delete_column: pa.bool_()}
        return {**own, **{field.name: field.type for field in self.schema}}

    def select_columns(self, source: pa.Schema) -> list[str]:
        """The names of the source's columns that are read."""
        wanted = {*self.schema.names, self.delete_column}
        return [name for name in source.names if name in wanted]

    def conform(self, chunk: pa.Table, where: str) -> tuple[pa.Table, pa.Array | None]:
        """The rows in the table's schema, and whether each deletes (None: no row does).

        Raises Usage for a value that the table's type can't hold, or a NULL where none is allowed.
        Of a deleted row, only the values in the columns of the key and the shard are used.
        """
        deleted = self.read_deleted(chunk, where)
        self.check_missing(chunk.schema, where, deleted)
        arrays = [self._cast_column(chunk, field, deleted, where) for field in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema), deleted

    def read_deleted(self, chunk: pa.Table, where: str) -> pa.Array | None:
        """Which rows delete; None if none does. Raises Usage for an unusable delete column."""
        if self.delete_column is None:
            return None
        self._check_delete_column(chunk.schema, self.delete_column, where)
        column = chunk[self.delete_column].combine_chunks()
        found = column.cast(pa.bool_()).fill_null(False)
        return found if pc.any(found).as_py() else None

    def _cast_column(
        self, chunk: pa.Table, field: pa.Field, deleted: pa.Array | None, where: str
    ) -> pa.ChunkedArray:
        if field.name not in chunk.column_names:
            return pa.chunked_array([pa.nulls(len(chunk), field.type)])
        found = self._convert(chunk[field.name], field, where)
        try:
            # Such as text that is not UTF-8, which Lance would write into unreadable files.
            found.validate(full=True)
        except pa.ArrowException as error:
            raise Usage(f"{where}: column {field.name!r} {explain_invalid(error)}") from None
        if found.null_count and not field.nullable:
            kept = found if deleted is None else found.filter(pc.invert(deleted))
            if kept.null_count or field.name in self.key:
                raise Usage(f"{where}: column {field.name!r} may not be NULL, but is")
        return found

    def _convert(self, column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
        try:
            return convert_column(column, field.type, self.lenience)
        except (ValueError, pa.ArrowException) as error:
            text = explain_type(column.type, field.type, error)
            raise Usage(f"{where}: column {field.name!r} {text}") from None


def explain_type(source: pa.DataType, kind: pa.DataType, error: Exception) -> str:
    """The text for values that don't go into the table's type."""
    text = str(error).splitlines()[0].removeprefix(f"{source} is no {kind}").removeprefix(": ")
    return f"is {source}, the table's {kind}" + (f": {text}" if text else "")


def explain_invalid(error: Exception) -> str:
    """The text for values that are not valid for their type."""
    return f"holds what its type can't: {str(error).splitlines()[0]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gap:
    """A column, or a struct's member, that one schema has and another lacks.

    `near` is a column of the other schema with a similar name, if any.
    """

    path: str
    nullable: bool
    near: str | None

    def __str__(self) -> str:
        return repr(self.path) + (f" (there is {self.near!r})" if self.near else "")


def _find_gaps(
    there: Iterable[pa.Field], wanted: Iterable[pa.Field], prefix: str = ""
) -> tuple[_Gap, ...]:
    """The fields in `wanted` but not in `there`, including struct members, which casts ignore."""
    known = {field.name: field for field in there}
    wanted = tuple(wanted)
    left = sorted(known.keys() - {field.name for field in wanted})
    found: list[_Gap] = []
    for field in wanted:
        path = prefix + field.name
        if field.name in known:
            own, other = _list_members(known[field.name].type), _list_members(field.type)
            found += _find_gaps(own, other, f"{path}.") if own and other else ()
        else:
            near = guess_name(field.name, left)
            shown = near and prefix + near
            found.append(_Gap(path=path, nullable=field.nullable, near=shown))
    return tuple(found)


def _list_members(kind: pa.DataType) -> list[pa.Field]:
    """The members of a struct, or of a list's structs."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_members(kind.value_type)
    return []


def guess_name(name: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant: the same in another case, or a similar one."""
    alike = [n for n in names if n.casefold() == name.casefold()]
    return next(iter(alike or get_close_matches(name, names, n=1)), None)
