"""Local files that a command was asked to write."""

from __future__ import annotations

import os
from pathlib import Path

from memwal.errors import Usage
from memwal.run.process.whole_file import whole_file


def check_place(option: str, place: str) -> Path:
    """The file that an option names. Raises Usage where none can be: before the work, not after."""
    file = Path(place)
    if file.is_dir():
        raise Usage(f"{option} {file}: that is a folder")
    if not file.parent.is_dir():
        raise Usage(f"{option} {file}: there is no folder {file.parent}")
    return file


def write_whole(file: Path, content: bytes, mode: int | None = None) -> None:
    """A file that is there whole or as it was: a run may be killed while it writes.

    `mode` are its permissions, whatever the umask says. Raises OSError.
    """
    if file.exists() and not file.is_file():
        file.write_bytes(content)  # a pipe or a terminal
        return
    with whole_file(file.resolve()) as out:
        if mode is not None:
            os.fchmod(out.fileno(), mode)
        out.write(content)
