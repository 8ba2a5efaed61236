"""Cursors: how far each consumer of a table's changes has come, under `_maintenance/cursors/`.

A document each, `NAME.json`, which only its consumer moves. Garbage collection keeps the table's
versions from that of the oldest cursor on, unless nobody moved that for too long.
"""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import Corruption, Usage
from memwal.format import layout
from memwal.model import Cursor
from memwal.ports import Objects
from memwal.store.records.documents import NEWER, delete_document, put_document, read_document
from memwal.threads import side_by_side

_READERS_MAX = 16


class StoredCursors:
    """The cursors of one table."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def list(self) -> Sequence[Cursor]:
        """All that are there, by name. Raises Corruption for one that can't be read."""
        files = self._objects.list(layout.CURSORS)
        found = (layout.parse_cursor_path(file.path) for file in files)
        names = sorted(name for name in found if name is not None)
        read = side_by_side(self.read, names, _READERS_MAX)
        return [cursor for cursor in read if cursor is not None]

    def find(self, name: str) -> Cursor:
        """One of them. Raises Usage, which names all there are, without it."""
        found = self.read(layout.parse_name(name, "cursor"))
        if found is None:
            names = ", ".join(cursor.name for cursor in self.list())
            there = f"there are: {names}" if names else "the table has none"
            raise Usage(
                f"{self._objects.uri}: there is no cursor {name!r}; {there}. --commit VERSION "
                "makes one, of a version that was read as a whole"
            )
        return found

    def read(self, name: str) -> Cursor | None:
        """One of them; None if there is none. Raises Corruption."""
        path = layout.cursor_path(name)
        error = Corruption(
            "MW-Y07",
            f"{self._objects.uri}: {path} can't be read as a cursor, so nothing tells what it "
            f"keeps: {NEWER}",
        )
        return read_document(self._objects, path, Cursor, lambda c: c.name == name, error)

    def put(self, cursor: Cursor) -> None:
        """Store a cursor in place of the one of its name."""
        put_document(self._objects, layout.cursor_path(cursor.name), cursor)

    def drop(self, name: str) -> None:
        """Delete a cursor. Raises StoreUnavailable when that fails."""
        delete_document(self._objects, layout.cursor_path(name))
