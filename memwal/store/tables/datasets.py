"""Opens Lance tables, the base and its generations, and reads their properties."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader
from lance.optimize import Compaction

from memwal.config.namespaces import OPTION
from memwal.errors import (
    BadCredentials,
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    NotATable,
    Refused,
    StoreUnavailable,
    Unsupported,
)
from memwal.format import layout
from memwal.format.layout import SYSTEM_INDEXES
from memwal.indexes import FragmentFacts
from memwal.model import ColumnInfo, FlushedGeneration, ShardId, sum_known
from memwal.rows.expire import EXPIRE_KEY, WITH_POLICY
from memwal.rows.keyset import KeySet, Places, find_repeated, group_batches, key_predicate
from memwal.rows.memory import UNLIMITED, Memory
from memwal.rows.policy import STORED_KEY
from memwal.store.objects.base import WAITS
from memwal.store.objects.local import check_unlinked
from memwal.store.objects.pace import pace_lance
from memwal.store.tables.lance_calls import (
    Says,
    call_lance,
    is_panic,
    passed_over,
    says,
    tidy_text,
    translated,
)
from memwal.store.tables.manifests import check_own_files
from memwal.text import count_of

T = TypeVar("T")
_BATCH_ROWS_MAX = 8192
_KNOWN_MAX = 100


def lance_version() -> str:
    """The installed pylance's version."""
    return str(lance.__version__)


def new_session(memory: Memory = UNLIMITED) -> Any:
    """A session with small caches; without one, each open would come with a cache of 6 GiB.

    A session does not read again what it has read of a table and still has in its caches.
    """
    size = memory.cache_bytes
    return lance.Session(index_cache_size_bytes=size, metadata_cache_size_bytes=size)


def _open_with(storage_options: Mapping[str, str]) -> dict[str, Any]:
    storage_options = pace_lance(storage_options)
    if OPTION not in storage_options:
        return {"storage_options": storage_options or None}
    from memwal.store.tables.namespaces import (
        lance_arguments,  # Lance's namespaces take long to import
    )

    return lance_arguments(storage_options)


_used_in: int | None = None


def _check_process() -> None:
    """Raise Unsupported in a child that was forked from a process that used Lance.

    Lance's threads are not there: what waits for them hangs, or crashes.
    """
    global _used_in
    if _used_in is None:
        _used_in = os.getpid()
    elif _used_in != os.getpid():
        raise Unsupported(
            "MW-E14",
            f"this process was forked from {_used_in}, which had used Lance; Lance's threads "
            "don't survive a fork: start processes with spawn or forkserver, or fork before the "
            "first use",
        )


REWINDING = ("Restore", "Overwrite")
"""Operations by which a user turns time back."""


