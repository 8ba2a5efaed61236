"""Writes local files atomically: complete or not at all."""

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
    """A file to write to, which replaces `target` at the end of the block. Raises OSError.

    After an error it is deleted. It is a new file beside `target` with an unpredictable name, so
    that two runs with one target don't write into each other's file, and no link can be planted in
    its place.
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
