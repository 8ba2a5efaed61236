"""Symbolic links in a local table's folder: where one may not be, it is Corruption.

Whoever may write below the table could link to what only we may read, or have us delete elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from memwal.errors import Corruption, StoreUnavailable


def check_way(root: str, path: str) -> None:
    """Raise Corruption for a symbolic link among the folders from `root` to `path`, or at its end.

    `root` itself, and what leads there, may be one.
    """
    way = root
    for name in path.split("/"):
        way = f"{way}/{name}"
        if os.path.islink(way):  # noqa: PTH114
            raise _link_found(way)


def check_unlinked(root: str, folder: str) -> None:
    """Raise Corruption for a symbolic link on the way from `root` to `folder`, or anywhere in it.

    For files that Lance opens by name, following links. A link that is put there between this look
    and Lance's goes unnoticed: that takes write access below the table on this host, and the right
    instant. Raises StoreUnavailable for a folder that can't be read; a missing one has no links.
    """
    check_way(root, folder)
    link = find_link(f"{root}/{folder}")
    if link is not None:
        raise _link_found(link)


def find_link(folder: str) -> str | None:
    """A symbolic link anywhere in a folder, which itself may be one; None without any.

    Raises StoreUnavailable for a folder that can't be read.
    """
    try:
        return next(_walk_links(folder), None)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error.strerror or type(error).__name__}") from None


def _walk_links(folder: str) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif entry.is_dir(follow_symlinks=False):
                yield from _walk_links(entry.path)


def _link_found(path: str) -> Corruption:
    return Corruption(
        "MW-O12",
        f"{path} is a symbolic link: what a MemWAL holds, and what memwal keeps, has to lie in the "
        "table's own folder",
    )