class LanceTables:
    """Opens the base table and its generations in one session, its own unless one is given."""

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str],
        session: Any | None = None,
        memory: Memory = UNLIMITED,
    ) -> None:
        self._uri = uri
        self.memory = memory
        self._opening = _open_with(storage_options)
        self._session = session or new_session(memory)
        self._seen: Any = None
        self._known: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._fragments: dict[int, tuple[FragmentFacts, ...]] = {}
        self._planned: dict[tuple[int, int, float], Sequence[tuple[tuple[int, ...], str]]] = {}

    @property
    def uri(self) -> str:
        """The base table's address."""
        return self._uri

    @property
    def opening(self) -> Mapping[str, Any]:
        """The arguments with which Lance opens a table's files. Raises Unsupported after a fork."""
        _check_process()
        return self._opening

    def base(self, version: int | None = None) -> Any:
        """The base table at a version, or at the latest one.

        Raises NotATable when there is no table, Missing when the given version does not exist, or
        no longer does; also StoreUnavailable, BadCredentials and Corruption.
        """
        try:
            return self._open(self._uri, version)
        except Missing as error:
            if version is not None:
                raise
            raise NotATable(str(error)) from None

    def at(self, version: int) -> Any:
        """The version that a view or a plan named. Raises LostRace when it has expired since."""
        try:
            return self.base(version)
        except Missing as error:
            raise LostRace(
                f"{self._uri}: version {version} was expired before it was worked with ({error})"
            ) from None

    def read_operation(self, version: int) -> str | None:
        """What kind of commit made a version (`Restore`, `Update`, …); None when unknown."""
        try:
            transaction = self._read_transaction(version)
        except TypeError as error:
            return "Rewrite" if says(error, Says.REWRITTEN) else None
        return None if transaction is None else type(transaction.operation).__name__

    def transaction(self, version: int) -> Any | None:
        """Lance's record of the commit that made a version; None where it can't be read."""
        try:
            return self._read_transaction(version)
        except TypeError:
            return None

    def _read_transaction(self, version: int) -> Any | None:
        try:
            return self.base(version).read_transaction(version)
        except (OSError, ValueError, MemWalError):
            return None

    def look(self, version: int | None = None) -> Any:
        """The same as `base`, and remembers the dataset for `seen`."""
        return self._remember(self.base(version))

    def _remember(self, dataset: Any) -> Any:
        """Keep the dataset; what is known of another one goes, even one of the same number.

        A table that was created again may have as many versions.
        """
        number, made = int(dataset.version), dataset.get_version()
        if self._seen is None or self._seen.get_version() != made:
            self._fragments, self._planned = {}, {}
        if number not in self._known or self._known[number][0] != made:
            kept = list(self._known.items())[-_KNOWN_MAX:]
            self._known = {**dict(kept), number: (made, {})}
        self._seen = dataset
        return dataset

    def recall(self, version: int, what: str, find: Callable[[], T]) -> T:
        """What was found of a version before, or is now; it is kept for as long as it is true."""
        if version not in self._known:
            self.seen(version)
        _, known = self._known.get(version, (None, {}))
        if what not in known:
            known[what] = find()
        found: T = known[what]
        return found

    def seen(self, version: int) -> Any:
        """The dataset at a version, without a request if it was the last one that `look` opened.

        For reading only: a commit would move a handle that others hold. Raises as `at`.
        """
        seen = self._seen  # threads share this
        if seen is not None and int(seen.version) == version:
            return seen
        return self._remember(self.at(version))

    def bases(self, version: int) -> tuple[str, ...]:
        """The folders that a version has registered for files outside its own folder.

        A base that is another table's folder is left out: Lance refers to no blobs there.
        """
        found = self.recall(version, "bases", lambda: self.base(version).base_paths().values())
        return tuple(base.path for base in found if not base.is_dataset_root)

    def fragments(self, version: int) -> tuple[FragmentFacts, ...]:
        """The fragments of a version, remembered until another one is asked about.

        Raises what `call_lance` raises.
        """
        found = self._fragments.get(version)
        if found is None:
            parts = call_lance(self.seen(version).get_fragments)
            found = tuple(map(_read_fragment, parts))
            self._fragments = {version: found}
        return found

    def plan_compaction(
        self, version: int, *, target_rows: int, deleted_share: float
    ) -> Sequence[tuple[tuple[int, ...], str]]:
        """Lance's plan for a version: each task's fragments, and its own description of it.

        It is remembered until another one is asked for. Raises what `call_lance` raises.
        """
        asked = (version, target_rows, deleted_share)
        planned = self._planned.get(asked)
        if planned is None:
            dataset = self.seen(version)
            options = {
                "target_rows_per_fragment": target_rows,
                "materialize_deletions_threshold": deleted_share,
                # Bounded by bytes: by default Lance reads 8,192 rows at once, and 2 GiB ahead.
                "batch_size": self.batch_rows(version),
                "io_buffer_size": self.memory.ahead_bytes,
            }
            tasks = [
                task.json() for task in call_lance(lambda: Compaction.plan(dataset, options)).tasks
            ]
            # Lance's own parsing of so many fragments takes longer than the plan.
            parts = [json.loads(task)["task"]["fragments"] for task in tasks]
            ids = [tuple(int(part["id"]) for part in found) for found in parts]
            planned = list(zip(ids, tasks, strict=True))
            self._planned = {asked: planned}
        return planned

    def batch_rows(self, version: int) -> int:
        """How many of a version's rows make a batch that fits into memory; at least one.

        A row larger than the read-ahead buffer is read all the same (tried: 60 MB with 1 MB).
        """
        known = [f for f in self.fragments(version) if f.file_bytes is not None]
        rows = sum(f.rows + f.deleted_rows for f in known)
        per_row = max(1, sum(f.file_bytes or 0 for f in known) // max(1, rows))
        return max(1, min(_BATCH_ROWS_MAX, self.memory.batch_bytes // per_row))

    def unindexed_rows(self, version: int, index_name: str) -> int | None:
        """How many rows of a version the index does not cover; None when that can't be told.

        Counted by the fragments that its segments name, as Lance does, without opening the index.
        """
        if index_name in SYSTEM_INDEXES:
            return None
        base = self.seen(version)
        try:
            segments = [
                s for d in base.describe_indices() if d.name == index_name for s in d.segments
            ]
            covered = {fragment for s in segments for fragment in s.fragment_ids}
            left = [f for f in self.fragments(version) if f.fragment_id not in covered]
            return sum(f.rows for f in left) if segments else None
        except (OSError, ValueError, RuntimeError, TypeError, MemWalError):
            return None

    def put_policy(self, text: str) -> str:
        """Store a row-merge policy unless the table has one; returns the policy that it has then.

        Raises LostRace when the commit failed and no policy is stored; Refused where rows expire;
        also StoreUnavailable.
        """
        dataset = self.base()
        if EXPIRE_KEY in dataset.config():
            raise Refused("MW-P17", f"{self._uri}: {WITH_POLICY}")
        found: str | None = dataset.config().get(STORED_KEY)
        if found is not None:
            return found
        try:
            # The handle is of a version without a policy, so of two such commits one fails.
            dataset.update_config({STORED_KEY: text})
        except (OSError, ValueError, RuntimeError) as error:
            found = self.base().config().get(STORED_KEY)
            if found is None:
                raise LostRace(
                    f"{self._uri}: the policy was not stored: {tidy_text(error)}"
                ) from None
            return found
        return text

    def generation(self, shard_id: ShardId, generation: FlushedGeneration) -> Any:
        """Opens a flushed generation, all of whose files are its own.

        Raises Missing, Corruption, StoreUnavailable. It is Corruption, too, when a symbolic link is
        on the way to its files, or its manifest names another table's files: somebody who may write
        below the table must not get us to read what they may not read.
        """
        folder = layout.generation_folder(shard_id, generation.path, generation.generation)
        self._check_unlinked(folder)
        dataset = self._open(f"{self._uri}/{folder}", None)
        try:
            check_own_files(dataset)
        except Corruption as error:
            of = f"shard {shard_id}: generation {generation.generation} ({generation.path})"
            raise error.at(f"{self._uri}: {of}") from None
        return dataset

    def shard_writer(self, shard_id: ShardId, **settings: Any) -> Any:
        """Opens pylance's own writer, which claims the shard and replays its WAL.

        Raises Corruption for a symbolic link in the shard's folder, and what pylance raises.
        """
        self._check_unlinked(layout.shard_folder(shard_id))
        return self.base().mem_wal_writer(shard_id, **settings)

    def _check_unlinked(self, folder: str) -> None:
        if "://" not in self._uri:
            check_unlinked(self._uri, folder)

    def generation_size(
        self, shard_id: ShardId, generation: FlushedGeneration
    ) -> FlushedGeneration | None:
        """The generation with its row count and approximate size in memory; None when unknown.

        For generations whose writer recorded neither, as older Lance did not. It takes two
        requests, for the generation's own manifest. Files hold values packed, so the size is at
        least what the columns of fixed width take in memory.
        """
        folder = layout.generation_folder(shard_id, generation.path, generation.generation)
        size = None
        with passed_over(Exception):  # the merge of this generation will report what is wrong
            self._check_unlinked(folder)
            dataset = self._open(f"{self._uri}/{folder}", 1)
            rows = sum(int(part.physical_rows) for part in dataset.get_fragments())
            size = file_bytes_of(dataset)
        if size is None:
            return None
        size = max(size, rows * _fixed_bytes(dataset.schema))
        # A count by the writer is kept: a generation with fewer rows is refused because of it.
        counted = rows if generation.physical_rows is None else generation.physical_rows
        return replace(generation, physical_rows=counted, in_memory_bytes=size, estimated=True)

    def file_rows(self, path: str) -> int | None:
        """The row count of a single Lance file by its metadata; None when that can't be told.

        Its footer must have been checked before (see `memwal.store.tables.manifests`).
        """
        with passed_over():
            reader = LanceFileReader(f"{self._uri}/{path}", **self.opening)
            return int(reader.metadata().num_rows)
        return None

    def file_columns(self, path: str) -> tuple[str, ...]:
        """The names of a single Lance file's top-level columns. Raises as `file_batches`."""
        reader = self._open_file(path, None)
        return tuple(reader.metadata().schema.names)

    def file_batches(self, path: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """All rows of a single Lance file, those that a table's version hides included.

        None: of all columns.

        Raises Missing, Corruption for a file that can't be read, and StoreUnavailable.
        """
        reader = self._open_file(path, None if columns is None else list(columns))
        with translated(partial(self._name_file_error, path)):
            yield from reader.read_all(batch_size=_BATCH_ROWS_MAX).to_batches()

    def _open_file(self, path: str, columns: list[str] | None) -> Any:
        self._check_unlinked(path)
        with translated(partial(self._name_file_error, path)):
            return LanceFileReader(f"{self._uri}/{path}", columns=columns, **self.opening)

    def _name_file_error(self, path: str, error: BaseException) -> MemWalError:
        where, text = f"{self._uri}/{path}", tidy_text(error)
        if says(error, Says.GONE):
            return Missing(f"{where}: no such file")
        if says(error, Says.UNREACHED):
            return StoreUnavailable(f"{where}: can't be read: {text}")
        return Corruption("MW-F01", f"{where}: can't be read: {text}")

    def _open(self, uri: str, version: int | None) -> Any:
        if Path(uri).is_file():  # Lance would retry for two seconds
            raise Missing(f"{uri}: a file, where a table is a folder")

        def explain(error: BaseException) -> MemWalError:
            text = tidy_text(error)
            unread = says(error, Says.DENIED, Says.GONE, Says.UNREACHED)
            if is_panic(error) or (isinstance(error, ValueError) and not unread):
                return Corruption("MW-F01", f"{uri}: can't be opened: {text}")
            if says(error, Says.DENIED):
                return BadCredentials(f"{uri}: access refused: {text}")
            if says(error, Says.GONE):
                there = "no Lance table" if version is None else f"no version {version}"
                return Missing(f"{uri}: {there} there ({text})")
            return StoreUnavailable(f"{uri}: can't be opened: {text}")

        with translated(explain):
            with WAITS.watch(uri, "Lance opens the table"):
                # Not `lance.dataset`, which takes either an address or a namespace: generations
                # need both.
                dataset = lance.LanceDataset(
                    uri, version=version, session=self._session, **self.opening
                )
            _ = dataset.schema  # over a damaged one, Lance panics: here, and nowhere else
            return dataset


def _read_fragment(part: Any) -> FragmentFacts:
    """Not by its metadata, which take Lance longer to convert."""
    files = part.data_files()
    deleted = int(part.num_deletions)
    return FragmentFacts(
        fragment_id=part.fragment_id,
        rows=int(part.physical_rows) - deleted,
        deleted_rows=deleted,
        files=len(files),
        file_bytes=sum_known(file.file_size_bytes or None for file in files),
    )


def _fixed_bytes(schema: pa.Schema) -> int:
    """How many bytes the columns of fixed width take per row in memory."""
    bits = 0
    for kind in schema.types:
        times = 1
        while pa.types.is_fixed_size_list(kind):
            times, kind = times * kind.list_size, kind.value_type
        bits += times * kind.bit_width if pa.types.is_primitive(kind) else 0
    return bits // 8


def columns_of(dataset: Any) -> tuple[ColumnInfo, ...]:
    """A dataset's top-level columns, with field ids."""
    return tuple(_column(field) for field in dataset.lance_schema.fields())


def _column(field: Any) -> ColumnInfo:
    arrow = field.to_arrow()
    return ColumnInfo(
        field_id=field.id(),
        name=field.name(),
        type_text=str(arrow.type),
        nullable=arrow.nullable,
        children=tuple(_column(child) for child in field.children()),
    )


def file_bytes_of(dataset: Any) -> int | None:
    """The total size of the files that the dataset's version names, as its manifest records it.

    None when the size of any data file is missing, as older writers left it. Index files count
    where their size is recorded; deletion files have no recorded size. It takes no request.
    """
    data = sum_known(
        f.file_size_bytes or None for part in dataset.get_fragments() for f in part.data_files()
    )
    if data is None:
        return None
    indexes: list[int]
    try:
        indexes = [d.total_size_bytes or 0 for d in dataset.describe_indices()]
    except (OSError, ValueError, RuntimeError):
        indexes = []  # an index that Lance can't describe must not hide the size of the data
    return data + sum(indexes)


def list_data_files(dataset: Any) -> list[tuple[str, int | None, str]]:
    """The data files of the dataset's version in its own folder, and what they hold, for people.

    With their sizes, as far as these are recorded.
    """
    return [
        (
            f"data/{file.path}",
            file.file_size_bytes or None,
            f"of fragment {fragment.fragment_id}, {count_of(fragment.metadata.num_rows, 'row')}",
        )
        for fragment in dataset.get_fragments()
        for file in fragment.metadata.files
        if file.base_id is None
    ]


def list_deletions(dataset: Any) -> list[tuple[str, Any]]:
    """The deletion files of the dataset's version, each with its fragment."""
    found = [(fragment.metadata.deletion_file, fragment) for fragment in dataset.get_fragments()]
    return [
        (str(deletions.path(fragment.fragment_id)), fragment)
        for deletions, fragment in found
        if deletions is not None and deletions.base_id is None
    ]


def is_legacy(dataset: Any) -> bool:
    """Whether the dataset's files are in Lance's first format, 0.1."""
    return str(dataset.data_storage_version) in ("legacy", "0.1")


def primary_key_of(dataset: Any) -> tuple[str, ...]:
    """The unenforced primary key's columns in key order; empty when the table has none."""
    keys = [f for f in dataset.lance_schema.fields() if f.is_unenforced_primary_key()]
    # A position of None (older metadata has a plain `true`) keeps the schema's order.
    keys.sort(key=lambda f: f.unenforced_primary_key_position() or 0)
    return tuple(f.name() for f in keys)


KEYS_COMPARED_MAX = 10_000_000
"""The most keys that are held in memory at once to find one that is there twice."""

# Up to so many values are looked up by a filter, which a key index answers; more by a scan, which
# takes less memory, and at 20,000 keys in 10 million rows twice the time.
_NAMED_VALUES_MAX = 10_000


def count_copies(base: Any, keys: pa.Table, known: KeySet, memory: Memory = UNLIMITED) -> Places:
    """For each of the keys, which are of the base's types, how many rows of one version have it.

    `known` is the set of them.
    """
    names = keys.column_names
    few = len(keys) * len(names) <= min(_NAMED_VALUES_MAX, memory.predicate_keys_max)
    held = np.zeros(known.count + 1, dtype=np.int64)  # the last is that of a key with a NULL
    if known.count:
        scanner = base.scanner(columns=names, filter=key_predicate(keys) if few else None)
        for group in group_batches(scanner.to_batches()):
            numbers = known.number([pa.chunked_array([b[name] for b in group]) for name in names])
            held += np.bincount(numbers[numbers >= 0], minlength=len(held))
    copies: Places = held[known.number(keys.columns)]
    return copies


def find_double_keys(base: Any, keys: pa.Table, memory: Memory = UNLIMITED) -> pa.Table:
    """Those of the keys that several rows of one version have."""
    copies = count_copies(base, keys, KeySet(keys.columns), memory)
    return keys.filter(pa.array(copies > 1))


def find_all_double_keys(base: Any, names: Sequence[str]) -> tuple[pa.Table | None, int]:
    """All keys that several rows of one version have, and among how many rows.

    None where there are more rows than KEYS_COMPARED_MAX.
    """
    rows = int(base.count_rows())
    if rows > KEYS_COMPARED_MAX:
        return None, rows
    return find_repeated(base.scanner(columns=list(names)).to_table(), names), rows
