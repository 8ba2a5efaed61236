"""Cursors: how far each consumer of a table's changes has come, under `_maintenance/cursors/`.

A document each, `NAME.json`, which only its consumer moves. Garbage collection keeps the table's
versions from that of the oldest cursor on, unless nobody moved that for too long.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from memwal.errors import Corruption, Missing, StoreUnavailable, Usage
from memwal.format import layout
from memwal.model import Cursor
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.threads import side_by_side

_FORMAT = 1
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
        found = self.read(layout.parse_cursor_name(name))
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
        try:
            found = _decode(self._objects.get(path, DOCUMENT_BYTES_MAX))
        except Missing:
            return None
        if found is None or found.name != name:
            raise Corruption(
                "MW-Y07",
                f"{self._objects.uri}: {path} can't be read as a cursor, so nothing tells what it "
                "keeps: was it made by a newer memwal? If not, move the file away",
            )
        return found

    def put(self, cursor: Cursor) -> None:
        """Store a cursor in place of the one of its name."""
        document = {
            "format": _FORMAT,
            "name": cursor.name,
            "version": cursor.version,
            "moved_at_nanos": cursor.moved_at_nanos,
            "holder": cursor.holder,
            "transaction": cursor.transaction,
        }
        self._objects.put(layout.cursor_path(cursor.name), json.dumps(document).encode())

    def drop(self, name: str) -> None:
        """Delete a cursor. Raises StoreUnavailable when that fails."""
        for path, why in self._objects.delete([layout.cursor_path(name)]).failed:
            raise StoreUnavailable(f"{self._objects.uri}: {path} can't be deleted: {why}")


def _decode(data: bytes) -> Cursor | None:
    try:
        found: Any = json.loads(data)
        if found["format"] != _FORMAT:
            return None
        transaction = found["transaction"]
        return Cursor(
            name=str(found["name"]),
            version=int(found["version"]),
            moved_at_nanos=int(found["moved_at_nanos"]),
            holder=str(found["holder"]),
            transaction=None if transaction is None else str(transaction),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
