"""Opens Lance tables, the base and its generations, and tells what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
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
    StoreUnavailable,
)
from memwal.format import layout
from memwal.format.layout import SYSTEM_INDEXES
from memwal.indexes import SmallFragments
from memwal.model import ColumnInfo, FlushedGeneration, ShardId, sum_known
from memwal.rows.memory import UNLIMITED, Memory
from memwal.rows.policy import STORED_KEY
from memwal.store.objects.links import check_unlinked
from memwal.store.objects.waits import WAITS
from memwal.store.tables.data_files import check_own_files
from memwal.store.tables.lance_texts import tidy_text as tidy_text

_BATCH_ROWS_MAX = 8192

# What Lance says when a file is not there.
GONE = re.compile(r"not found|no such file|does not exist|not a directory", re.IGNORECASE)
# What it says when it was denied access, which says nothing about the file.
_REFUSED = re.compile(r"necessary privileges|403 forbidden|accessdenied", re.IGNORECASE)
_UNREACHED = re.compile(r"permission denied|os error \d+|error performing \w+", re.IGNORECASE)


def lance_version() -> str:
    """The installed pylance's version."""
    return str(lance.__version__)


def is_panic(error: BaseException) -> bool:
    """Whether Lance's Rust code panicked: seen on torn files. It is no Exception in Python."""
    return type(error).__name__ == "PanicException"


def new_session(memory: Memory = UNLIMITED) -> Any:
    """A session with small caches: each open would otherwise bring one of 6 GiB.

    What it has read of a table it does not read again.
    """
    size = memory.cache_bytes
    return lance.Session(index_cache_size_bytes=size, metadata_cache_size_bytes=size)


def _open_with(storage_options: Mapping[str, str]) -> dict[str, Any]:
    if OPTION not in storage_options:
        return {"storage_options": dict(storage_options) or None}
    from memwal.store.tables.namespaces import (
        lance_arguments,  # Lance's namespaces take long to import
    )

    return lance_arguments(storage_options)


REWINDING = ("Restore", "Overwrite")
"""Operations by which a user turns time back."""


