"""The Lance tables below a folder, a bucket's prefix or the directory of a LanceDB database."""

from __future__ import annotations

from collections.abc import Sequence

from memwal.errors import Usage
from memwal.format import layout
from memwal.ports import Objects
from memwal.threads import side_by_side

TABLES_MAX = 100_000
DEPTH_MAX = 8
_READERS_MAX = 16
_SUFFIX = ".lance"


def find_tables(objects: Objects) -> list[str]:
    """Paths of the tables below the root, sorted; empty text if the root itself is one.

    A folder is a table if it has versions, or by its name, as for LanceDB: then it is not looked
    into, so that a database of many tables costs one listing. Nothing is looked for inside a table,
    nor in folders whose names begin with `_` or `.`. Raises Usage beyond `TABLES_MAX` or
    `DEPTH_MAX`, and what the store raises.
    """
    tables: list[str] = []
    level = [""]
    for _ in range(DEPTH_MAX):
        deeper: list[str] = []
        for folder, names in zip(level, _list(objects, level), strict=True):
            if layout.VERSIONS in names:
                tables.append(folder)
                continue
            below = [
                f"{folder}/{name}" if folder else name for name in names if name[0] not in "_."
            ]
            tables += (path for path in below if path.endswith(_SUFFIX))
            deeper += (path for path in below if not path.endswith(_SUFFIX))
        if len(tables) + len(deeper) > TABLES_MAX:
            raise Usage(f"{objects.uri}: more than {TABLES_MAX:,} tables and folders: name a part")
        if not deeper:
            return sorted(tables)
        level = deeper
    raise Usage(f"{objects.uri}: folders are nested more than {DEPTH_MAX} deep: name a part")


def _list(objects: Objects, folders: Sequence[str]) -> list[Sequence[str]]:
    return side_by_side(objects.list_folders, folders, _READERS_MAX)
