"""Paths of sources: globs, and standard input.

Standard input is spooled to a file first, and identified by its content. So piped data is ingested
exactly once, too: when the same bytes are piped again, the run resumes where the run before
stopped.
"""

from __future__ import annotations

import glob
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import PurePosixPath
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from pyarrow import fs

from memwal.errors import Unsupported, Usage
from memwal.ingest.request import SpooledInput

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


STANDARD_INPUT = "-"
_BLOCK_BYTES = 1024 * 1024


@contextmanager
def spool_input(
    sources: Sequence[str], engine: str, stream: BinaryIO | None = None
) -> Iterator[SpooledInput | None]:
    """Read standard input to its end, if it is among the sources. Raises Usage, Unsupported."""
    if STANDARD_INPUT not in sources:
        yield None
        return
    if engine == "spark":
        raise Unsupported("MW-I31", "standard input is read by this process only: --engine local")
    source = stream or sys.stdin.buffer
    if source.isatty():
        raise Usage("standard input (-) is the terminal: pipe a file into it")
    digest, size_bytes = hashlib.sha256(), 0
    with NamedTemporaryFile(prefix="memwal-input-") as spool:
        try:
            while data := source.read(_BLOCK_BYTES):
                digest.update(data)
                size_bytes += spool.write(data)
            spool.flush()
        except OSError as error:
            raise Usage(f"standard input could not be kept in {spool.name}: {error}") from None
        yield SpooledInput(
            path=spool.name, size_bytes=size_bytes, digest=f"sha256:{digest.hexdigest()}"
        )
