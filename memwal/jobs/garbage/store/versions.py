"""The retained versions of a table (main, branches, detached ones), and what each says.

What was read is remembered by path, size, time and etag: in this object, and in a small cache file.
The file only saves an idle run its reads. A plan that is carried out (`verified`) takes nothing
from it, since a forged fact would let a generation go. Fields that a newer build adds to the file
are ignored and kept; they must not change what the others mean.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any
from urllib.parse import unquote

from memwal.errors import Corruption, MemWalError, Missing
from memwal.format import layout
from memwal.jobs.garbage.model import RetainedVersion
from memwal.model import ShardId, StoredFile
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.store.records.former_merges import list_named
from memwal.store.tables.manifests import TableManifests

CACHE_PATH = f"{layout.MAINTENANCE}/cache/retained_versions.json"
_CACHE_FORMAT = 2
_CACHE_BYTES_MAX = 8 * 1024 * 1024
# Below this many versions, reading them costs less than keeping a cache is worth.
_CACHED_VERSIONS_MIN = 64

_NOT_A_REFERENCE = (ValueError, KeyError, TypeError, OverflowError, RecursionError)


@dataclass(frozen=True, kw_only=True, slots=True)
class _VersionFile:
    """A stored manifest of the base table."""

    info: StoredFile
    version: int
    branch: str | None

    @property
    def name(self) -> str:
        text = f"{'detached ' if layout.is_detached(self.version) else ''}version {self.version}"
        return text if self.branch is None else f"{text} of branch {self.branch}"


class RetainedVersions:
    """The retained versions of one table."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._manifests = TableManifests(objects)
        self._read: dict[StoredFile, RetainedVersion] = {}
        self._stored: dict[StoredFile, RetainedVersion] | None = None
        self._document: Mapping[str, Any] = {}
        self._keys: dict[StoredFile, RetainedVersion] = {}
        self._lock = threading.Lock()

    def read_referenced(self) -> frozenset[int]:
        """Versions of main that tags name or branches start from."""
        found = (version for _, version in self.list_references())
        return frozenset(version for version in found if version is not None)

    def read_claimed(self) -> frozenset[int] | None:
        """As `read_referenced`, without tags of checkpoints; None if a reference can't be read."""
        ours = layout.checkpoint_tag_path("").removesuffix(".json")
        found = [v for path, v in self.list_references() if not path.startswith(ours)]
        return None if None in found else frozenset(v for v in found if v is not None)

    def list_references(self) -> Iterator[tuple[str, int | None]]:
        """Paths of references to main, each with its version; None for a malformed reference."""
        for kind, of, number in (("tags", "branch", "version"),
                                 ("branches", "parentBranch", "parentVersion")):  # fmt: skip
            for info in self._objects.list(f"_refs/{kind}"):
                try:
                    reference = json.loads(self._objects.get(info.path, DOCUMENT_BYTES_MAX))
                    if reference[of] is None:
                        yield info.path, int(reference[number])
                except Missing:
                    continue
                except _NOT_A_REFERENCE:
                    yield info.path, None

    def remember(self, before_write: Callable[[], None]) -> None:
        """Cache what is known of the versions for the next run, if any is new (see the port)."""
        known = self._keys
        if len(known) < _CACHED_VERSIONS_MIN or known.keys() <= self._read_cache().keys():
            return
        data = _encode(known, self._document)
        if len(data) <= _CACHE_BYTES_MAX:
            with suppress(MemWalError):
                before_write()
                self._objects.put(CACHE_PATH, data)

    def read(
        self, pool: Executor, *, verified: bool
    ) -> tuple[tuple[RetainedVersion, ...], list[Exception]]:
        """Every retained version, and the problems that kept versions from being found.

        `verified` ignores the cache file. The latest version is always read anew.
        """
        problems: list[Exception] = []
        files = list(self._list_files(problems))
        problems += self._find_missing_branches(files)
        newest = max(
            (f.version for f in files if f.branch is None and not layout.is_detached(f.version)),
            default=None,
        )
        stored = {} if verified or len(files) < _CACHED_VERSIONS_MIN else self._read_cache()

        def look_up(file: _VersionFile) -> RetainedVersion | None:
            latest = file.branch is None and file.version == newest
            known = self._read.get(file.info) or stored.get(file.info)
            return known if known is not None and not latest else self._read_version(file)

        found = list(pool.map(look_up, files))
        self._keys = {
            file.info: version
            for file, version in zip(files, found, strict=True)
            if version is not None and version.problem is None
        }
        return tuple(v for v in found if v is not None), problems

    def _read_version(self, file: _VersionFile) -> RetainedVersion | None:
        """What the file says; None when the version was expired after the listing."""
        bare = RetainedVersion(name=file.name, version=file.version, on_main=file.branch is None)
        try:
            manifest = self._manifests.read_file(file.info.path, file.version)
        except Missing:
            return None
        except Corruption as error:
            return replace(bare, problem=str(error))
        state = manifest.mem_wal
        uuids = {entry.uuid for entry in manifest.indexes}
        version = replace(
            bare,
            timestamp_nanos=manifest.timestamp_nanos,
            merged=None if state is None else dict(state.merged),
            index_uuids=frozenset(uuids if state is None else uuids | {state.index_uuid}),
            settled_ids=frozenset(list_named(manifest.config)),
        )
        with self._lock:
            self._read[file.info] = version
        return version

    def _list_files(self, problems: list[Exception]) -> Iterator[_VersionFile]:
        for info in self._objects.list(layout.VERSIONS):
            yield from self._name_file(info, None, problems)
        for info in self._objects.list(layout.BRANCHES):
            branch, found, name = info.path.rpartition(f"/{layout.VERSIONS}/")
            if found and "/" not in name and not _is_generation(branch):
                branch = branch.removeprefix(f"{layout.BRANCHES}/")
                yield from self._name_file(info, branch, problems)

    def _name_file(
        self, info: StoredFile, branch: str | None, problems: list[Exception]
    ) -> Iterator[_VersionFile]:
        name = info.path.rsplit("/", 1)[-1]
        version = layout.parse_table_manifest_name(name)
        if version is not None:
            yield _VersionFile(info=info, version=version, branch=branch)
        elif name.endswith(".manifest"):
            problems.append(
                Corruption("MW-G06", f"{self._objects.uri}: {info.path} has no manifest's name")
            )

    def _find_missing_branches(self, files: Iterable[_VersionFile]) -> Iterator[Exception]:
        """A Corruption for each branch that has a reference but no version in the listing."""
        there = {file.branch for file in files}
        for info in self._objects.list("_refs/branches"):
            stem, dot, extension = info.path.rsplit("/", 1)[-1].rpartition(".")
            if dot and extension == "json" and unquote(stem) not in there:
                yield Corruption(
                    "MW-G07",
                    f"{self._objects.uri}: branch {unquote(stem)!r} has no version in "
                    f"{layout.versions_folder(unquote(stem))}",
                )

    def _read_cache(self) -> dict[StoredFile, RetainedVersion]:
        if self._stored is None:
            self._stored = {}
            with suppress(Missing, Corruption):  # Corruption: larger than is ever written
                data = self._objects.get(CACHE_PATH, _CACHE_BYTES_MAX)
                self._stored, self._document = _decode(data)
        return self._stored


