"""The retained versions of a table (main, branches, detached ones), and what each says.

What was read is remembered by path, size, time and etag: in this object, and in a small cache file.
The file only saves an idle run its reads. A plan that is carried out (`verified`) takes nothing
from it, since a forged fact would let a generation go.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from urllib.parse import unquote

from memwal.errors import Corruption, Missing
from memwal.format import layout
from memwal.jobs.garbage.model import RetainedVersion
from memwal.jobs.garbage.store.cache import CacheFile
from memwal.model import StoredFile
from memwal.ports import DOCUMENT_BYTES_MAX, Objects
from memwal.store.records.former_merges import list_named
from memwal.store.tables.manifests import TableManifests

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
        self._cache: CacheFile[list[tuple[StoredFile, RetainedVersion]]] = CacheFile(
            objects, "retained_versions", list[tuple[StoredFile, RetainedVersion]]
        )
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
        """Cache what is known of the versions for the next run, if any is new."""
        known = self._keys
        if len(known) < _CACHED_VERSIONS_MIN or known.keys() <= self._read_cache().keys():
            return
        self._cache.write(sorted(known.items(), key=lambda found: found[0].path), before_write)

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
        return {
            file: version
            for file, version in self._cache.stored or ()
            if layout.parse_table_manifest_name(file.path.rpartition("/")[2]) == version.version
        }


def _is_generation(folder: str) -> bool:
    """Whether the folder is a flushed generation in a branch's own MemWAL, itself a Lance table."""
    parts = folder.split("/")
    return (
        len(parts) >= 3
        and parts[-3] == layout.MEM_WAL
        and layout.is_shard_folder(parts[-2])
        and layout.parse_generation_folder(parts[-1]) is not None
    )
