"""What a chunk has to be like to be written: the table's columns, and texts as their values.

Nested columns are JSON, as `memwal read --output rows.csv` writes them; durations are seconds.
Bytes are hexadecimal after 0x if every value of a batch is; otherwise they are taken as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import Usage
from memwal.format import layout
from memwal.rows.json_values import Lenience, from_json, is_bytes
from memwal.text import name_columns

_HEX = re.compile(rb"0x(?:[0-9a-f]{2})*")


def find_csv_types(types: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types to ask Arrow's CSV reader for: text or bytes for types that it can't read."""
    return {name: _find_csv_type(kind) for name, kind in types.items()}


def _find_csv_type(kind: pa.DataType) -> pa.DataType:
    if is_bytes(kind):
        return pa.binary()
    tests = (
        pa.types.is_nested,
        pa.types.is_duration,
        pa.types.is_float16,
        pa.types.is_decimal256,
        pa.types.is_dictionary,
    )
    return pa.string() if any(test(kind) for test in tests) else kind


def parse_columns(
    batch: pa.RecordBatch, types: Mapping[str, pa.DataType], lenience: Lenience
) -> pa.RecordBatch:
    """The batch with its text columns parsed. Raises ValueError, which names the column."""
    arrays = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = types.get(name, column.type)
        if is_bytes(kind) or _find_csv_type(kind) != kind:
            try:
                column = parse_texts(column, kind, lenience)
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def parse_texts(texts: pa.Array, kind: pa.DataType, lenience: Lenience) -> pa.Array:
    """Texts (bytes for a binary type) as values. Raises ValueError for an invalid one."""
    if is_bytes(kind):
        return _parse_bytes(texts.cast(pa.binary()).to_pylist()).cast(kind)
    if pa.types.is_nested(kind):
        return from_json([_parse_json(t, kind) for t in texts.to_pylist()], kind, lenience)
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return from_json(texts.to_pylist(), kind)
    if pa.types.is_dictionary(kind):
        return parse_texts(texts, kind.value_type, lenience).cast(kind)
    return texts.cast(kind)


def _parse_bytes(values: list[bytes | None]) -> pa.Array:
    there = [value for value in values if value is not None]
    in_hex = sum(_HEX.fullmatch(value) is not None for value in there)
    if 0 < in_hex < len(there):
        raise ValueError("some bytes are in hexadecimal after 0x, and others are not")
    if not in_hex:
        return pa.array(values, pa.binary())
    return pa.array([v and bytes.fromhex(v[2:].decode()) for v in values], pa.binary())


def _parse_json(text: str | None, kind: pa.DataType) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r} is no JSON, as {kind} needs: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shape:
    """The rows that the table takes.

    `delete_column` is a column of the source that does not go into the table. With
    `missing_as_null`, columns that the source lacks become NULL, replacing the table's values.
    """

    schema: pa.Schema
    key: tuple[str, ...]
    delete_column: str | None = None
    skips_unknown_columns: bool = False
    missing_as_null: bool = False

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
        if unknown and not self.skips_unknown_columns:
            raise Usage(
                f"{where}: the table has no column {', '.join(map(str, unknown))}; "
                "--skip-unknown-columns leaves them out"
            )
        for gap in _find_gaps(source, self.schema):
            if not gap.nullable or gap.path in self.key:
                raise Usage(f"{where}: column {gap} is missing, and may not be NULL")
        if self.delete_column is None:
            self.check_missing(source, where)

    def check_missing(self, source: pa.Schema, where: str, deleted: pa.Array | None = None) -> None:
        """Raise Usage when missing columns would become NULL in rows that are not deleted."""
        missing = () if self.missing_as_null else _find_gaps(source, self.schema)
        if missing and not (deleted is not None and pc.all(deleted).as_py()):
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
        column = chunk[field.name]
        try:
            found = column if column.type == field.type else column.cast(field.type)
        except pa.ArrowException as error:
            text = str(error).split("\n", 1)[0]
            raise Usage(
                f"{where}: column {field.name!r} is {column.type}, the table's {field.type}: {text}"
            ) from None
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
