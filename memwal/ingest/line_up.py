"""Source rows -> rows of the table's own schema, and which of them delete. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from memwal import layout
from memwal.errors import Usage


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shape:
    """What the table takes. `delete_column` is the source's own and does not go into the table."""

    schema: pa.Schema
    key: tuple[str, ...]
    delete_column: str | None = None
    skips_unknown_columns: bool = False

    def check(self, source: pa.Schema, where: str) -> None:
        """Raise Usage when rows with these columns can't be written to the table."""
        names = source.names
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise Usage(f"{where}: column {doubled[0]!r} is there twice")
        if layout.TOMBSTONE in names:
            raise Usage(f"{where}: {layout.TOMBSTONE} is Lance's own; use --delete-column")
        wanted = [*self.schema.names, *([self.delete_column] if self.delete_column else [])]
        unknown = [name for name in names if name not in wanted]
        if unknown and not self.skips_unknown_columns:
            raise Usage(
                f"{where}: the table has no column {', '.join(map(repr, unknown))}; "
                "--skip-unknown-columns leaves them out"
            )
        if self.delete_column and self.delete_column not in names:
            raise Usage(f"{where}: there is no column {self.delete_column!r} to delete by")
        for field in self.schema:
            if field.name not in names and (not field.nullable or field.name in self.key):
                raise Usage(f"{where}: column {field.name!r} is missing, and may not be NULL")

    def columns(self, source: pa.Schema) -> list[str]:
        """The source's columns that are read."""
        wanted = {*self.schema.names, self.delete_column}
        return [name for name in source.names if name in wanted]

    def lined_up(self, chunk: pa.Table, where: str) -> tuple[pa.Table, pa.Array | None]:
        """The rows in the table's schema, and for each whether it deletes; None for none.

        Raises Usage for a value that the table's type can't hold, or a NULL where none may be. A
        deleted row has values in the key's and the shard's columns only as far as they are used.
        """
        deleted = self._deleted(chunk, where)
        arrays = [self._column(chunk, field, deleted, where) for field in self.schema]
        return pa.Table.from_arrays(arrays, schema=self.schema), deleted

    def _deleted(self, chunk: pa.Table, where: str) -> pa.Array | None:
        if self.delete_column is None:
            return None
        column = chunk[self.delete_column].combine_chunks()
        try:
            found = column.cast(pa.bool_()).fill_null(False)
        except pa.ArrowException as error:
            raise Usage(f"{where}: column {self.delete_column!r}: {error}") from None
        return found if pc.any(found).as_py() else None

    def _column(
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
        if found.null_count and not field.nullable:
            kept = found if deleted is None else found.filter(pc.invert(deleted))
            if kept.null_count or field.name in self.key:
                raise Usage(f"{where}: column {field.name!r} may not be NULL, but is")
        return found