def _is_generation(folder: str) -> bool:
    """Whether the folder is a flushed generation in a branch's own MemWAL, itself a Lance table."""
    parts = folder.split("/")
    return (
        len(parts) >= 3
        and parts[-3] == layout.MEM_WAL
        and layout.is_shard_folder(parts[-2])
        and layout.parse_generation_folder(parts[-1]) is not None
    )


# ---- the cache file


def _encode(known: Mapping[StoredFile, RetainedVersion], before: Mapping[str, Any]) -> bytes:
    """The new cache file; fields of the one before that this build doesn't know are kept."""
    kept = {_info_of(entry): entry for entry in before.get("entries", ())}
    ordered = sorted(known, key=astuple)
    entries = [{**kept.get(info, {}), **_entry_of(info, known[info])} for info in ordered]
    own = {"format": _CACHE_FORMAT, "sha256": _digest(entries), "entries": entries}
    return json.dumps({**before, **own}).encode()


def _entry_of(info: StoredFile, version: RetainedVersion) -> dict[str, Any]:
    return {
        **asdict(info),
        "name": version.name,
        "version": version.version,
        "on_main": version.on_main,
        "timestamp_nanos": version.timestamp_nanos,
        "merged": None if version.merged is None else dict(version.merged),
        "index_uuids": sorted(version.index_uuids),
        "settled_ids": sorted(version.settled_ids),
    }


def _info_of(entry: Mapping[str, Any]) -> StoredFile:
    return StoredFile(
        path=str(entry["path"]),
        size_bytes=int(entry["size_bytes"]),
        modified_at_nanos=int(entry["modified_at_nanos"]),
        etag=str(entry["etag"]),
    )


def _digest(entries: Any) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _decode(data: bytes) -> tuple[dict[StoredFile, RetainedVersion], Mapping[str, Any]]:
    """The facts in a cache file, and its document; both empty if anything about it is malformed."""
    try:
        document = json.loads(data)
        entries = document["entries"]
        if document["format"] != _CACHE_FORMAT or document["sha256"] != _digest(entries):
            return {}, {}
        found = {_info_of(entry): _version_of(entry) for entry in entries}
        written = [_entry_of(info, version) for info, version in found.items()]
        stored = [{n: entry[n] for n in own} for own, entry in zip(written, entries, strict=True)]
        named = all(
            layout.parse_table_manifest_name(info.path.rpartition("/")[2]) == version.version
            for info, version in found.items()
        )
    except (*_NOT_A_REFERENCE, AttributeError):
        return {}, {}
    # A file with values that we would write differently (`false` for a version) is not ours.
    return (found, document) if named and _digest(written) == _digest(stored) else ({}, {})


def _version_of(entry: Mapping[str, Any]) -> RetainedVersion:
    merged = entry["merged"]
    return RetainedVersion(
        name=str(entry["name"]),
        version=int(entry["version"]),
        on_main=bool(entry["on_main"]),
        timestamp_nanos=int(entry["timestamp_nanos"]),
        merged=None if merged is None else {ShardId(str(s)): int(g) for s, g in merged.items()},
        index_uuids=frozenset(str(u) for u in entry["index_uuids"]),
        settled_ids=frozenset(str(i) for i in entry["settled_ids"]),
    )
