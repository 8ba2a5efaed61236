"""Local files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from memwal.clock import SystemClock

_NAME_CHARACTERS_MAX = 40


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes `target`'s place once it is whole; gone after an error.

    It lies beside `target`, is new, and its name can't be foreseen: two runs with one target don't
    write into each other's, and a link that somebody laid there leads nowhere. Raises OSError.
    """
    name = f".{target.name[:_NAME_CHARACTERS_MAX]}.{SystemClock().new_id()}.partial"
    partial = target.with_name(name)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        partial.replace(target)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
