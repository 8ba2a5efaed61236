"""Expands patterns in source addresses that a shell did not expand, and those in buckets."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath

from pyarrow import fs

_MAGIC = "*?["


def is_pattern(uri: str) -> bool:
    """Whether the address has a wildcard: `*`, `?`, `[…]`, or `**` for folders of any depth."""
    return any(sign in uri for sign in _MAGIC)


def find_matches(path: str, system: fs.FileSystem) -> list[str]:
    """The paths that match, sorted, without hidden ones and those below a folder that matches."""
    parts = path.split("/")
    fixed = len(list(takewhile(lambda part: not is_pattern(part), parts)))
    if isinstance(system, fs.LocalFileSystem):
        found: Iterable[str] = glob.glob(path, recursive=True)  # noqa: PTH207
    else:
        deep = len(parts) > fixed + 1 or "**" in parts
        below = fs.FileSelector("/".join(parts[:fixed]), recursive=deep, allow_not_found=True)
        found = (info.path for info in system.get_file_info(below))
        found = (p for p in found if does_match(p.split("/"), parts))
    matches: dict[str, None] = {}
    for match in sorted(name.rstrip("/") for name in found):
        own = match.split("/")[fixed:]
        hidden = any(part.startswith(("_", ".")) and part not in parts for part in own)
        if not hidden and not any(
            str(folder) in matches for folder in PurePosixPath(match).parents
        ):
            matches[match] = None
    return list(matches)


def does_match(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match the parts of a pattern."""
    if not pattern or not path:
        return not path and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return does_match(path, pattern[1:]) or does_match(path[1:], pattern)
    return fnmatchcase(path[0], pattern[0]) and does_match(path[1:], pattern[1:])
