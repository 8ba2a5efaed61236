"""Reads flushed generations as rows of the base table, for merges and for reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from memwal.errors import Corruption, Missing, Refused
from memwal.format import layout
from memwal.model import ColumnInfo, FlushedGeneration, ShardId, TableView
from memwal.ports import Objects
from memwal.rows import align
from memwal.store.tables.blobs import BlobReader, Bounds, as_type, blob_columns, nulls
from memwal.store.tables.datasets import GONE, LanceTables, columns_of
from memwal.store.tables.lance_calls import is_panic, tidy_text
from memwal.store.tables.lineage import Renamed
from memwal.store.tables.manifests import check_data_files

_BATCH_ROWS_MAX = 8192
_FOLDERS = ("_versions", "data")


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

    @property
    def deletes(self) -> bool:
        """Whether the generation has a tombstone column, so that it can hold deletes."""
        return any(column.name == layout.TOMBSTONE for column in self.columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Generations:
    """One table's flushed generations. `renamed` tells whether history proves a rename.

    `access` stands for the credentials of `tables`, for callers that cache what is read.
    """

    objects: Objects
    tables: LanceTables
    renamed: Renamed
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
        """Reads the generation's key columns, row addresses and tombstones, under the base's names.

        Raises Missing, Corruption.
        """
        with reading(self.tables.uri, shard_id, generation):
            table = key_scanner(source, keys).to_table()
        return table.rename_columns(key_names(source, keys, table.column_names))

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
        """An opened generation as rows of the view's columns. Raises Refused for schema drift."""
        with reading(self.tables.uri, shard_id, generation):  # a wrong type in a manifest
            columns = columns_of(dataset)
        where = f"shard {shard_id}, generation {generation.generation} ({generation.path})"
        if any(c.name == layout.TOMBSTONE and c.type_text != "bool" for c in columns):
            raise Corruption("MW-F05", f"{self.tables.uri}: {where}: {layout.TOMBSTONE} is no bool")
        try:
            alignment = align.align(view.columns, columns)
            alignment.check_renames(
                lambda rename: self.renamed(view, rename, generation.generation), "generation"
            )
        except Refused as error:
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
    """A scanner of key columns, addresses and tombstones, under the generation's own names."""
    wanted = [source.alignment.columns[key] for key in keys]
    if source.deletes:
        wanted.append(layout.TOMBSTONE)
    return source.dataset.scanner(columns=wanted, with_row_address=True)


def key_names(source: Source, keys: Sequence[str], found: Sequence[str]) -> list[str]:
    """The base's names for the columns of a scan by `key_scanner`."""
    back = {source.alignment.columns[key]: key for key in keys}
    return [back.get(name, name) for name in found]


def as_base_rows(
    alignment: align.Alignment, batch: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    """The generation's rows as rows of `schema`, whose fields are columns of the base."""
    arrays = []
    for one in schema:
        source = alignment.columns[one.name]
        if source is None:
            arrays.append(nulls(one.type, batch.num_rows))
        else:
            arrays.append(as_type(batch.column(source), one.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@contextmanager
def reading(uri: str, shard_id: ShardId, generation: FlushedGeneration) -> Iterator[None]:
    """Turn an error of Lance's, or a panic in its Rust code, into Missing or Corruption."""
    try:
        yield
    except BaseException as error:  # a panic is no Exception
        if is_reading_fault(error):
            where = f"{uri}: shard {shard_id}: generation {generation.generation}"
            raise unreadable_text(f"{where} ({generation.path})", error) from None
        raise


def unreadable_text(where: str, error: BaseException) -> Exception:
    """The error to raise: Missing when files are gone (perhaps collected), otherwise Corruption."""
    text = tidy_text(error)
    if GONE.search(text):
        return Missing(f"{where}: {text}")
    return Corruption("MW-F01", f"{where} can't be read: {text}")


def is_reading_fault(error: BaseException) -> bool:
    """Whether a read's error is about what is stored rather than about this program."""
    return isinstance(error, OSError | ValueError | pa.ArrowException) or is_panic(error)
