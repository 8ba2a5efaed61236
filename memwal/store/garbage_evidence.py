"""Reads what the garbage job decides by: retained versions, shard folders, leftovers.

Everything here is read after the view was: a writer that goes on in between can only add folders
at or above the view's current generation, and versions that have merged more, or what a retained
version had.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import UUID

from memwal import layout
from memwal.errors import Corruption, MemWalError, Missing
from memwal.model import ShardId, ShardManifest
from memwal.plan.garbage import (
    Evidence,
    GarbageLimits,
    GenerationFolder,
    RetainedVersion,
    ShardEvidence,
    SnapshotFolder,
    StoredFile,
    StoredManifest,
    WalFile,
    coverable_wal_positions,
    cutoff_nanos,
    past_version,
)
from memwal.ports import ObjectInfo, Objects
from memwal.store.shard_manifests import ShardManifests
from memwal.store.table_manifests import TableManifests
from memwal.store.wal import WalEntries

CACHE_PATH = f"{layout.MAINTENANCE}/cache/retained_versions.json"
_CACHE_FORMAT = 1
_CACHE_BYTES_MAX = 8 * 1024 * 1024
# Below this many versions, reading them costs less than keeping a cache is worth.
_CACHED_VERSIONS_MIN = 64
_READERS_MAX = 16
_INDICES = "_indices"
_SNAPSHOT_FILE = "index.lance"
_SNAPSHOT_TAIL_BYTES = 64 * 1024
# Column names of the spec's shard snapshot, as they stand in a Lance file's schema.
_SNAPSHOT_MARKS = (b"shard_id", b"flushed_generations", b"replay_after_wal_entry_position")

_Key = tuple[str, int, int]
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class _VersionFile:
    """A stored manifest of the base table."""

    info: ObjectInfo
    version: int
    branch: str | None

    @property
    def key(self) -> _Key:
        return (self.info.path, self.info.size_bytes, self.info.modified_at_nanos)

    @property
    def name(self) -> str:
        text = f"{'detached ' if layout.is_detached(self.version) else ''}version {self.version}"
        return text if self.branch is None else f"{text} of branch {self.branch}"


class StoredGarbageEvidence:
    """The GarbageEvidence port over an object store.

    Facts about versions are remembered by path, size and time of change: in this object, and in a
    small file. What comes from the file saves an idle run its reads, and no more: nothing that it
    says is taken for a plan that is carried out (`verified`).
    """

    def __init__(self, objects: Objects, *, readers_max: int = _READERS_MAX) -> None:
        self._objects = objects
        self._shards = ShardManifests(objects)
        self._manifests = TableManifests(objects)
        self._wal = WalEntries(objects)
        self._readers_max = readers_max
        self._read: dict[_Key, RetainedVersion] = {}
        self._stored: dict[_Key, RetainedVersion] | None = None
        self._past: dict[tuple[str, int], ShardManifest] = {}
        self._heads: dict[_Key, WalFile] = {}
        self._keys: dict[_Key, RetainedVersion] = {}
        self._lock = threading.Lock()

    def read(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        *,
        limits: GarbageLimits,
        now_nanos: int,
        verified: bool,
        whole_shards: bool = False,
    ) -> Evidence:
        """Everything (see the port)."""
        versions, problems = self._versions(verified)
        shards = self._shard_folders(manifests, limits, now_nanos, whole_shards)
        return Evidence(
            versions=versions,
            shards={s.shard_id: s for s in shards},
            leftovers=self._files(f"{layout.MAINTENANCE}/tmp"),
            snapshots=self._snapshots(),
            problems=tuple(problems),
        )

    def referenced_versions(self) -> frozenset[int]:
        """Versions of main that tags name or branches start from (see the port)."""
        found = set()
        for kind, of, number in (("tags", "branch", "version"),
                                 ("branches", "parentBranch", "parentVersion")):  # fmt: skip
            for info in self._objects.list(f"_refs/{kind}"):
                with suppress(Missing, ValueError, KeyError, TypeError):
                    reference = json.loads(self._objects.get(info.path))
                    if reference[of] is None:
                        found.add(int(reference[number]))
        return frozenset(found)

    def remember(self) -> None:
        """Store what is known of the versions, for the next run (see the port)."""
        known = self._keys
        if len(known) < _CACHED_VERSIONS_MIN or known.keys() <= self._cached().keys():
            return
        data = _encode(known)
        if len(data) <= _CACHE_BYTES_MAX:
            with suppress(MemWalError):
                self._objects.put(CACHE_PATH, data)

    # -- retained versions

    def _versions(self, verified: bool) -> tuple[tuple[RetainedVersion, ...], list[Exception]]:
        problems: list[Exception] = []
        files = list(self._version_files(problems))
        problems += self._missing_branches(files)
        newest = max(
            (f.version for f in files if f.branch is None and not layout.is_detached(f.version)),
            default=None,
        )
        stored = {} if verified else self._cached()

        def look_up(file: _VersionFile) -> RetainedVersion | None:
            latest = file.branch is None and file.version == newest
            known = self._read.get(file.key) or stored.get(file.key)
            if known is not None and not latest:
                return known
            return self._read_version(file)

        found = self._side_by_side(look_up, files)
        self._keys = {
            file.key: version
            for file, version in zip(files, found, strict=True)
            if version is not None and version.problem is None
        }
        return tuple(v for v in found if v is not None), problems

    def _read_version(self, file: _VersionFile) -> RetainedVersion | None:
        """What the file says; None when it was expired since it was listed."""
        about = {
            "name": file.name,
            "version": file.version,
            "on_main": file.branch is None,
        }
        try:
            manifest = self._manifests.read_file(file.info.path, file.version)
        except Missing:
            return None
        except Corruption as error:
            return RetainedVersion(**about, problem=str(error))  # type: ignore[arg-type]
        state = manifest.mem_wal
        uuids = {entry.uuid for entry in manifest.indexes}
        version = RetainedVersion(
            **about,  # type: ignore[arg-type]
            timestamp_nanos=manifest.timestamp_nanos,
            merged=None if state is None else dict(state.merged),
            index_uuids=frozenset(uuids if state is None else uuids | {state.index_uuid}),
        )
        with self._lock:
            self._read[file.key] = version
        return version

    def _version_files(self, problems: list[Exception]) -> Iterator[_VersionFile]:
        for info in self._objects.list(layout.VERSIONS):
            yield from self._version_file(info, None, problems)
        for info in self._objects.list(layout.BRANCHES):
            branch, found, name = info.path.rpartition(f"/{layout.VERSIONS}/")
            if found and "/" not in name and not _is_generation(branch):
                branch = branch.removeprefix(f"{layout.BRANCHES}/")
                yield from self._version_file(info, branch, problems)

    def _version_file(
        self, info: ObjectInfo, branch: str | None, problems: list[Exception]
    ) -> Iterator[_VersionFile]:
        name = info.path.rsplit("/", 1)[-1]
        version = layout.parse_table_manifest_name(name)
        if version is not None:
            yield _VersionFile(info=info, version=version, branch=branch)
        elif name.endswith(".manifest"):
            problems.append(Corruption(f"{self._objects.uri}: {info.path} has no manifest's name"))

    def _missing_branches(self, files: Iterable[_VersionFile]) -> Iterator[Exception]:
        """Branches that are referred to, and have no version to be found."""
        there = {file.branch for file in files}
        for info in self._objects.list("_refs/branches"):
            stem, dot, extension = info.path.rsplit("/", 1)[-1].rpartition(".")
            if dot and extension == "json" and unquote(stem) not in there:
                yield Corruption(
                    f"{self._objects.uri}: branch {unquote(stem)!r} has no version in "
                    f"{layout.versions_folder(unquote(stem))}"
                )

    def _cached(self) -> dict[_Key, RetainedVersion]:
        if self._stored is None:
            try:
                self._stored = _decode(self._objects.get(CACHE_PATH))
            except Missing:
                self._stored = {}
        return self._stored

    # -- shards

    def _shard_folders(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        limits: GarbageLimits,
        now_nanos: int,
        whole: bool,
    ) -> list[ShardEvidence]:
        cutoff = cutoff_nanos(limits, now_nanos)
        names = self._shards.shard_folders()[0]

        def look(shard_id: ShardId) -> ShardEvidence:
            listed = ShardEvidence(shard_id=shard_id)
            try:
                listed = self._list_shard(shard_id, wal=limits.wal, whole=whole)
                manifest = manifests.get(shard_id)
                return listed if manifest is None else self._dated(listed, manifest, cutoff)
            except MemWalError as error:
                return replace(listed, problem=error)

        shards = self._side_by_side(look, names)
        return self._with_heads(shards, manifests, limits, cutoff) if limits.wal else shards

    def _list_shard(self, shard_id: ShardId, *, wal: bool, whole: bool) -> ShardEvidence:
        below = layout.shard_folder(shard_id)
        folders: dict[str, list[StoredFile]] = {}
        others: dict[str, StoredFile] = {}
        manifests: list[StoredManifest] = []
        entries: list[WalFile] = []
        files: list[StoredFile] = []
        for info in self._objects.list(below):
            top, _, rest = info.path.removeprefix(f"{below}/").partition("/")
            file = _stored_file(info)
            if top == "manifest" and rest:
                version = layout.parse_shard_manifest_name(rest)
                if version is not None:
                    manifests.append(
                        StoredManifest(version=version, modified_at_nanos=info.modified_at_nanos)
                    )
            elif top == "wal" and rest:
                position = layout.parse_wal_entry_name(rest)
                if position is not None and wal:
                    entries.append(WalFile(position=position, file=file))
            elif rest and layout.parse_generation_folder(top) is not None:
                folders.setdefault(top, []).append(file)
            else:
                others[top] = _together(others.get(top), file, f"{below}/{top}")
                continue
            if whole:
                files.append(file)
        return ShardEvidence(
            shard_id=shard_id,
            folders=tuple(
                GenerationFolder(
                    name=name,
                    generation=layout.parse_generation_folder(name) or 0,
                    files=tuple(found),
                )
                for name, found in sorted(folders.items())
            ),
            wal=tuple(sorted(entries, key=lambda e: e.position)),
            manifests=tuple(manifests),
            others=tuple(others.values()),
            files=tuple(files),
        )

    def _dated(self, listed: ShardEvidence, manifest: ShardManifest, cutoff: int) -> ShardEvidence:
        """With the manifest from before the grace, and what former manifests say of the folders."""
        version = past_version(listed.manifests, cutoff)
        if version is None:
            return listed
        named = {g.path for g in manifest.flushed_generations}
        return replace(
            listed,
            past=(
                manifest
                if version == manifest.version
                else self._manifest(listed.shard_id, version)
            ),
            folders=tuple(
                folder
                if folder.name in named
                else replace(folder, was_listed=self._was_listed(listed, folder))
                for folder in listed.folders
            ),
        )

    def _was_listed(self, listed: ShardEvidence, folder: GenerationFolder) -> bool:
        """Whether the flush of the folder's number listed this very folder.

        That was the first version whose current generation is above the number; counters never
        fall, so it is found by halves. Only the report's word for the folder hangs on it.
        """
        versions = sorted(m.version for m in listed.manifests)
        low, high = 0, len(versions)
        try:
            while low < high:
                middle = (low + high) // 2
                found = self._manifest(listed.shard_id, versions[middle])
                if found.current_generation > folder.generation:
                    high = middle
                else:
                    low = middle + 1
            if low == len(versions):
                return False
            flushed = self._manifest(listed.shard_id, versions[low])
        except MemWalError:
            return False
        return any(g.path == folder.name for g in flushed.flushed_generations)

    def _manifest(self, shard_id: ShardId, version: int) -> ShardManifest:
        known = self._past.get((shard_id, version))
        if known is None:
            known = self._shards.read(shard_id, version)
            with self._lock:
                self._past[shard_id, version] = known
        return known

    def _with_heads(
        self,
        shards: Sequence[ShardEvidence],
        manifests: Mapping[ShardId, ShardManifest],
        limits: GarbageLimits,
        cutoff: int,
    ) -> list[ShardEvidence]:
        """With the heads of the WAL entries that could go, as far as that is known without them."""
        wanted: list[WalFile] = []
        for shard in shards:
            manifest = manifests.get(shard.shard_id)
            if manifest is None or shard.problem is not None:
                continue
            positions = [w.position for w in shard.wal]
            chosen = set(
                coverable_wal_positions(positions, manifest, shard.past)[
                    : limits.wal_entries_per_shard_max
                ]
            )
            wanted += [
                w for w in shard.wal if w.position in chosen and w.file.modified_at_nanos <= cutoff
            ]
        heads = dict(
            zip(
                (w.file.path for w in wanted),
                self._side_by_side(self._head, wanted),
                strict=True,
            )
        )
        return [
            replace(shard, wal=tuple(heads.get(w.file.path, w) for w in shard.wal))
            for shard in shards
        ]

    def _head(self, entry: WalFile) -> WalFile:
        file = entry.file
        key = (file.path, file.size_bytes, file.modified_at_nanos)
        known = self._heads.get(key)
        if known is not None:
            return known
        try:
            head = self._wal.head(file.path, file.size_bytes)
        except MemWalError as error:
            return replace(entry, problem=str(error))
        found = replace(
            entry, read=True, generation=head.generation, fence_sentinel=head.fence_sentinel
        )
        with self._lock:
            self._heads[key] = found
        return found

    # -- leftovers

    def _files(self, folder: str) -> tuple[StoredFile, ...]:
        return tuple(_stored_file(info) for info in self._objects.list(folder))

    def _snapshots(self) -> tuple[SnapshotFolder, ...]:
        """Index folders that hold a shard snapshot and nothing else."""
        folders: dict[str, list[ObjectInfo]] = {}
        for info in self._objects.list(_INDICES):
            folders.setdefault(info.path.split("/")[1], []).append(info)
        lone = [
            SnapshotFolder(index_uuid=name, file=_stored_file(files[0]))
            for name, files in sorted(folders.items())
            if len(files) == 1
            and _is_uuid(name)
            and files[0].path == f"{_INDICES}/{name}/{_SNAPSHOT_FILE}"
        ]
        known = self._side_by_side(self._is_snapshot, lone)
        return tuple(found for found, ours in zip(lone, known, strict=True) if ours)

    def _is_snapshot(self, found: SnapshotFolder) -> bool:
        """Another index could keep a single file of that name; its columns tell."""
        try:
            tail, _ = self._objects.get_tail(found.file.path, _SNAPSHOT_TAIL_BYTES)
        except Missing:
            return False
        return all(mark in tail for mark in _SNAPSHOT_MARKS)

    def _side_by_side(self, work: Callable[[T], R], things: Sequence[T]) -> list[R]:
        if not things:
            return []
        with ThreadPoolExecutor(min(self._readers_max, len(things))) as pool:
            return list(pool.map(work, things))


def _stored_file(info: ObjectInfo) -> StoredFile:
    return StoredFile(
        path=info.path, size_bytes=info.size_bytes, modified_at_nanos=info.modified_at_nanos
    )


def _together(before: StoredFile | None, file: StoredFile, path: str) -> StoredFile:
    """A whole unknown folder as one thing."""
    if before is None:
        return replace(file, path=path)
    return StoredFile(
        path=path,
        size_bytes=before.size_bytes + file.size_bytes,
        modified_at_nanos=max(before.modified_at_nanos, file.modified_at_nanos),
    )


def _is_generation(folder: str) -> bool:
    """Whether it is a flushed generation in a branch's own MemWAL, which is a table too."""
    parts = folder.split("/")
    return (
        len(parts) >= 3
        and parts[-3] == layout.MEM_WAL
        and layout.is_shard_folder(parts[-2])
        and layout.parse_generation_folder(parts[-1]) is not None
    )


