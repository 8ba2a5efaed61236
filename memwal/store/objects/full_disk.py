"""A local disk that is full: what is said of it, and space kept so that garbage can begin on it.

Whatever deletes safely writes something first: the lease, and the manifest that drops a generation.
So every job that takes a table's lease leaves a file there, which garbage gives up before it begins
and puts back when it is done. Only local tables need that; object stores are not full.
"""

from __future__ import annotations

import errno
import hashlib
from contextlib import suppress

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.ports import Objects

RESERVE_BYTES = 64 * 1024

_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXTS = tuple(f"(os error {number})" for number in _FULL)


_HINT = (
    "the disk is full. `memwal garbage TABLE --execute`, with --retention and --wal, and `memwal "
    "checkpoint drop` need no space and make some; if they fail too, stop writers, or free a few "
    "hundred KiB elsewhere on that disk"
)


def is_full(error: OSError) -> bool:
    """Whether a disk or a quota has no room."""
    return error.errno in _FULL


def add_hint(text: str, error: OSError | None = None) -> str:
    """What an error says, ours or Lance's, and what to do where it says that the disk is full."""
    full = any(t in text for t in _FULL_TEXTS) if error is None else is_full(error)
    return f"{text}: {_HINT}" if full and _HINT not in text else text


def tells_of_it(error: str | None) -> bool:
    """Whether a report's error has the advice of `add_hint`."""
    return error is not None and _HINT in error


def keep_reserve(objects: Objects) -> None:
    """Write the reserve file on a local store, unless it exists or there is no space."""
    if not objects.page_objects:
        with suppress(MemWalError):
            if not objects.exists(layout.RESERVE):
                # Nothing that a file system could compress.
                content = hashlib.shake_256(b"memwal").digest(RESERVE_BYTES)
                objects.put(layout.RESERVE, content)


def free_reserve(objects: Objects) -> None:
    """Delete the reserve file, so that garbage collection has space to begin with."""
    if not objects.page_objects:
        with suppress(MemWalError):
            objects.delete([layout.RESERVE])
