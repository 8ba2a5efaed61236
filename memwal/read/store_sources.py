"""The tables that a merging read reads, opened: the base and each generation, as base rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import lance
import numpy as np
import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing, StoreUnavailable, Usage
from memwal.format import layout
from memwal.model import TableView
from memwal.read.plan import DISTANCE
from memwal.read.store_whole import taken
from memwal.rows.fold import ROW_ADDRESS
from memwal.rows.keyset import KeySet, Mask
from memwal.store.blobs import BlobReader, as_storage, as_type, blob_columns
from memwal.store.generations import Source, as_base_rows, key_names, key_scanner
from memwal.store.table import GONE, is_panic, tidy_text

# Errors of Lance and Arrow that are the filter's, or the query vector's, own fault.
_REQUEST_FAULT = re.compile(
    r"invalid user input|divide by zero|cast error|overflow|error applying filter|"
    r"query vector|query column|unsupported distance|not supported",
    re.IGNORECASE,
)
_FAULTS = (OSError, ValueError, TypeError, KeyError, RuntimeError, pa.ArrowException)

_TOMBSTONE = pa.field(layout.TOMBSTONE, pa.bool_())

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

# In memory only: where a row of a copy came from.
ORIGIN = "__memwal_origin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What to scan for: `predicate` as SQL, the first `limit` rows, or a nearest-neighbour query.

    `nearest` is what Lance's scanner takes, with its `k`. With `tombstones`, a generation's rows
    tell whether they are one.
    """

    schema: pa.Schema
    predicate: str | None = None
    limit: int | None = None
    nearest: dict[str, Any] | None = None
    tombstones: bool = False

    @property
    def columns(self) -> list[str]:
        """The base columns that are read."""
        return list(self.schema.names)

    @property
    def options(self) -> dict[str, Any]:
        """For Lance's scanner; candidates of a search are those that pass the filter."""
        options: dict[str, Any] = {"filter": self.predicate, "limit": self.limit}
        if self.nearest is not None:
            options |= {"nearest": self.nearest, "prefilter": True}
        return options

    @property
    def found(self) -> pa.Schema:
        """The schema of what is found: with the distance of a search."""
        if self.nearest is None:
            return self.schema
        return self.schema.append(pa.field(DISTANCE, pa.float32()))

    @property
    def addressed(self) -> pa.Schema:
        """The same with what generations' rows have besides."""
        schema = self.found.append(pa.field(ROW_ADDRESS, pa.uint64()))
        return schema.append(_TOMBSTONE) if self.tombstones else schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The base table at one version. `dataset` may be some of its fragments only."""

    where: str
    dataset: Any
    blobs: BlobReader

    @classmethod
    def of(cls, view: TableView, where: str, dataset: Any) -> Base:
        """The whole table at the view's version."""
        columns = blob_columns(view.columns)
        blobs = BlobReader(where=where, dataset=dataset, columns=columns)
        return cls(where=where, dataset=dataset, blobs=blobs)

    def scanner(self, rows: Rows) -> Any:
        """Lance's scanner. Raises Usage for a request that Lance refuses."""
        return asked(
            self.where,
            lambda: self.dataset.scanner(
                columns=rows.columns, **self.blobs.options, **rows.options
            ),
        )

    def scan(self, rows: Rows) -> Batches:
        """The rows found, in `rows.found`."""
        scanner = self.scanner(rows)
        read = self.blobs.read
        return guarded(
            self.where, lambda: (_ordered(read(b), rows.found) for b in _batches(scanner))
        )

    def plan_text(self, rows: Rows) -> str:
        """Lance's plan for the scan. Raises Usage for a request that Lance refuses."""
        scanner = self.scanner(rows)
        return str(asked(self.where, scanner.explain_plan))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One generation of a shard, or the shard's unflushed rows, which are newer than any.

    What a scan finds has superseded rows and tombstones in it, and `_rowaddr`. `in_memory_bytes` is
    what all its rows take, as far as its writer told.
    """

    where: str
    name: str
    source: Source
    base_schema: pa.Schema
    in_memory_bytes: int | None = None

    def keys(self, keys: Sequence[str], only: KeySet | None) -> pa.Table:
        """Key columns, addresses and tombstones: of all rows, or of those with certain keys."""
        kept = []
        for batch in self._key_batches(keys):
            if only is not None:
                names = key_names(self.source, keys, batch.schema.names)
                columns = [pa.chunked_array([batch.column(names.index(key))]) for key in keys]
                batch = batch.filter(pa.array(only.contains(columns)))
            kept.append(batch)
        # For no rows only: Lance plans the scan once more to tell.
        schema = kept[0].schema if kept else self._key_schema(keys)
        table = pa.Table.from_batches(kept, schema=schema)
        return table.rename_columns(key_names(self.source, keys, table.column_names))

    def _key_batches(self, keys: Sequence[str]) -> Batches:
        def start() -> Batches:
            found = taken(self.source, self._stored(keys, tombstones=True))
            return _batches(key_scanner(self.source, keys)) if found is None else iter(found)

        return guarded(self.where, start)

    def _key_schema(self, keys: Sequence[str]) -> pa.Schema:
        return asked(self.where, lambda: key_scanner(self.source, keys).projected_schema)

    def _stored(self, columns: Sequence[str], *, tombstones: bool) -> list[str]:
        """What the generation calls these columns, without those that it has not got."""
        names = {c.column: c.source for c in self.source.alignment.columns}
        found = [name for column in columns if (name := names[column]) is not None]
        return [*found, layout.TOMBSTONE] if tombstones and self.source.deletes else found

    def scanner(self, rows: Rows) -> Any:
        """Lance's scanner on the generation, or None when it has not got the searched column."""
        options = rows.options
        if rows.nearest is not None:
            searched = self._stored([rows.nearest["column"]], tombstones=False)
            if not searched:
                return None
            options = options | {"nearest": {**rows.nearest, "column": searched[0]}}
        return asked(
            self.where,
            lambda: self.source.dataset.scanner(
                columns=self._stored(rows.columns, tombstones=rows.tombstones),
                batch_size=self.source.batch_rows,
                **(self.source.blobs.options | {"with_row_address": True}),
                **options,
            ),
        )

    def scan(self, rows: Rows) -> Batches:
        """The rows found, in `rows.addressed`."""
        if self.is_drifted(rows.predicate):
            return guarded(self.where, lambda: self._lined_up(rows))
        scanner = self.scanner(rows)
        if scanner is None:
            return iter(())
        return guarded(self.where, lambda: self._as_found(_batches(scanner), rows))

    def whole(self, rows: Rows) -> pa.Table:
        """All rows at once, in `rows.addressed`; `rows` has no bounds."""
        stored = self._stored(rows.columns, tombstones=rows.tombstones)
        batches = asked(self.where, lambda: taken(self.source, stored))
        found = self.scan(rows) if batches is None else self._as_found(iter(batches), rows)
        return pa.Table.from_batches(found, schema=rows.addressed)

    def plan_text(self, rows: Rows) -> str | None:
        """Lance's plan for the scan; None where Lance scans a copy in memory, or nothing."""
        scanner = None if self.is_drifted(rows.predicate) else self.scanner(rows)
        return None if scanner is None else str(asked(self.where, scanner.explain_plan))

    def index_names(self) -> frozenset[str]:
        """The generation's own indexes."""
        return asked(self.where, lambda: index_names(self.source.dataset))

    def is_drifted(self, predicate: str | None) -> bool:
        """Whether the predicate names a column that has another name here, or none.

        Told by the text alone, so that it is too often true, and never too seldom.
        """
        text = (predicate or "").lower()
        return any(
            column.column != column.source and column.column.lower() in text
            for column in self.source.alignment.columns
        )

    def _as_found(self, batches: Batches, rows: Rows) -> Batches:
        for batch in map(self.source.blobs.read, batches):
            arrays = as_base_rows(self.source.alignment, batch, rows.schema).columns
            more = [_column(batch, name) for name in rows.addressed.names[len(arrays) :]]
            yield pa.RecordBatch.from_arrays([*arrays, *more], schema=rows.addressed)

    def _lined_up(self, rows: Rows) -> Batches:
        """Scan a copy in memory whose columns are the base's, so that the predicate fits it.

        Lance has to judge the filter, since no other engine agrees with it on everything. The copy
        has all the base's columns: which of them the filter reads is known to Lance alone.
        """
        loose = pa.schema([pa.field(f.name, f.type) for f in self.base_schema])
        whole = Rows(schema=loose)
        table = pa.Table.from_batches(
            self._as_found(_batches(self.scanner(whole)), whole), schema=whole.addressed
        )
        plain = as_storage(table.rename_columns([*loose.names, ORIGIN]))
        copy = lance.write_dataset(plain, "memory://")
        scanner = asked(
            self.where, lambda: copy.scanner(columns=[*rows.columns, ORIGIN], **rows.options)
        )
        for batch in _batches(scanner):
            names = [ROW_ADDRESS if name == ORIGIN else name for name in batch.schema.names]
            batch = batch.rename_columns(names)
            arrays = [as_type(batch.column(f.name), f.type) for f in rows.addressed]
            yield pa.RecordBatch.from_arrays(arrays, schema=rows.addressed)


