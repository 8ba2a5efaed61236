"""Maps a source's columns to the table's: renamed (`--map`), or filled in (`--default`).

Formats without types of their own are read with the table's types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.values.exact import parse_texts
from memwal.ingest.values.shape import Shape, guess_name
from memwal.rows.pairs import STRICT, Lenience

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class SourceColumns:
    """The columns that are wanted of every source, under the table's names.

    `renamed` maps the source's names to the table's. Where each row has its own columns (JSON
    lines), `needed` must be in every row in which `deleted_by` is not true.
    """

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, pa.Scalar] = field(default_factory=dict)
    needed: frozenset[str] = frozenset()
    deleted_by: str | None = None
    lenience: Lenience = STRICT

    @property
    def source_types(self) -> dict[str, pa.DataType]:
        """The wanted types, by the source's column names."""
        new = set(self.renamed.values())
        types = {name: kind for name, kind in self.types.items() if name not in new}
        return types | {a: self.types[b] for a, b in self.renamed.items() if b in self.types}

    @property
    def changes(self) -> bool:
        """Whether sources are changed: renamed or filled in."""
        return bool(self.renamed or self.defaults)

    def get_source_name(self, name: str) -> str:
        """The source's name for a column of the table."""
        return next((old for old, new in self.renamed.items() if new == name), name)

    def list_named(self) -> set[str]:
        """The source's columns that options name, and that therefore must be there."""
        old = {a for a, b in self.renamed.items() if b not in self.defaults}
        if self.deleted_by is not None and self.deleted_by not in self.defaults:
            old.add(self.get_source_name(self.deleted_by))
        return old

    def rename(self, name: str) -> str:
        """The table's name for a column of the source."""
        return self.renamed.get(name, name)

    def convert_schema(self, source: pa.Schema, where: str) -> pa.Schema:
        """A source's schema after conversion. Raises Usage when a column to map is missing."""
        for name, new in self.renamed.items():
            if name not in source.names and new not in self.defaults:
                near = guess_name(name, source.names)
                hint = f" (there is {near!r})" if near else ""
                raise Usage(f"{where}: there is no column {name!r}{hint} to map")
        fields = [f.with_name(self.rename(f.name)) for f in source]
        there = {f.name for f in fields}
        added = (pa.field(n, v.type) for n, v in self.defaults.items() if n not in there)
        return pa.schema([*fields, *added])

    def find_source_names(self, wanted: Collection[str], source: Sequence[str]) -> list[str]:
        """The source's names for the wanted columns; with none, one column, to count rows by."""
        return [name for name in source if self.rename(name) in wanted] or list(source[:1])

    def convert(self, rows: pa.Table, wanted: Collection[str]) -> pa.Table:
        """A source's rows, converted, with only the wanted columns."""
        rows = rows.rename_columns([self.rename(name) for name in rows.column_names])
        for name, value in self.defaults.items():
            if name in wanted and name not in rows.column_names:
                rows = rows.append_column(name, pa.repeat(value, len(rows)))
        return rows.select([name for name in rows.column_names if name in wanted])


def make_columns(shape: Shape, renamed: Pairs, defaults: Pairs) -> SourceColumns:
    """The columns that a table of this shape wants. Raises Usage for bad names or values."""
    types = shape.list_types()
    doubled = sorted(new for _, new in renamed if [n for _, n in renamed].count(new) > 1)
    if doubled:
        raise Usage(f"--map leads to {doubled[0]!r} twice")
    values = {name: _parse_default(name, text, types, shape.lenience) for name, text in defaults}
    key = set(shape.key)
    needed = key if shape.missing_as_null else types.keys() - {shape.delete_column}
    return SourceColumns(
        types=types,
        renamed=dict(renamed),
        defaults=values,
        needed=frozenset(needed - values.keys()),
        deleted_by=shape.delete_column,
        lenience=shape.lenience,
    )


def _parse_default(
    name: str, text: str, types: Mapping[str, pa.DataType], lenience: Lenience
) -> pa.Scalar:
    if name not in types:
        near = guess_name(name, list(types))
        hint = f" (there is {near!r})" if near else ""
        raise Usage(f"--default {name}: the table has no such column{hint}")
    try:
        return parse_texts(pa.array([text]), types[name], lenience)[0]
    except (ValueError, pa.ArrowException) as error:
        raise Usage(f"--default {name}: {text!r} is no {types[name]}: {error}") from None
