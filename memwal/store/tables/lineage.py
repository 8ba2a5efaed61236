"""Since when a table's MemWAL index provably exists, and when generations were flushed.

The first generation of a shard that is merged has to be younger than the index
(`memwal.rows.lineage`). Proving that takes a walk down the retained versions, which many shards
would repeat. So a walk's result is remembered: each unit takes along what was known when it was
planned, and units that run in one process share what each has read since. The result stays true: a
version never changes, and a version of the same number in a table that was created again has
another commit time. A fresh view reads the newer versions first.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice

from memwal.errors import MemWalError, Missing, StoreUnavailable
from memwal.format import layout
from memwal.model import FlushedGeneration, ShardId, ShardView, TableView, VersionHeader
from memwal.ports import Objects
from memwal.rows import align
from memwal.store.tables.datasets import LanceTables, columns_of
from memwal.store.tables.manifests import TableManifests
from memwal.threads import side_by_side

_HISTORY_VERSIONS_MAX = 10_000
# How many of the newest versions are kept, so that walks from slightly different views can join in.
_NEWEST_MAX = 64
# For how many tables a process remembers what its units have read, at some kilobytes each.
_TABLES_MAX = 256

Renamed = Callable[[TableView, align.Rename, int], bool]
"""`renamed(view, rename, generation)` tells whether history proves a rename."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedVersions:
    """A run of consecutive retained versions, all of which have the MemWAL index.

    `newest` maps the newest of them to their commit times. `first` is the number of the oldest one,
    `since_nanos` the earliest commit time of any. `ended` means that no older version belongs to
    the run, `made` that this is because the version before it has no MemWAL index.
    """

    newest: Mapping[int, int]
    first: int
    since_nanos: int
    ended: bool = False
    made: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What is known so far, as plain data that can be sent to other processes.

    `flushed` has, by shard, the path of its oldest pending generation and when it was flushed.
    """

    flushed: Mapping[ShardId, tuple[str, int]] = field(default_factory=dict)
    versions: IndexedVersions | None = None

    def part(self, shard_ids: Iterable[ShardId]) -> Lineage:
        """The part of the lineage that these shards need."""
        known = {shard: self.flushed[shard] for shard in shard_ids if shard in self.flushed}
        return replace(self, flushed=known)


@dataclass(kw_only=True, slots=True)
class _Walked:
    versions: IndexedVersions | None = None

    def learn(self, versions: IndexedVersions | None) -> None:
        """Keep the versions with the latest commit.

        Numbers don't tell: a table that was created again may have fewer versions.
        """
        if self.versions is None or (
            versions is not None and _until_nanos(versions) > _until_nanos(self.versions)
        ):
            self.versions = versions


@lru_cache(maxsize=_TABLES_MAX)
def _recall_walk(store: str, uri: str) -> _Walked:
    """What the units of this process know of a table, by its store and its address there."""
    return _Walked()


class StoredLineage:
    """The lineage of one table, read on demand and only once."""

    def __init__(self, objects: Objects, tables: LanceTables, *, readers_max: int) -> None:
        self._flushed: dict[ShardId, tuple[str, int]] = {}
        self._walked = _Walked()
        self._objects = objects
        self._tables = tables
        self._readers_max = readers_max
        self._manifests = TableManifests(objects)

    def lineage(self, view: TableView, shards: Sequence[ShardView]) -> Lineage:
        """Reads, in threads, what tells whether these shards' generations belong to the table.

        The result is remembered for the calls below. What can't be read is left out.
        """
        new = [(s.shard_id, s.pending[0]) for s in shards if s.pending and not s.merged_generation]
        away = threading.Event()

        def read_time(pair: tuple[ShardId, FlushedGeneration]) -> int | None:
            try:
                return None if away.is_set() else self.flushed_at_nanos(*pair)
            except StoreUnavailable:
                away.set()  # the remaining reads would wait just as long
            except MemWalError:
                pass  # the merge of the shard reports it
            return None

        times = [at for at in side_by_side(read_time, new, self._readers_max) if at is not None]
        if times:
            with suppress(MemWalError):
                self.mem_wal_since_nanos(view, min(times))
        return Lineage(flushed=dict(self._flushed), versions=self._walked.versions)

    def learn(self, lineage: Lineage) -> None:
        """Continue from a planned `lineage`, or from what units of this process have read since."""
        self._flushed = dict(lineage.flushed)
        self._walked = _recall_walk(self._objects.store, self._objects.uri)
        self._walked.learn(lineage.versions)

    def flushed_at_nanos(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        """The commit time of the generation's first version (see the Views port)."""
        path, at = self._flushed.get(shard_id, ("", 0))
        if path != generation.path:
            folder = layout.generation_folder(shard_id, generation.path, generation.generation)
            at = TableManifests(self._objects, root=folder).committed_at_nanos(1)
            self._flushed[shard_id] = (generation.path, at)
        return at

    def mem_wal_since_nanos(self, view: TableView, not_after_nanos: int) -> int | None:
        """Walk the retained versions down until the answer is settled (see the Views port)."""
        created = view.mem_wal.created_at_millis
        # Every merge gives the entry a new creation time, so an early one proves the point and a
        # late one proves nothing.
        if created is not None and created * 10**6 < not_after_nanos:
            return created * 10**6
        try:
            found = self._walk(view, not_after_nanos)
        except Missing:
            return None  # expired while we walked: the evidence is gone
        self._walked.versions = found
        is_settled = found.made or found.since_nanos <= not_after_nanos
        return found.since_nanos if is_settled else None

    def renamed(self, view: TableView, rename: align.Rename, generation: int) -> bool:
        """Whether the field went from one name to the other without ever being absent.

        Walks back through retained versions to one in which it had the generation's name.
        """
        for version in reversed(
            self._manifests.attached_versions(view.version)[-_HISTORY_VERSIONS_MAX:]
        ):
            try:
                names = {c.field_id: c.name for c in columns_of(self._tables.base(version))}
            except Missing:
                return False  # expired while we walked: the evidence is gone
            if rename.field_id not in names:
                return False
            if names[rename.field_id] == rename.before:
                return True
        return False

    def _walk(self, view: TableView, not_after_nanos: int) -> IndexedVersions:
        known = self._walked.versions
        found = _extend(None, view.version, view.manifest.timestamp_nanos, known)
        listed: list[int] = []
        for _ in range(_HISTORY_VERSIONS_MAX):
            if found.ended or found.since_nanos <= not_after_nanos:
                break
            older = self._read_older(found.first, listed, known)
            if older is None or not older.has_mem_wal:
                return replace(found, ended=True, made=older is not None)
            found = _extend(found, older.version, older.timestamp_nanos, known)
        return found

    def _read_older(
        self, version: int, listed: list[int], known: IndexedVersions | None
    ) -> VersionHeader | None:
        """The newest retained version below one; `listed` are all, once a number was missing."""
        if not listed:
            try:
                return self._read_header(version - 1, known) if version > 1 else None
            except Missing:
                listed.extend(self._manifests.versions())
        place = bisect_left(listed, version)
        return self._read_header(listed[place - 1], known) if place else None

    def _read_header(self, version: int, known: IndexedVersions | None) -> VersionHeader:
        """A version's header; of a known version only the commit time is read, to confirm it."""
        at = None if known is None else known.newest.get(version)
        if at is not None and self._manifests.committed_at_nanos(version) == at:
            return VersionHeader(version=version, timestamp_nanos=at, has_mem_wal=True)
        return self._manifests.header(version)


def _until_nanos(versions: IndexedVersions) -> int:
    return max(versions.newest.values())


def _extend(
    found: IndexedVersions | None, version: int, at_nanos: int, known: IndexedVersions | None
) -> IndexedVersions:
    """Adds `version` below the versions found, and all known ones once it is one of them."""
    newer = {} if found is None else found.newest
    since_nanos = at_nanos if found is None else min(found.since_nanos, at_nanos)
    if known is None or known.newest.get(version) != at_nanos:
        newest = {**newer, version: at_nanos} if len(newer) < _NEWEST_MAX else newer
        return IndexedVersions(newest=newest, first=version, since_nanos=since_nanos)
    if found is None:
        return known  # newer ones that are known go on from this one
    older = ((v, at) for v, at in known.newest.items() if v <= version)
    return replace(
        known,
        newest=dict(islice(chain(newer.items(), older), _NEWEST_MAX)),
        since_nanos=min(since_nanos, known.since_nanos),
    )
