"""Reads flushed generations as rows of the base table, and since when they belong to it.

The first generation of a shard that is merged has to be younger than the index
(`memwal.rows.progress`). Proving that takes a walk down the retained versions, which many shards
would repeat. So a walk's result is remembered: each unit takes along what was known when it was
planned, and units that run in one process share what each has read since. The result stays true: a
version never changes, and a version of the same number in a table that was created again has
another commit time. A fresh view reads the newer versions first.
"""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from memwal.errors import (
    Corruption,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
    Unsupported,
)
from memwal.format import layout
from memwal.model import ColumnInfo, FlushedGeneration, ShardId, ShardView, TableView, VersionHeader
from memwal.ports import Objects
from memwal.rows import align
from memwal.store.tables.blobs import BlobReader, Bounds, as_type, blob_columns, nulls
from memwal.store.tables.datasets import LanceTables, columns_of
from memwal.store.tables.field_ids import FieldIds
from memwal.store.tables.lance_calls import Says, is_panic, says, tidy_text, translated
from memwal.store.tables.manifests import TableManifests, check_data_files
from memwal.threads import side_by_side

_READERS_MAX = 16
_RESTORED = "memwal.restored"
_RESTORED_VALUE = re.compile("([0-9]{1,20}):([0-9]{1,20})")
_HISTORY_VERSIONS_MAX = 10_000
# How many of the newest versions are kept, so that walks from slightly different views can join in.
_NEWEST_MAX = 64
# For how many tables a process remembers what its units have read, at some kilobytes each.
_TABLES_MAX = 256

_BATCH_ROWS_MAX = 8192
_FOLDERS = ("_versions", "data")
_READING_FAULTS = (OSError, ValueError, pa.ArrowException)


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


def name_restored(version: int, mem_wal_since_nanos: int) -> dict[str, str]:
    """What a restored table's configuration says in place of the versions that it lacks, or will
    lack. Since when the MemWAL index existed is 0 if nothing needs that.
    """
    return {_RESTORED: f"{version}:{mem_wal_since_nanos}"}


def _read_restored(view: TableView, first: int) -> int | None:
    """Since when the index existed in the table that was backed up; None if that does not matter.

    It does where all versions from the restored one on have the index; `first` is the oldest.
    """
    found = _RESTORED_VALUE.fullmatch(view.manifest.config.get(_RESTORED, ""))
    return int(found[2]) or None if found is not None and first <= int(found[1]) else None


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

    def __init__(self, objects: Objects, tables: LanceTables) -> None:
        self._flushed: dict[ShardId, tuple[str, int]] = {}
        self._walked = _Walked()
        self._objects = objects
        self._tables = tables
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

        times = [at for at in side_by_side(read_time, new, _READERS_MAX) if at is not None]
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
        return found.since_nanos if is_settled else _read_restored(view, found.first)

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


