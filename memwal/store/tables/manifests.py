"""Reads table versions, and their data files' footers, by few ranged reads and without Lance.

A manifest file ends in a 16-byte footer that points at the Manifest message, which points at the
index section in front of it (seen on pylance 14). One read of the tail serves most tables; a
large manifest costs one more read, a large index section a third.

Before Lance reads a generation, its files have to be its own and their footers plausible.

A Lance table may name files of another table (all files of a shallow clone are), and Lance reads
them with the reader's permissions. A generation has no reason to name any.

Lance's reader allocates room for as many columns and buffers as a file's footer claims, and aborts
the whole process when it can't. So a torn or forged footer is detected here, with one small read
per file. Lance itself reports most damage elsewhere in a file, as an error or a panic.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from memwal.errors import Corruption, MemWalError, Missing, NotATable, Refused
from memwal.format import codec, layout, restores
from memwal.format.codec import MAGIC
from memwal.model import (
    FlushedGeneration,
    MemWalState,
    RestoreMark,
    ShardId,
    VersionFacts,
    VersionHeader,
    VersionManifest,
)
from memwal.ports import TABLE_MANIFEST_BYTES_MAX, Objects, check_object_path, check_object_size
from memwal.text import count_of
from memwal.threads import side_by_side

TAIL_BYTES = 64 * 1024
_RESTORE_MARK_BYTES_MAX = 4096
_SHORT_TAIL_BYTES = 8 * 1024

T = TypeVar("T")

DATA_FOOTER_BYTES = 40
_TABLE_ENTRY_BYTES = 16
_READERS_MAX = 8


def check_table_folder(objects: Objects) -> None:
    """Raise NotATable when there is no table; it takes one listing."""
    folders = objects.list_folders("")
    if layout.VERSIONS not in folders:
        raise NotATable(
            f"{objects.uri}: "
            + (
                "not a Lance table; with a slash at its end it names the tables below it, if any"
                if folders
                else "no such table"
            )
        )


def check_restored(objects: Objects) -> None:
    """Raise Refused where a restore that has not ended holds the latest version's name."""
    mark = find_restore_mark(objects)
    if mark is not None:
        raise Refused(
            "MW-A25",
            f"{objects.uri}: a restore of backup {mark.backup!r} has not ended, so nobody can open "
            "the table: if it is not under way, run `memwal restore` again, which goes on",
        )


def find_restore_mark(objects: Objects) -> RestoreMark | None:
    """The mark of a restore that holds the latest version's name, if any. Raises Corruption."""
    files = {
        layout.parse_table_manifest_name(file.path.rpartition("/")[2]) or 0: file
        for file in objects.list(layout.VERSIONS)
    }
    newest = max((v for v in files if not layout.is_detached(v)), default=0)
    if not newest or files[newest].size_bytes > _RESTORE_MARK_BYTES_MAX:
        return None
    path = files[newest].path
    try:
        return restores.decode_restore_mark(objects.get(path, _RESTORE_MARK_BYTES_MAX))
    except Missing:
        return None
    except Corruption as error:
        raise error.at(f"{objects.uri}: {path}") from None


def require_mem_wal(uri: str, manifest: VersionManifest, left: int = 0) -> MemWalState:
    """The version's MemWAL details. Raises NotATable for a version that has none.

    `left` is how many shards exist nevertheless, for the message.
    """
    if manifest.mem_wal is not None:
        return manifest.mem_wal
    if left:
        raise NotATable(
            f"{uri}: version {manifest.version} has no MemWAL index, but _mem_wal/ has "
            f"{count_of(left, 'shard')}: the table was overwritten, or the index dropped. "
            "Rows that wait there are in no read, and no job merges them. Restoring the "
            f"version that had the index brings them back; `memwal init {uri}` makes a new "
            "index, and refuses as long as any wait"
        )
    raise NotATable(
        f"{uri}: version {manifest.version} has no MemWAL index: `memwal init {uri}` makes the "
        "table ready for MemWAL writers"
    )


class _Window:
    """The bytes of one file that were read so far, always one range up to the file's end."""

    def __init__(
        self, objects: Objects, path: str, tail: bytes, size: int, read_bytes_max: int
    ) -> None:
        self._objects = objects
        self._path = path
        self._data = tail
        self._start = size - len(tail)
        self._size = size
        self._read_bytes_max = read_bytes_max
        self.requests = 1

    def from_offset(self, offset: int) -> bytes:
        """The file from `offset` to its end."""
        if offset < self._start:
            check_object_size(
                "what its footer points at", self._size - offset, self._read_bytes_max
            )
            head = self._objects.get_range(self._path, offset, self._start)
            self._data = head + self._data
            self._start = offset
            self.requests += 1
        return self._data[offset - self._start :]


