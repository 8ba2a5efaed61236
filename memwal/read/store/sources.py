"""The tables that a merging read reads, opened: the base and each generation, as base rows."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Any, Generic, TypeVar

import lance
import numpy as np
import pyarrow as pa

from memwal.errors import BadCredentials, StoreUnavailable
from memwal.format import layout
from memwal.model import FlushedGeneration, ShardId, SharedKey, TableView
from memwal.read.plan.request import DISTANCE, SCORE, Search
from memwal.read.plan.sources import ReadPlan
from memwal.read.store.faults import guard, guard_each
from memwal.read.store.texts import Settings, build_query, start_text_index
from memwal.rows.fold import ROW_ADDRESS
from memwal.rows.keyset import KeySet, Mask
from memwal.rows.memory import Memory
from memwal.store.tables.blobs import BlobReader, as_storage, as_type, blob_columns
from memwal.store.tables.datasets import new_session
from memwal.store.tables.generations import Source, as_base_rows

T = TypeVar("T")

KEPT_BYTES_MAX = 64 * 1024 * 1024
_ACCESSES_MAX = 4
_TAKEN_ROWS_MAX = 8192
# A process may be given other credentials in these.
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_")

_TOMBSTONE = pa.field(layout.TOMBSTONE, pa.bool_())
# In memory only: where a row of a copy came from.
_ORIGIN = "__memwal_origin"


class Kept(Generic[T]):
    """A least-recently-used cache of things that never change, by unique names.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._things: dict[str, tuple[T, int]] = {}
        self._bytes = 0
        self._lock = Lock()

    def find(self, name: str) -> T | None:
        """What is kept under the name."""
        with self._lock:
            found = self._things.pop(name, None)
            if found is None:
                return None
            self._things[name] = found  # now the most recently used
            return found[0]

    def keep(self, name: str, thing: T, size_bytes: int) -> None:
        """Keep a thing, and drop the least recently used while all are over `KEPT_BYTES_MAX`."""
        with self._lock:
            self._bytes += size_bytes - self._things.pop(name, (None, 0))[1]
            self._things[name] = (thing, size_bytes)
            while self._bytes > KEPT_BYTES_MAX:
                self._bytes -= self._things.pop(next(iter(self._things)))[1]

    def drop(self, name: str) -> None:
        """Drop what is kept under the name."""
        with self._lock:
            self._bytes -= self._things.pop(name, (None, 0))[1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """What reads with the same access to a store share: Lance's session, opened generations.

    `number` identifies it in the names of other things that are kept.
    """

    access: str
    session: Any
    number: int = field(default_factory=count(1).__next__)
    sources: Kept[Source] = field(default_factory=Kept)

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget it for tables that are opened later, when the store can't be read in the block.

        Credentials that are in neither the options nor the environment may have expired.
        """
        try:
            yield
        except (BadCredentials, StoreUnavailable):
            _OPENED.drop(self.access)
            raise


_OPENED = Kept[Opened]()


def share_opened(
    uri: str, storage_options: Mapping[str, str], memory_bytes_max: int | None = None
) -> Opened:
    """What earlier reads with the same credentials and memory limit opened, or a new one."""
    remote = "://" in uri
    variables = [i for i in os.environ.items() if remote and i[0].startswith(_ENVIRONMENT)]
    access = repr((sorted(storage_options.items()), sorted(variables), memory_bytes_max))
    found = _OPENED.find(access)
    if found is None:
        memory = Memory(bytes_max=memory_bytes_max)
        found = Opened(access=access, session=new_session(memory))
        _OPENED.keep(access, found, KEPT_BYTES_MAX // _ACCESSES_MAX)
    return found


Batches = Iterator[pa.RecordBatch]
_KEYS = Kept[pa.Table]()
_FILES = Kept[tuple[Any, int]]()
# Each is an open file, whose space a store can't free.
_FILES_MAX = 256
Listed = tuple[ShardId, int]
"""A shard and the number of one of its generations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """What to scan for: `predicate` as SQL, the first `limit` rows, a query for vectors or a text.

    `nearest` is what Lance's scanner takes, with its `k`; of a `search` the first are the best.
    With `tombstones`, a generation's rows say whether they are one.
    """

    schema: pa.Schema
    predicate: str | None = None
    limit: int | None = None
    nearest: dict[str, Any] | None = None
    search: Search | None = None
    tombstones: bool = False

    @property
    def columns(self) -> list[str]:
        """The base columns that are read."""
        return list(self.schema.names)

    @property
    def options(self) -> dict[str, Any]:
        """Options for Lance's scanner; a search considers only rows that pass the filter."""
        options: dict[str, Any] = {"filter": self.predicate, "limit": self.limit}
        if self.nearest is not None:
            options |= {"nearest": self.nearest, "prefilter": True}
        if self.search is not None:
            options |= {"full_text_query": build_query(self.search), "prefilter": True}
        if len(self.found) > len(self.schema):
            # What a search adds is among the columns that are asked for; Lance adds none itself.
            options["disable_scoring_autoprojection"] = True
        return options

    @property
    def found(self) -> pa.Schema:
        """The schema of what is found: with the distance or the score of a search."""
        if self.nearest is not None:
            return self.schema.append(pa.field(DISTANCE, pa.float32()))
        if self.search is not None:
            return self.schema.append(pa.field(SCORE, pa.float32()))
        return self.schema

    @property
    def addressed(self) -> pa.Schema:
        """`found` with the further columns of a generation's rows: row address, tombstone."""
        schema = self.found.append(pa.field(ROW_ADDRESS, pa.uint64()))
        return schema.append(_TOMBSTONE) if self.tombstones else schema


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The base table at one version. `dataset` may be some of its fragments only."""

    where: str
    dataset: Any
    blobs: BlobReader
    batch_rows: int | None = None

    @classmethod
    def of(cls, view: TableView, dataset: Any, batch_rows: int | None = None) -> Base:
        """The whole table at the view's version."""
        where = f"{view.uri}: version {view.version}"
        columns = blob_columns(view.columns)
        blobs = BlobReader(where=where, dataset=dataset, columns=columns)
        return cls(where=where, dataset=dataset, blobs=blobs, batch_rows=batch_rows)

    def scanner(self, rows: Rows) -> Any:
        """Lance's scanner. Raises Usage for a request that Lance refuses."""
        options = {"columns": rows.found.names, **self.blobs.options, **rows.options}
        if self.batch_rows is not None:
            options["batch_size"] = self.batch_rows
        return guard(self.where, lambda: self.dataset.scanner(**options))

    def scan(self, rows: Rows) -> Batches:
        """The rows found, in `rows.found`."""
        scanner, found = self.scanner(rows), rows.found
        return guard_each(
            self.where,
            # Lance puts its own columns where it likes.
            lambda: (_project(self.blobs.read(batch), found) for batch in scanner.to_batches()),
        )

    def explain_scan(self, rows: Rows) -> str:
        """Lance's plan for the scan. Raises Usage for a request that Lance refuses."""
        scanner = self.scanner(rows)
        return str(guard(self.where, scanner.explain_plan))


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One generation of a shard, or the shard's unflushed rows, which are newer than any.

    A scan finds superseded rows and tombstones too, and gives each row's `_rowaddr`.
    `in_memory_bytes` is what all rows take, and `physical_rows` how many they are, where the writer
    recorded it. Unflushed rows are not `listed`.
    """

    where: str
    source: Source
    base_schema: pa.Schema
    listed: Listed | None = None
    in_memory_bytes: int | None = None
    physical_rows: int | None = None

    @classmethod
    def of(
        cls,
        uri: str,
        shard_id: ShardId,
        generation: FlushedGeneration,
        source: Source,
        base_schema: pa.Schema,
    ) -> Part:
        """An opened generation."""
        name = f"generation {generation.generation} ({generation.path})"
        return cls(
            where=f"{uri}: shard {shard_id}: {name}",
            source=source,
            base_schema=base_schema,
            listed=(shard_id, generation.generation),
            in_memory_bytes=generation.in_memory_bytes,
            physical_rows=generation.physical_rows,
        )

    def measure(self, fields: Sequence[pa.Field]) -> int:
        """The most bytes that all rows may take in these columns of the base and `_rowaddr`."""
        if self.physical_rows and all(pa.types.is_primitive(field.type) for field in fields):
            bits: int = 64 + sum(field.type.bit_width for field in fields)
            return self.physical_rows * bits // 8
        return self.in_memory_bytes or KEPT_BYTES_MAX

    def find_keys(self, rows: Rows) -> pa.Table | None:
        """The key columns of all rows, if `read_keys` has cached them; else None."""
        name = self.identify(rows.addressed)
        return None if name is None else _KEYS.find(name)

    def read_keys(self, rows: Rows, only: KeySet) -> pa.Table:
        """All rows, in columns of the key, which are kept; those in `only` where they are many."""
        name = self.identify(rows.addressed)
        if name is None:
            found = only.inside(self.scan(rows), rows.columns)
            return pa.Table.from_batches(found, schema=rows.addressed)
        read = self.read_all(rows)
        _KEYS.keep(name, read, read.nbytes)
        return read

    def identify(self, schema: object) -> str | None:
        """What stands for the generation's rows in a schema; None where they are not to be kept."""
        if self.listed is None or (self.in_memory_bytes or KEPT_BYTES_MAX) >= KEPT_BYTES_MAX:
            return None
        return f"{self.where} {self.source.identity} {schema}"

    def read_all(self, rows: Rows) -> pa.Table:
        """All rows at once, in `rows.addressed`; `rows` has no bounds."""
        taken = guard(self.where, lambda: self._take(rows))
        found = self.scan(rows) if taken is None else self._convert(iter(taken), rows)
        return pa.Table.from_batches(found, schema=rows.addressed)

    def _take(self, rows: Rows) -> Sequence[pa.RecordBatch] | None:
        """All rows of a small table, without the query plan, which costs more than they do.

        None where only a scan tells: of deleted rows, or of columns that it may convert.
        """
        dataset, columns = self.source.dataset, self._stored(rows)
        name = self.identify(columns)
        if name is not None and (known := _FILES.find(name)) is not None:
            return list(known[0].take(range(known[1])).to_batches())
        fragments, schema = dataset.get_fragments(), dataset.schema
        if len(fragments) != 1 or not all(_is_plain(schema.field(name).type) for name in columns):
            return None
        (one,) = fragments
        if one.deletion_file() is not None or one.physical_rows > _TAKEN_ROWS_MAX:
            return None
        session = one.open_session(columns=columns, with_row_address=True)
        if name is not None:
            size = max(self.in_memory_bytes or 0, KEPT_BYTES_MAX // _FILES_MAX)
            _FILES.keep(name, (session, one.physical_rows), size)
        return list(session.take(range(one.physical_rows)).to_batches())

    def _stored(self, rows: Rows) -> list[str]:
        columns = self.source.alignment.stored(rows.found.names)
        return [*columns, layout.TOMBSTONE] if rows.tombstones and self.source.deletes else columns

    def lacks(self, column: str) -> bool:
        """Whether the generation has no values of a column of the base."""
        return column in self.source.alignment.lacking

    def scanner(self, rows: Rows) -> Any:
        """Lance's scanner on the generation, or None when it does not have the searched column."""
        options = rows.options
        if rows.nearest is not None and self.lacks(rows.nearest["column"]):
            return None
        if rows.search is not None and self.lacks(rows.search.column):
            return None
        options |= {
            "columns": self._stored(rows),
            "batch_size": self.source.batch_rows,
            **self.source.blobs.options,
            "with_row_address": True,
        }
        return guard(self.where, lambda: self.source.dataset.scanner(**options))

    def scan(self, rows: Rows) -> Batches:
        """The rows found, in `rows.addressed`."""
        if self.is_drifted(rows.predicate):
            return self.scan_copy(guard(self.where, self.make_copy), rows)
        scanner = self.scanner(rows)
        if scanner is None:
            return iter(())
        return guard_each(self.where, lambda: self._convert(scanner.to_batches(), rows))

    def explain_scan(self, rows: Rows) -> str | None:
        """Lance's plan for the scan; None where Lance scans a copy in memory, or nothing."""
        scanner = None if self.is_drifted(rows.predicate) else self.scanner(rows)
        return None if scanner is None else str(guard(self.where, scanner.explain_plan))

    def is_drifted(self, predicate: str | None) -> bool:
        """Whether the predicate names a column that the generation lacks.

        Judged by the text: it may be true too often, and is never false too often.
        """
        text = (predicate or "").lower()
        return any(column.lower() in text for column in self.source.alignment.lacking)

    def _convert(self, batches: Batches, rows: Rows) -> Batches:
        """The generation's rows as rows of `rows.addressed`."""
        for batch in map(self.source.blobs.read, batches):
            arrays = as_base_rows(self.source, batch, rows.schema).columns
            for name in rows.addressed.names[len(arrays) :]:
                if name != layout.TOMBSTONE:
                    arrays.append(batch.column(name))
                elif self.source.deletes:
                    arrays.append(batch.column(name).cast(_TOMBSTONE.type))
                else:  # its writer knew no deletes
                    arrays.append(pa.array(np.zeros(batch.num_rows, dtype=bool)))
            yield pa.RecordBatch.from_arrays(arrays, schema=rows.addressed)

    def make_copy(self, column: str | None = None, settings: Settings | None = None) -> Any:
        """A copy in memory whose columns are the base's, so that a predicate fits it.

        Lance has to judge the filter, since no other engine agrees with it on everything. The copy
        has all the base's columns: which of them the filter reads is known to Lance alone. Texts in
        `column` are cut into words as the settings say.
        """
        loose = pa.schema([pa.field(f.name, f.type) for f in self.base_schema])
        whole = Rows(schema=loose)
        table = pa.Table.from_batches(
            self._convert(self.scanner(whole).to_batches(), whole), schema=whole.addressed
        )
        plain = as_storage(table.rename_columns([*loose.names, _ORIGIN]))
        if column is None or settings is None:
            return lance.write_dataset(plain, "memory://")
        return start_text_index(plain, column, settings)

    def scan_copy(self, copy: Any, rows: Rows) -> Batches:
        """The rows found in a copy, as `scan` gives them."""
        return guard_each(self.where, lambda: self._scan_copy(copy, rows))

    def _scan_copy(self, copy: Any, rows: Rows) -> Batches:
        scanner = copy.scanner(columns=[*rows.found.names, _ORIGIN], **rows.options)
        for batch in scanner.to_batches():
            batch = batch.rename_columns({_ORIGIN: ROW_ADDRESS})
            arrays = [as_type(batch.column(f.name), f.type) for f in rows.addressed]
            yield pa.RecordBatch.from_arrays(arrays, schema=rows.addressed)


def _is_plain(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_fixed_size_list(kind) else kind
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind))


Table = Base | Part
Found = tuple[Table, list[pa.RecordBatch]]
"""Rows with the table that they are from."""


def match_rows(where: str, table: pa.Table, predicate: str) -> Mask:
    """Which rows in memory match, as Lance has it. Raises Usage for what Lance refuses."""
    # Without the base's metadata and constraints: it is no table of its own.
    fields = [pa.field(field.name, field.type) for field in table.schema]
    numbers = pa.array(np.arange(len(table)))
    copy = pa.table(
        [*table.columns, numbers], schema=pa.schema([*fields, pa.field(_ORIGIN, numbers.type)])
    )

    def matching() -> pa.Table:
        dataset = lance.write_dataset(copy, "memory://")
        return dataset.to_table(columns=[_ORIGIN], filter=predicate)

    found = np.zeros(len(table), dtype=bool)
    found[guard(where, matching)[_ORIGIN].to_numpy()] = True
    return found


def trim(batches: Batches, schema: pa.Schema, limit: int | None) -> Batches:
    """The batches with only the columns of `schema`, and at most `limit` rows."""
    left = limit
    for batch in batches:
        kept = batch if left is None else batch.slice(0, left)
        yield _project(kept, schema)
        if left is not None:
            left -= kept.num_rows
            if not left:
                return


def _project(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([batch.column(n) for n in schema.names], schema=schema)


class OpenRead(ABC):
    """One opened read; each `start` reads again."""

    def __init__(self, plan: ReadPlan, base: Base, schema: pa.Schema) -> None:
        """`schema` is the base's. Raises Usage for a filter that Lance does not take."""
        self._plan = plan
        self._base = base
        self._scanned = pa.schema([schema.field(name) for name in plan.scanned])
        self._rows = Rows(schema=self._scanned, predicate=plan.predicate)
        self.warnings: Sequence[str] = ()
        shown = list(self._scanned)[: len(plan.columns)]
        if plan.nearest is not None:
            shown.append(pa.field(DISTANCE, pa.float32()))
        if plan.search is not None:
            shown.append(pa.field(SCORE, pa.float32()))
        self.schema = pa.schema(shown, metadata=schema.metadata)
        if plan.filter is not None:
            # By itself, so that its parentheses are its own.
            base.explain_scan(Rows(schema=self._scanned, predicate=plan.filter))

    def start(self) -> Batches:
        """The rows, in `schema`, in no promised order; a search gives the best first.

        Which rows win is decided before this returns, and `warnings` are set then; payload is read
        as it is consumed. Raises Missing when something that the plan names is gone,
        before this returns or later; Usage for a request that Lance refuses; Refused, Corruption,
        StoreUnavailable.
        """
        self.warnings = ()
        if self._plan.limit == 0:
            return iter(())
        return trim(self._read(), self.schema, self._plan.limit)

    @property
    @abstractmethod
    def way(self) -> str:
        """How the read goes about it, for people."""

    @abstractmethod
    def _read(self) -> Batches:
        """The rows, perhaps with other columns and more of them."""

    @abstractmethod
    def explain_plans(self) -> tuple[str, Mapping[Listed, str | None]]:
        """Lance's plans: for the base, and for each generation.

        None where Lance scans a copy in memory, or nothing. Raises Usage, Missing.
        """

    def _warn(self, shared: SharedKey | None) -> None:
        if shared is not None:
            self.warnings = (f"{self._plan.uri}: {shared}",)