def _is_uuid(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


# ---- the cache file


def _encode(known: Mapping[_Key, RetainedVersion]) -> bytes:
    entries = [
        {
            "path": path,
            "size_bytes": size,
            "modified_at_nanos": modified,
            "name": version.name,
            "version": version.version,
            "on_main": version.on_main,
            "timestamp_nanos": version.timestamp_nanos,
            "merged": None if version.merged is None else dict(version.merged),
            "index_uuids": sorted(version.index_uuids),
        }
        for (path, size, modified), version in sorted(known.items())
    ]
    return json.dumps(
        {"format": _CACHE_FORMAT, "sha256": _digest(entries), "entries": entries}
    ).encode()


def _digest(entries: Any) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _decode(data: bytes) -> dict[_Key, RetainedVersion]:
    """The facts in a cache file; none when anything about it is odd."""
    try:
        document = json.loads(data)
        entries = document["entries"]
        if document["format"] != _CACHE_FORMAT or document["sha256"] != _digest(entries):
            return {}
        return {
            (str(e["path"]), int(e["size_bytes"]), int(e["modified_at_nanos"])): RetainedVersion(
                name=str(e["name"]),
                version=int(e["version"]),
                on_main=bool(e["on_main"]),
                timestamp_nanos=int(e["timestamp_nanos"]),
                merged=None
                if e["merged"] is None
                else {ShardId(str(s)): int(g) for s, g in e["merged"].items()},
                index_uuids=frozenset(str(u) for u in e["index_uuids"]),
            )
            for e in entries
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