@dataclass(frozen=True, kw_only=True)
class Source:
    """One opened generation, aligned with the columns of the base.

    Rows that are scanned with the options of `blobs` must go through its `read`. `access` stands
    for the credentials with which it was opened.
    """

    dataset: Any
    blobs: BlobReader
    columns: tuple[ColumnInfo, ...]
    alignment: align.Alignment
    batch_rows: int
    access: int = 0

    @cached_property
    def identity(self) -> str:
        """A text that differs from that of every other generation, as a key for caches.

        Data files have random names, so it also differs from a generation of the same name in a
        table that was created again. It differs by credentials, too: what is cached of a generation
        may go on reading with those that it was opened with.
        """
        files = [fragment.metadata for fragment in self.dataset.get_fragments()]
        return f"{self.access} {files} {self.alignment}"

    def project(self, columns: Iterable[str]) -> list[str] | None:
        """Which stored columns to scan for these columns of the base; None: all.

        To read thousands of columns by their names takes Lance several times as long.
        """
        names = [*self.alignment.stored(columns), layout.TOMBSTONE]
        return None if {c.name for c in self.columns} <= set(names) else names[:-1]

    @property
    def deletes(self) -> bool:
        """Whether the generation has a tombstone column, so that it can hold deletes."""
        return any(column.name == layout.TOMBSTONE for column in self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Generations:
    """One table's flushed generations.

    `access` stands for the credentials of `tables`, for callers that cache what is read.
    """

    objects: Objects
    tables: LanceTables
    field_ids: FieldIds
    access: int = 0

    def open(self, view: TableView, shard_id: ShardId, generation: FlushedGeneration) -> Source:
        """Opens a generation as rows of the view's columns, after a check of its data files.

        Raises Missing, Corruption, StoreUnavailable; Refused for schema drift that would drop or
        mix up data.
        """
        return self.line_up(view, shard_id, generation, self.open_dataset(shard_id, generation))

    def open_unchecked(
        self, view: TableView, shard_id: ShardId, generation: FlushedGeneration
    ) -> Source:
        """The same as `open`, for a caller that checks the data files before it reads any rows."""
        dataset = self.tables.generation(shard_id, generation)
        return self.line_up(view, shard_id, generation, dataset)

    def check(self, shard_id: ShardId, generation: FlushedGeneration, source: Source) -> None:
        """Raise Corruption for a data file that must not be read, Missing for one that is gone."""
        check_data_files(self.objects, shard_id, generation, source.dataset)

    def keys(
        self,
        shard_id: ShardId,
        generation: FlushedGeneration,
        source: Source,
        keys: Sequence[str],
    ) -> pa.Table:
        """Reads the generation's key columns, row addresses and tombstones

        Raises Missing, Corruption.
        """
        with reading(self.tables.uri, shard_id, generation):
            return key_scanner(source, keys).to_table()

    def stamp(self, shard_id: ShardId, generation: FlushedGeneration) -> str:
        """Inodes and change times of a local generation's folders, to detect that it was replaced.

        Empty for a remote generation, whose path is random; `gone` when a folder is missing.
        """
        if "://" in self.tables.uri:
            return ""
        folder = layout.generation_folder(shard_id, generation.path, generation.generation)
        try:
            found = [os.stat(f"{self.tables.uri}/{folder}/{name}") for name in _FOLDERS]  # noqa: PTH116
        except OSError:
            return "gone"
        return " ".join(f"{one.st_ino} {one.st_ctime_ns}" for one in found)

    def open_dataset(self, shard_id: ShardId, generation: FlushedGeneration) -> Any:
        """Opens a generation as Lance's dataset, after a check of its data files."""
        dataset = self.tables.generation(shard_id, generation)
        check_data_files(self.objects, shard_id, generation, dataset)
        return dataset

    def line_up(
        self, view: TableView, shard_id: ShardId, generation: FlushedGeneration, dataset: Any
    ) -> Source:
        """An opened generation as rows of the view's columns.

        Raises Refused for schema drift, Unsupported for a column that may be Lance's own.
        """
        with reading(self.tables.uri, shard_id, generation):  # a wrong type in a manifest
            columns = columns_of(dataset)
        where = f"shard {shard_id}, generation {generation.generation} ({generation.path})"
        if any(c.name == layout.TOMBSTONE and c.type_text != "bool" for c in columns):
            raise Corruption("MW-F05", f"{self.tables.uri}: {where}: {layout.TOMBSTONE} is no bool")
        try:
            ids = [column.field_id for column in columns]
            reused = self.field_ids.find_reused(
                view.version, shard_id, ids, generation=generation.generation
            )
            alignment = align.align(view.columns, columns, "generation", reused)
        except (Refused, Unsupported) as error:
            raise error.at(where) from None
        rows = max(1, generation.physical_rows or dataset.count_rows())
        per_row = max(1, (generation.in_memory_bytes or 0) // rows)
        return Source(
            dataset=dataset,
            blobs=self._blobs(view, f"{self.tables.uri}: {where}", dataset, columns),
            columns=columns,
            alignment=alignment,
            batch_rows=max(1, min(_BATCH_ROWS_MAX, self.tables.memory.batch_bytes // per_row)),
            access=self.access,
        )

    def _blobs(
        self, view: TableView, where: str, dataset: Any, columns: Sequence[ColumnInfo]
    ) -> BlobReader:
        found = blob_columns(columns)
        bounds = None
        if found:
            bounds = Bounds(root=self.tables.uri, bases=self.tables.bases(view.version))
        return BlobReader(where=where, dataset=dataset, columns=found, bounds=bounds)


def key_scanner(source: Source, keys: Sequence[str]) -> Any:
    """A scanner of key columns, addresses and tombstones."""
    wanted = [*keys, layout.TOMBSTONE] if source.deletes else list(keys)
    return source.dataset.scanner(columns=wanted, with_row_address=True)


def as_base_rows(source: Source, batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The generation's rows as rows of `schema`, whose fields are columns of the base."""
    return line_up_rows(source.alignment, batch, schema)


def line_up_rows(
    alignment: align.Alignment, batch: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    """Stored rows as rows of `schema`, whose fields are columns of the base."""
    arrays = [
        nulls(one.type, batch.num_rows)
        if one.name in alignment.lacking
        else as_type(batch.column(one.name), one.type)
        for one in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def reading(
    uri: str, shard_id: ShardId, generation: FlushedGeneration
) -> AbstractContextManager[None]:
    """Turn an error of Lance's, or a panic in its Rust code, into Missing or Corruption."""
    where = f"{uri}: shard {shard_id}: generation {generation.generation} ({generation.path})"
    return translated(partial(unreadable_text, where), _READING_FAULTS)


def unreadable_text(where: str, error: BaseException) -> Exception:
    """The error to raise: Missing when files are gone (perhaps collected), otherwise Corruption."""
    text = tidy_text(error)
    if says(error, Says.GONE):
        return Missing(f"{where}: {text}")
    return Corruption("MW-F01", f"{where} can't be read: {text}")


def is_reading_fault(error: BaseException) -> bool:
    """Whether a read's error is about what is stored rather than about this program."""
    return isinstance(error, _READING_FAULTS) or is_panic(error)
