"""Checks before Lance reads a generation that its files are its own and their footers plausible.

A Lance table may name files of another table (all files of a shallow clone are), and Lance reads
them with the reader's permissions. A generation has no reason to name any.

Lance's reader allocates room for as many columns and buffers as a file's footer claims, and aborts
the whole process when it can't. So a torn or forged footer is detected here, with one small read
per file. Lance itself reports most damage elsewhere in a file, as an error or a panic.
"""

from __future__ import annotations

import struct
from typing import Any

from memwal.errors import Corruption
from memwal.format import layout
from memwal.format.codec import MAGIC
from memwal.model import FlushedGeneration, ShardId
from memwal.ports import Objects, check_object_path
from memwal.threads import side_by_side

DATA_FOOTER_BYTES = 40
_TABLE_ENTRY_BYTES = 16
_READERS_MAX = 8


def check_data_files(
    objects: Objects, shard_id: ShardId, generation: FlushedGeneration, dataset: Any
) -> None:
    """Raise Corruption for a data file that must not be read, Missing for one that is gone."""
    folder = layout.generation_folder(shard_id, generation.path, generation.generation)
    files = [f for part in dataset.get_fragments() for f in part.data_files()]
    paths = [f"{folder}/data/{f.path}" for f in files if _has_footer(f)]

    def check(path: str) -> None:
        try:
            check_data_file(*objects.get_tail(_check_inside(path), DATA_FOOTER_BYTES))
        except Corruption as error:
            raise error.at(f"{objects.uri}: {path}") from None

    side_by_side(check, paths, _READERS_MAX)


def check_own_files(dataset: Any) -> None:
    """Raise Corruption for an opened generation with files of another table, or data overlays.

    This takes no request: the dataset has read its manifest, and uses nothing else from then on. An
    index may name a base path too, but Lance reads none that the manifest does not register.
    """
    others = [str(base.path) for base in dataset.base_paths().values()]
    if others:
        raise Corruption("MW-F02", f"its manifest leads to another table's files, in {others[0]!r}")
    for fragment in dataset.get_fragments():
        parts = fragment.metadata
        deletions = parts.deletion_file
        if deletions is not None and deletions.base_id is not None:
            raise Corruption("MW-F02", "its deletion file is another table's")
        if parts.overlays:
            raise Corruption("MW-F03", "it has data overlays, which no flush writes")
        for file in parts.files:
            if file.base_id is not None:
                raise Corruption("MW-F02", f"its data file {file.path!r} is another table's")
            _check_inside(file.path)


def _has_footer(file: Any) -> bool:
    """Whether the data file is of format 2, whose footer is checked here."""
    return bool((file.file_major_version, file.file_minor_version) >= (0, 3))


def _check_inside(path: str) -> str:
    try:
        return check_object_path(path)
    except ValueError:
        raise Corruption("MW-F02", f"the path {path!r} leads out of its folder") from None


def check_data_file(tail: bytes, file_bytes: int) -> None:
    """Raise Corruption when a data file's footer (Lance format 2) can't be right.

    The footer holds the offsets of the column metadata, of the table of columns and of the table of
    global buffers, the number of entries in both tables, and the format's version.
    """
    footer = tail[-DATA_FOOTER_BYTES:]
    if len(footer) < DATA_FOOTER_BYTES or footer[-4:] != MAGIC:
        raise Corruption("MW-F04", "does not end like a Lance data file")
    metadata, columns, buffers, buffer_count, column_count = struct.unpack("<QQQII", footer[:32])
    end = file_bytes - DATA_FOOTER_BYTES
    if not metadata <= columns <= buffers <= end:
        raise Corruption("MW-F04", f"its footer points outside of its {file_bytes} bytes")
    if (
        column_count * _TABLE_ENTRY_BYTES > buffers - columns
        or buffer_count * _TABLE_ENTRY_BYTES > end - buffers
    ):
        raise Corruption(
            "MW-F04",
            f"its footer claims {column_count} columns and {buffer_count} buffers, more than there "
            "is room for",
        )