class TableManifests:
    """The versions of one table, on the main branch or on another.

    `root` is the table's folder below the store's root: empty for the base table, a generation's
    folder for that generation, which is a Lance table too.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        root: str = "",
        tail_bytes: int = TAIL_BYTES,
        read_bytes_max: int = TABLE_MANIFEST_BYTES_MAX,
    ) -> None:
        self._objects = objects
        self._root = f"{root}/" if root else ""
        self._tail_bytes = tail_bytes
        self._read_bytes_max = read_bytes_max
        self._scheme = 0

    def read(self, version: int, *, branch: str | None = None) -> VersionManifest:
        """One version. Raises Missing when it was expired, Corruption when its file is torn."""
        return self._manifest(*self._find(version, branch), version)

    def read_file(self, path: str, version: int) -> VersionManifest:
        """One stored manifest by its own path. Raises Missing, or Corruption as `read` does."""
        tail, size = self._objects.get_tail(path, self._tail_bytes)
        return self._manifest(path, tail, size, version)

    def facts(self, path: str, version: int) -> VersionFacts:
        """As `read_file`, with what else the manifest tells of the table."""
        tail, size = self._objects.get_tail(path, self._tail_bytes)

        def decode(block: bytes, index: bytes | None) -> VersionFacts:
            manifest = codec.decode_version_manifest(block, index, version=version, file_bytes=size)
            return codec.decode_version_facts(block, manifest)

        return self._decode(path, tail, size, decode)[0]

    def header(self, version: int) -> VersionHeader:
        """The same as `read`, on the main branch, without decoding what grows with the shards."""
        decode = partial(codec.decode_version_header, version=version)
        return self._decode(*self._find(version, None), decode)[0]

    def committed_at_nanos(self, version: int) -> int:
        """When a version of the main branch was committed; its indexes are not even read."""
        path, tail, size = self._find(version, None, _SHORT_TAIL_BYTES)
        decode = partial(codec.decode_commit_time, version=version)
        return self._decode(path, tail, size, lambda block, _: decode(block), indexes=False)[0]

    def _manifest(self, path: str, tail: bytes, size: int, version: int) -> VersionManifest:
        decode = partial(codec.decode_version_manifest, version=version, file_bytes=size)
        found, requests = self._decode(path, tail, size, decode)
        return replace(found, requests=requests)

    def _decode(
        self,
        path: str,
        tail: bytes,
        size: int,
        decode: Callable[[bytes, bytes | None], T],
        *,
        indexes: bool = True,
    ) -> tuple[T, int]:
        window = _Window(self._objects, path, tail, size, self._read_bytes_max)
        try:
            block = window.from_offset(self._check_inside(codec.decode_footer(tail), size))
            offset = codec.index_section_offset(block) if indexes else None
            index = None
            if offset is not None:
                index = window.from_offset(self._check_inside(offset, size))
            return decode(block, index), window.requests
        except MemWalError as error:
            raise error.at(f"{self._objects.uri}: {path}") from None

    def versions(self, branch: str | None = None) -> list[int]:
        """Every retained version of the branch, detached ones included, ascending.

        Names that are no manifest's are passed over (hints, temporary files).
        """
        return sorted(self.list_times(branch))

    def attached_versions(self, up_to: int) -> list[int]:
        """The retained versions of main that were not committed detached, ascending."""
        return [v for v in self.versions() if v <= up_to and not layout.is_detached(v)]

    def list_times(self, branch: str | None = None) -> dict[int, int]:
        """Each retained version's time by the store's clock, in nanoseconds."""
        files = self._objects.list(self._root + layout.versions_folder(branch))
        names = ((layout.parse_table_manifest_name(f.path.rsplit("/", 1)[-1]), f) for f in files)
        return {version: file.modified_at_nanos for version, file in names if version is not None}

    def _find(
        self, version: int, branch: str | None, tail_bytes: int | None = None
    ) -> tuple[str, bytes, int]:
        folder = self._root + layout.versions_folder(branch)
        names = layout.table_manifest_names(version)
        # A table keeps one naming scheme, so the one that answered last is tried first.
        for scheme in dict.fromkeys((self._scheme, 0, 1)):
            path = f"{folder}/{names[scheme]}"
            try:
                tail, size = self._objects.get_tail(path, tail_bytes or self._tail_bytes)
            except Missing:
                continue
            self._scheme = scheme
            return path, tail, size
        raise Missing(f"{self._objects.uri}: version {version} has no manifest in {folder}")

    @staticmethod
    def _check_inside(offset: int, size: int) -> int:
        if offset >= size:
            raise Corruption("MW-M01", f"points at offset {offset} of {size} bytes")
        return offset


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
        raise Corruption("MW-F01", "does not end like a Lance data file")
    metadata, columns, buffers, buffer_count, column_count = struct.unpack("<QQQII", footer[:32])
    end = file_bytes - DATA_FOOTER_BYTES
    if not metadata <= columns <= buffers <= end:
        raise Corruption("MW-F01", f"its footer points outside of its {file_bytes} bytes")
    if (
        column_count * _TABLE_ENTRY_BYTES > buffers - columns
        or buffer_count * _TABLE_ENTRY_BYTES > end - buffers
    ):
        raise Corruption(
            "MW-F01",
            f"its footer claims {column_count} columns and {buffer_count} buffers, more than there "
            "is room for",
        )
