"""The tables that a merging read reads, opened: the base and each generation, as base rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import lance
import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing, StoreUnavailable, Usage
from memwal.fold import ROW_ADDRESS
from memwal.keyset import KeySet
from memwal.plan.read import DISTANCE
from memwal.store.generations import Source, as_base_rows, key_names, key_scanner
from memwal.store.table import GONE, is_panic, tidy_text

# Errors of Lance and Arrow that are the filter's, or the query vector's, own fault.
_REQUEST_FAULT = re.compile(
    r"invalid user input|divide by zero|cast error|overflow|error applying filter|"
    r"query vector|query column|unsupported distance|not supported",
    re.IGNORECASE,
)
_FAULTS = (OSError, ValueError, TypeError, KeyError, RuntimeError, pa.ArrowException)

T = TypeVar("T")
Batches = Iterator[pa.RecordBatch]

# In memory only: where a row of a lined-up generation came from.
_ORIGIN = "__memwal_origin"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What to scan for: `predicate` as SQL, the first `limit` rows, or a nearest-neighbour query.

    `nearest` is what Lance's scanner takes, with its `k`.
    """

    schema: pa.Schema
    predicate: str | None = None
    limit: int | None = None
    nearest: dict[str, Any] | None = None

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
        """The same with the row address, as generations' rows have it."""
        return self.found.append(pa.field(ROW_ADDRESS, pa.uint64()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The base table at one version."""

    where: str
    dataset: Any

    def scanner(self, rows: Rows) -> Any:
        """Lance's scanner. Raises Usage for a request that Lance refuses."""
        return asked(
            self.where,
            lambda: self.dataset.scanner(
                columns=rows.columns, blob_handling="all_binary", **rows.options
            ),
        )

    def scan(self, rows: Rows) -> Batches:
        """The rows found, in `rows.found`."""
        scanner = self.scanner(rows)
        return guarded(self.where, lambda: (_ordered(b, rows.found) for b in _batches(scanner)))

    def plan_text(self, rows: Rows) -> str:
        """Lance's plan for the scan. Raises Usage for a request that Lance refuses."""
        scanner = self.scanner(rows)
        return str(asked(self.where, scanner.explain_plan))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One generation of a shard, or the shard's unflushed rows, which are newer than any.

    What a scan finds has superseded rows and tombstones in it, and `_rowaddr`.
    """

    where: str
    name: str
    source: Source
    base_schema: pa.Schema

    def keys(self, keys: Sequence[str], only: KeySet | None) -> pa.Table:
        """Key columns, addresses and tombstones: of all rows, or of those with certain keys."""
        scanner = key_scanner(self.source, keys)
        schema = scanner.projected_schema
        kept = []
        for batch in guarded(self.where, lambda: _batches(scanner)):
            schema = batch.schema
            if only is not None:
                names = key_names(self.source, keys, schema.names)
                columns = [pa.chunked_array([batch.column(names.index(key))]) for key in keys]
                batch = batch.filter(pa.array(only.contains(columns)))
            kept.append(batch)
        table = pa.Table.from_batches(kept, schema=schema)
        return table.rename_columns(key_names(self.source, keys, table.column_names))

    def scanner(self, rows: Rows) -> Any:
        """Lance's scanner on the generation, or None when it has not got the searched column."""
        names = {c.column: c.source for c in self.source.alignment.columns}
        options = rows.options
        if rows.nearest is not None:
            column = names[rows.nearest["column"]]
            if column is None:
                return None
            options = options | {"nearest": {**rows.nearest, "column": column}}
        return asked(
            self.where,
            lambda: self.source.dataset.scanner(
                columns=[name for key in rows.columns if (name := names[key]) is not None],
                with_row_address=True,
                batch_size=self.source.batch_rows,
                blob_handling="all_binary",
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
        for batch in batches:
            arrays = as_base_rows(self.source.alignment, batch, rows.schema).columns
            more = [batch.column(name) for name in rows.addressed.names[len(arrays) :]]
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
        copy = lance.write_dataset(table.rename_columns([*loose.names, _ORIGIN]), "memory://")
        scanner = asked(
            self.where, lambda: copy.scanner(columns=[*rows.columns, _ORIGIN], **rows.options)
        )
        for batch in _batches(scanner):
            names = [ROW_ADDRESS if name == _ORIGIN else name for name in batch.schema.names]
            yield _ordered(batch.rename_columns(names), rows.addressed)


Table = Base | Part
Found = tuple[Table, list[pa.RecordBatch]]
"""Rows with the table that they are from."""


def index_names(dataset: Any) -> frozenset[str]:
    """The indexes of a table, by name."""
    return frozenset(str(described.name) for described in dataset.describe_indices())


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
