"""Local files that a command was asked to write."""

from __future__ import annotations

import os
from pathlib import Path

from memwal.errors import Usage
from memwal.run.process.whole_file import whole_file


def check_place(option: str, place: str) -> Path:
    """Return the file that an option names. Raises Usage if it can't be written.

    This is called before the work, so that a wrong path does not show only afterwards.
    """
    file = Path(place)
    if file.is_dir():
        raise Usage(f"{option} {file}: that is a folder")
    if not file.parent.is_dir():
        raise Usage(f"{option} {file}: there is no folder {file.parent}")
    return file


def write_whole(file: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file atomically: a run that is killed while it writes leaves the old content.

    `mode` is the file's permissions, whatever the umask says. Raises OSError.
    """
    if file.exists() and not file.is_file():
        file.write_bytes(content)  # a pipe or a terminal
        return
    with whole_file(file.resolve()) as out:
        if mode is not None:
            os.fchmod(out.fileno(), mode)
        out.write(content)