Table = Base | Part
Found = tuple[Table, list[pa.RecordBatch]]
"""Rows with the table that they are from."""


def index_names(dataset: Any) -> frozenset[str]:
    """The indexes of a table, by name."""
    return frozenset(str(described.name) for described in dataset.describe_indices())


def judged(where: str, table: pa.Table, predicate: str) -> Mask:
    """Which rows in memory match, as Lance has it. Raises Usage for what Lance refuses."""
    # Without the base's metadata and constraints: it is no table of its own.
    fields = [pa.field(field.name, field.type) for field in table.schema]
    numbers = pa.array(np.arange(len(table)))
    copy = pa.table(
        [*table.columns, numbers], schema=pa.schema([*fields, pa.field(ORIGIN, numbers.type)])
    )

    def matching() -> pa.Table:
        dataset = lance.write_dataset(copy, "memory://")
        return dataset.to_table(columns=[ORIGIN], filter=predicate)

    found = np.zeros(len(table), dtype=bool)
    found[asked(where, matching)[ORIGIN].to_numpy()] = True
    return found


def shown(batches: Batches, schema: pa.Schema, limit: int | None) -> Batches:
    """What was asked for: no hidden columns, no more rows than the limit."""
    left = limit
    for batch in batches:
        kept = batch if left is None else batch.slice(0, left)
        yield pa.RecordBatch.from_arrays(
            [kept.column(name) for name in schema.names], schema=schema
        )
        if left is not None:
            left -= kept.num_rows
            if not left:
                return


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name == layout.TOMBSTONE:
        if name not in batch.schema.names:  # its writer knew no deletes
            return pa.array(np.zeros(batch.num_rows, dtype=bool))
        return batch.column(name).cast(_TOMBSTONE.type)
    return batch.column(name)


