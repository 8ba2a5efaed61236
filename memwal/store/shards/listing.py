"""What is stored below `_mem_wal/`, by listing: of all shards in one request where that is enough.

A listing shows everything that was there when it began, so the highest manifest version in it is
at least as new as any that was written before it: as good as probing upwards from the hint, and
for shards with few files far fewer requests. On a store whose listings lag, it is an older one,
which under-states what is pending or deletable. That is good enough to tell that there is nothing
to do; what is about to be deleted is judged by manifests that were probed for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from memwal.format import layout
from memwal.model import ShardId, StoredFile
from memwal.ports import Objects


@dataclass(frozen=True, slots=True)
class ShardListing:
    """One look at a table's shards: which there are, and, where `is_whole`, all of their files."""

    _objects: Objects
    shards: Sequence[ShardId]
    strangers: Sequence[str]
    _files: Mapping[ShardId, Sequence[StoredFile]] | None

    @property
    def is_whole(self) -> bool:
        """Whether every file is known already."""
        return self._files is not None

    def files(self, shard_id: ShardId) -> Sequence[StoredFile]:
        """Every file of one shard; where the look is not whole, by a listing of the shard."""
        if self._files is None:
            return list(self._objects.list(layout.shard_folder(shard_id)))
        return self._files.get(shard_id, ())


def list_shards(
    objects: Objects,
    *,
    folders_only: bool = False,
    pages_max: Callable[[int], int] = lambda shards: 1,
) -> ShardListing:
    """List everything where few requests can, and else the shards' folders only.

    `pages_max` tells how many requests are few, by the number of shards listed: one by default.
    """
    files = None if folders_only else _whole(objects, pages_max)
    names = objects.list_folders(layout.MEM_WAL) if files is None else sorted(files)
    shards = [ShardId(name) for name in names if layout.is_shard_folder(name)]
    strangers = [name for name in names if not layout.is_shard_folder(name)]
    known = None if files is None else {shard: files[shard] for shard in shards}
    return ShardListing(objects, shards, strangers, known)


def _whole(objects: Objects, pages_max: Callable[[int], int]) -> dict[str, list[StoredFile]] | None:
    """Every file by the folder that it is in; None where that may take more requests."""
    most = objects.page_objects
    if most == 0:
        return None
    files: dict[str, list[StoredFile]] = {}
    for number, info in enumerate(objects.list(layout.MEM_WAL), start=1):
        name, slash, _ = info.path[len(layout.MEM_WAL) + 1 :].partition("/")
        if slash:
            files.setdefault(name, []).append(info)
        # The last page is not read to its end: whether there is another one costs a request.
        if number % most == 0 and number // most >= pages_max(len(files)):
            return None
    return files


def manifest_versions(shard_id: ShardId, files: Iterable[StoredFile]) -> list[int]:
    """The shard manifest versions among a shard's files."""
    names = _names(layout.manifest_folder(shard_id), files)
    versions = (layout.parse_shard_manifest_name(name) for name, _ in names)
    return [version for version in versions if version is not None]


def newest_manifest(shard_id: ShardId, files: Iterable[StoredFile]) -> StoredFile | None:
    """The file of the shard's newest manifest, as far as its files show."""
    below = f"{layout.manifest_folder(shard_id)}/"
    found = (
        (version, file)
        for file in files
        if file.path.startswith(below)
        and (version := layout.parse_shard_manifest_name(file.path[len(below) :])) is not None
    )
    return max(found, key=lambda pair: pair[0], default=(0, None))[1]


def wal_entries(shard_id: ShardId, files: Iterable[StoredFile]) -> list[tuple[int, StoredFile]]:
    """Positions and files of the WAL entries among a shard's files, ascending."""
    names = _names(layout.wal_folder(shard_id), files)
    found = ((layout.parse_wal_entry_name(name), info) for name, info in names)
    return sorted(
        ((position, info) for position, info in found if position is not None),
        key=lambda pair: pair[0],
    )


def _names(folder: str, files: Iterable[StoredFile]) -> Iterable[tuple[str, StoredFile]]:
    below = f"{folder}/"
    return ((i.path.removeprefix(below), i) for i in files if i.path.startswith(below))