class LanceTables:
    """Opens the base table and its generations, with one session: one of its own, or a given."""

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
        self._bases: dict[int, tuple[str, ...]] = {}

    @property
    def uri(self) -> str:
        """The base table's address."""
        return self._uri

    def base(self, version: int | None = None) -> Any:
        """The base table at a version, or the latest.

        Raises NotATable when there is no latest, Missing when the version that was asked for is
        not there, or not any more; StoreUnavailable, BadCredentials, Corruption.
        """
        try:
            return self._open(self._uri, version)
        except Missing as error:
            if version is not None:
                raise
            raise NotATable(str(error)) from None

    def at(self, version: int) -> Any:
        """The version that a view or a plan named. Raises LostRace when it was expired since."""
        try:
            return self.base(version)
        except Missing as error:
            raise LostRace(
                f"{self._uri}: version {version} was expired before it was worked with ({error})"
            ) from None

    def read_operation(self, version: int) -> str | None:
        """What kind of commit made a version (`Restore`, `Update`, …); None when unknown."""
        transaction = self.transaction(version)
        return None if transaction is None else type(transaction.operation).__name__

    def transaction(self, version: int) -> Any | None:
        """Lance's record of the commit that made a version; None where it can't be read."""
        try:
            return self.base(version).read_transaction(version)
        except (OSError, ValueError, TypeError, MemWalError):
            return None

    def look(self, version: int | None = None) -> Any:
        """As `base`, and remembered for `seen`."""
        dataset = self.base(version)
        self._seen = dataset
        return dataset

    def seen(self, version: int) -> Any:
        """The version, without a request if it was the last one looked at.

        Only to read from: a commit would move a handle that others hold.
        """
        seen = self._seen
        return seen if seen is not None and int(seen.version) == version else self.look(version)

    def bases(self, version: int) -> tuple[str, ...]:
        """The folders that a version has registered for files beside its own.

        A base that is another table's folder is none: Lance refers to no blob there.
        """
        if version not in self._bases:
            found = self.base(version).base_paths().values()
            self._bases[version] = tuple(b.path for b in found if not b.is_dataset_root)
        return self._bases[version]

    def small_fragments(
        self, version: int, *, target_rows: int, deleted_share: float
    ) -> SmallFragments:
        """What a compaction would rewrite of a version, by Lance's plan. Raises as `base`."""
        base = self.seen(version)
        options = {
            "target_rows_per_fragment": target_rows,
            "materialize_deletions_threshold": deleted_share,
        }
        try:
            tasks = [task.fragments for task in Compaction.plan(base, options).tasks]
            physical = sum(int(f.physical_rows) for f in base.get_fragments())
        except (OSError, ValueError, RuntimeError) as error:
            raise StoreUnavailable(f"{self._uri}: no plan of its fragments: {error}") from None
        return SmallFragments(
            # A single one is rewritten for its deleted rows.
            fragments=sum(len(fragments) for fragments in tasks if len(fragments) > 1),
            deleted_rows=sum(f.num_deletions for fragments in tasks for f in fragments),
            physical_rows=physical,
        )

    def batch_rows(self, dataset: Any) -> int:
        """How many rows of a table make a batch that memory has room for.

        A row that is larger than what is read ahead is read all the same (tried: 60 MB, of 1).
        """
        rows = size = 0
        for part in dataset.get_fragments():
            known = sum_known(file.file_size_bytes or None for file in part.data_files())
            rows += 0 if known is None else int(part.physical_rows)
            size += known or 0
        per_row = max(1, size // max(1, rows))
        return max(1, min(_BATCH_ROWS_MAX, self.memory.batch_bytes // per_row))

    def unindexed_rows(self, version: int, index_name: str) -> int | None:
        """Rows of a version that the index does not cover; None when that can't be told.

        By the fragments that its segments name, as Lance counts, but without opening the index.
        """
        if index_name in SYSTEM_INDEXES:
            return None
        base = self.seen(version)
        try:
            segments = [
                s for d in base.describe_indices() if d.name == index_name for s in d.segments
            ]
            covered = {fragment for s in segments for fragment in s.fragment_ids}
            left = [f for f in base.get_fragments() if f.fragment_id not in covered]
            return sum(int(f.metadata.num_rows) for f in left) if segments else None
        except (OSError, ValueError, RuntimeError, TypeError):
            return None

    def put_policy(self, text: str) -> str:
        """Store a row-merge policy unless there is one; returns what is stored afterwards.

        Raises LostRace when another commit of its kind was in the way, StoreUnavailable.
        """
        dataset = self.base()
        found: str | None = dataset.config().get(STORED_KEY)
        if found is not None:
            return found
        try:
            # From a handle that has none: beside another such commit, one of the two fails.
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
        """A flushed generation, all of whose files are its own.

        Raises Missing, Corruption, StoreUnavailable; Corruption too where a link leads to its files
        or its manifest to another table's: who may write below the table is not to have read by us
        what he may not read himself.
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
        """pylance's own writer, opened: it claims the shard, and replays its WAL.

        Raises Corruption for a link in the shard's folder, and what pylance raises.
        """
        self._check_unlinked(layout.shard_folder(shard_id))
        return self.base().mem_wal_writer(shard_id, **settings)

    def _check_unlinked(self, folder: str) -> None:
        if "://" not in self._uri:
            check_unlinked(self._uri, folder)

    def generation_size(
        self, shard_id: ShardId, generation: FlushedGeneration
    ) -> FlushedGeneration | None:
        """The generation with its rows and about its bytes in memory; None when neither is known.

        For one whose writer recorded none, as older Lance did not: two requests, for its own
        manifest. Files hold values packed; the columns of fixed width take more in memory.
        """
        folder = layout.generation_folder(shard_id, generation.path, generation.generation)
        try:
            self._check_unlinked(folder)
            dataset = self._open(f"{self._uri}/{folder}", 1)
            rows = sum(int(part.physical_rows) for part in dataset.get_fragments())
            size = file_bytes_of(dataset)
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            if isinstance(error, Exception) or is_panic(error):
                return None  # what is wrong with it shows when it is merged
            raise
        if size is None:
            return None
        size = max(size, rows * _fixed_bytes(dataset.schema))
        # What its writer did count stays: a generation that has fewer rows is refused by it.
        counted = rows if generation.physical_rows is None else generation.physical_rows
        return replace(generation, physical_rows=counted, in_memory_bytes=size, estimated=True)

    def file_rows(self, path: str) -> int | None:
        """Rows of a single Lance file, by its metadata; None when that can't be told.

        Its footer must have been looked at before (see `memwal.store.tables.data_files`).
        """
        try:
            reader = LanceFileReader(f"{self._uri}/{path}", **self._opening)
            return int(reader.metadata().num_rows)
        except (OSError, ValueError):
            return None
        except BaseException as error:
            if is_panic(error):
                return None
            raise

    def _open(self, uri: str, version: int | None) -> Any:
        if Path(uri).is_file():  # Lance would try it again for two seconds
            raise Missing(f"{uri}: a file, where a table is a folder")
        try:
            with WAITS.watch(uri, "Lance opens the table"):
                # Not lance.dataset: that one takes no address beside a namespace, and generations
                # have addresses of their own.
                return lance.LanceDataset(
                    uri, version=version, session=self._session, **self._opening
                )
        except (OSError, ValueError) as error:
            text = tidy_text(error)
            if _REFUSED.search(text):
                raise BadCredentials(f"{uri}: access refused: {text}") from None
            if GONE.search(text):
                there = "no Lance table" if version is None else f"no version {version}"
                raise Missing(f"{uri}: {there} there ({text})") from None
            if isinstance(error, ValueError) and not _UNREACHED.search(text):
                raise Corruption("MW-F06", f"{uri}: can't be opened: {text}") from None
            raise StoreUnavailable(f"{uri}: can't be opened: {text}") from None
        except BaseException as error:
            if is_panic(error):
                raise Corruption("MW-F06", f"{uri}: can't be opened: {tidy_text(error)}") from None
            raise


def _fixed_bytes(schema: pa.Schema) -> int:
    """What a row's columns of fixed width take in memory."""
    bits = 0
    for kind in schema.types:
        times = 1
        while pa.types.is_fixed_size_list(kind):
            times, kind = times * kind.list_size, kind.value_type
        bits += times * kind.bit_width if pa.types.is_primitive(kind) else 0
    return bits // 8


def is_unsupported(text: str) -> bool:
    """Whether Lance says, in a tidied text, that it can't do what was asked: nor will it later."""
    return text.lower().startswith("not supported")


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
    """The files that the dataset's version names, as far as its manifest records their sizes.

    Data files (None when any size is missing: older writers left it out) and index files (left out
    where not recorded). Deletion files have no size there. Asks the store for nothing.
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
        indexes = []  # an index that Lance can't describe must not hide the rest
    return data + sum(indexes)


def is_legacy(dataset: Any) -> bool:
    """Whether its files are in Lance's first format, that of 0.1."""
    return str(dataset.data_storage_version) in ("legacy", "0.1")


def primary_key_of(dataset: Any) -> tuple[str, ...]:
    """The unenforced primary key's columns in key order; empty when the table has none."""
    keys = [f for f in dataset.lance_schema.fields() if f.is_unenforced_primary_key()]
    # A position of None (older metadata has a plain `true`) keeps the schema's order.
    keys.sort(key=lambda f: f.unenforced_primary_key_position() or 0)
    return tuple(f.name() for f in keys)