def _batches(scanner: Any) -> Batches:
    return iter(scanner.to_batches())


def _ordered(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns in the schema's order; Lance puts its own where it likes."""
    arrays = [batch.column(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def asked(where: str, call: Callable[[], T]) -> T:
    """Run what may fail because of the request, or of what is stored."""
    try:
        return call()
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        raise _as_ours(where, error) from None


def guarded(where: str, start: Callable[[], Iterator[T]]) -> Iterator[T]:
    """What `start` gives; an error on the way says what it means for the read."""
    batches = asked(where, start)
    end = object()
    while (batch := asked(where, lambda: next(batches, end))) is not end:
        yield batch  # type: ignore[misc]


def _as_ours(where: str, error: BaseException) -> BaseException:
    """Usage for what was asked, Missing for files that are gone, Corruption for torn ones."""
    if isinstance(error, MemWalError) or not (isinstance(error, _FAULTS) or is_panic(error)):
        return error
    text = tidy_text(error)
    if _REQUEST_FAULT.search(text) or isinstance(error, TypeError | KeyError):
        return Usage(f"{where}: {text}")
    if GONE.search(text):
        return Missing(f"{where}: {text}")
    if is_panic(error):
        return Corruption(f"{where}: can't be read: {text}")
    return StoreUnavailable(f"{where}: can't be read: {text}")
