"""The Lance tables: the only importer of `lance`. Reading generations, and the merge's commits."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
from lance.blob import BlobType, blob_array
from lance.mem_wal import CompactedSsTable

from memwal import align, fold, layout, sql
from memwal.errors import (
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    NotATable,
    Refused,
    StoreUnavailable,
)
from memwal.model import ColumnInfo, FlushedGeneration, ShardId, TableView
from memwal.plan.merge import CommitShape, Deletes, FoldFacts, Join, new_keys_are_compared
from memwal.plan.verify import GenerationFacts
from memwal.ports import CommitStats, Expired

# One small cache for all datasets of a run: each open would otherwise bring a 6 GiB one of its own
# (peers.md, LC #217).
_CACHE_BYTES = 64 * 1024 * 1024
# Folds up to this size go to Lance as a table, whose known size lets it hash the smaller side of
# the join (5 times faster on 40 million rows: tests/bench/merge_join.py); larger ones are streamed.
_IN_MEMORY_BYTES_MAX = 128 * 1024 * 1024
_BATCH_BYTES = 8 * 1024 * 1024
_BATCH_ROWS_MAX = 8192

_CONFLICT = re.compile(
    r"too many concurrent writers|commit conflict|preempted by concurrent|"
    r"incompatible transaction|stale sstable|concurrent modification",
    re.IGNORECASE,
)
_GONE = re.compile(r"not found|no such file|does not exist", re.IGNORECASE)
_RUST_SOURCE = re.compile(r",? ?/[^\s,]*\.rs:\d+(:\d+)?")


def lance_version() -> str:
    """The installed pylance's version."""
    return str(lance.__version__)


def tidy_text(error: BaseException) -> str:
    """An error's first line without the places in Lance's own source."""
    return _RUST_SOURCE.sub("", str(error).split("\n", 1)[0]).strip() or type(error).__name__


class LanceTables:
    """Opens the base table and its generations, with one session."""

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self._uri = uri
        self._options = dict(storage_options) or None
        self._session = lance.Session(
            index_cache_size_bytes=_CACHE_BYTES, metadata_cache_size_bytes=_CACHE_BYTES
        )

    @property
    def uri(self) -> str:
        """The base table's address."""
        return self._uri

    def base(self, version: int | None = None) -> Any:
        """The base table at a version (None: the latest). Raises NotATable, StoreUnavailable."""
        try:
            return self._open(self._uri, version)
        except Missing as error:
            raise NotATable(str(error)) from None

    def unindexed_rows(self, version: int, index_name: str) -> int | None:
        """Rows of a version that the index does not cover; None when Lance can't tell."""
        try:
            stats = self.base(version).stats.index_stats(index_name)
        except (OSError, ValueError, KeyError):
            return None
        rows = stats.get("num_unindexed_rows")
        return None if rows is None else int(rows)

    def generation_facts(self, shard_id: ShardId, generation: FlushedGeneration) -> GenerationFacts:
        """Whether a listed generation opens, and how many rows it physically has."""
        rows, error = None, None
        try:
            fragments = self.generation(shard_id, generation).get_fragments()
            rows = sum(int(fragment.physical_rows) for fragment in fragments)
        except MemWalError as caught:
            error = str(caught)
        except (OSError, ValueError) as caught:
            error = tidy_text(caught)
        return GenerationFacts(
            shard_id=shard_id,
            generation=generation.generation,
            claimed_rows=generation.physical_rows,
            physical_rows=rows,
            error=error,
        )

    def operation(self, version: int) -> str | None:
        """What kind of commit made a version (`Restore`, `Update`, …); None when unknown."""
        try:
            transaction = self.base(version).read_transaction(version)
        except (OSError, ValueError, MemWalError):
            return None
        return None if transaction is None else type(transaction.operation).__name__

    def highest_fragment(self, version: int) -> int | None:
        """The highest fragment id of a version; None when it has no fragment, or is gone."""
        try:
            ids = [fragment.fragment_id for fragment in self.base(version).get_fragments()]
        except MemWalError:
            return None
        return max(ids, default=None)

    def uncovered_fragments(self, version: int) -> dict[str, tuple[int, ...]]:
        """For each index, the fragments of the version that none of its segments covers."""
        base = self.base(version)
        live = {fragment.fragment_id for fragment in base.get_fragments()}
        covered: dict[str, set[int]] = {}
        for segment in base.list_indices():
            covered.setdefault(segment["name"], set()).update(segment["fragment_ids"])
        return {name: tuple(sorted(live - ids)) for name, ids in covered.items()}

    def expire_versions(self, older_than_seconds: float) -> Expired:
        """Remove old versions by Lance's own cleanup (see the VersionExpiry port).

        Files that no version names are left to it too, once they are a week old.
        """
        dataset = self.base()
        try:
            stats = dataset.cleanup_old_versions(
                older_than=timedelta(seconds=older_than_seconds),
                error_if_tagged_old_versions=False,
                delete_unverified=False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise StoreUnavailable(
                f"{self._uri}: old versions can't be expired: {tidy_text(error)}"
            ) from None
        return Expired(versions=int(stats.old_versions), size_bytes=int(stats.bytes_removed))

    def generation(self, shard_id: ShardId, generation: FlushedGeneration) -> Any:
        """A flushed generation. Raises Missing, Corruption, StoreUnavailable."""
        folder = layout.generation_folder(shard_id, generation.path, generation.generation)
        return self._open(f"{self._uri}/{folder}", None)

    def _open(self, uri: str, version: int | None) -> Any:
        try:
            return lance.dataset(
                uri, version=version, storage_options=self._options, session=self._session
            )
        except (OSError, ValueError) as error:
            text = tidy_text(error)
            if _GONE.search(text):
                raise Missing(f"{uri}: no Lance table there ({text})") from None
            if isinstance(error, ValueError):
                raise Corruption(f"{uri}: can't be opened: {text}") from None
            raise StoreUnavailable(f"{uri}: can't be opened: {text}") from None


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


def primary_key_of(dataset: Any) -> tuple[str, ...]:
    """The unenforced primary key's columns in key order; empty when the table has none."""
    keys = [f for f in dataset.lance_schema.fields() if f.is_unenforced_primary_key()]
    # A position of None (older metadata has a plain `true`) keeps the schema's order.
    keys.sort(key=lambda f: f.unenforced_primary_key_position() or 0)
    return tuple(f.name() for f in keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """One opened generation, lined up with the base."""

    dataset: Any
    columns: tuple[ColumnInfo, ...]
    alignment: align.Alignment
    batch_rows: int


class LanceMergeTable:
    """The MergeTable port over Lance."""

    def __init__(
        self, tables: LanceTables, renamed: Callable[[TableView, align.Rename, int], bool]
    ) -> None:
        """`renamed(view, rename, since_version)` tells whether history proves a rename."""
        self._tables = tables
        self._renamed = renamed

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> LanceFold:
        """Read the generations' keys and fold them against `view` (see the port)."""
        opened = [(g, self._tables.generation(shard_id, g)) for g in generations]
        sources = [
            self._source(view, shard_id, generation, dataset) for generation, dataset in opened
        ]
        tables = []
        for generation, source in zip(generations, sources, strict=True):
            try:
                tables.append(_key_table(source, view.primary_key))
            except (OSError, ValueError) as error:
                raise _unreadable(self._tables.uri, shard_id, generation, error) from None
        try:
            folded = fold.fold(tables, view.primary_key)
        except Refused as error:
            raise Refused(
                f"shard {shard_id}, generations {generations[0].generation} to "
                f"{generations[-1].generation}: {error}"
            ) from None
        return LanceFold(
            tables=self._tables,
            owner=self,
            view=view,
            shard_id=shard_id,
            generations=tuple(generations),
            sources=tuple(sources),
            folded=folded,
        )

    def _source(
        self, view: TableView, shard_id: ShardId, generation: FlushedGeneration, dataset: Any
    ) -> _Source:
        columns = columns_of(dataset)
        try:
            alignment = align.align(view.columns, columns)
            for rename in alignment.renames:
                if not self._renamed(view, rename, generation.generation):
                    raise Refused(
                        f"field {rename.field_id} is {rename.before!r} in the generation and "
                        f"{rename.after!r} in the table, and no retained version shows that it was "
                        "renamed rather than dropped and its id used again"
                    )
        except Refused as error:
            raise Refused(
                f"shard {shard_id}, generation {generation.generation} ({generation.path}): {error}"
            ) from None
        rows = max(1, generation.physical_rows or dataset.count_rows())
        per_row = max(1, (generation.in_memory_bytes or 0) // rows)
        return _Source(
            dataset=dataset,
            columns=columns,
            alignment=alignment,
            batch_rows=max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES // per_row)),
        )


def _key_table(source: _Source, keys: Sequence[str]) -> pa.Table:
    names = {c.column: c.source for c in source.alignment.columns}
    wanted = [names[key] for key in keys]
    if any(c.name == layout.TOMBSTONE for c in source.columns):
        wanted.append(layout.TOMBSTONE)
    table = source.dataset.scanner(columns=wanted, with_row_address=True).to_table()
    back = {names[key]: key for key in keys}
    return table.rename_columns([back.get(name, name) for name in table.column_names])


def _unreadable(
    uri: str, shard_id: ShardId, generation: FlushedGeneration, error: Exception
) -> Exception:
    where = f"{uri}: shard {shard_id}: generation {generation.generation} ({generation.path})"
    return _unreadable_text(where, error)


def _unreadable_text(where: str, error: Exception) -> Exception:
    """Missing when the files are gone (perhaps collected after a merge), else Corruption."""
    text = tidy_text(error)
    if _GONE.search(text):
        return Missing(f"{where}: {text}")
    return Corruption(f"{where} can't be read: {text}")


class LanceFold:
    """The Fold port over Lance. Keys are held in memory, payload is streamed at commit."""

    def __init__(
        self,
        *,
        tables: LanceTables,
        owner: LanceMergeTable,
        view: TableView,
        shard_id: ShardId,
        generations: tuple[FlushedGeneration, ...],
        sources: tuple[_Source, ...],
        folded: fold.Folded,
    ) -> None:
        self._tables = tables
        self._owner = owner
        self._view = view
        self._shard_id = shard_id
        self._generations = generations
        self._sources = sources
        self._folded = folded
        self._base = tables.base(view.version)
        self._bytes_read = 0
        self._facts: FoldFacts | None = None

    @property
    def facts(self) -> FoldFacts:
        """What the plan needs to shape the commit."""
        if self._facts is None:
            by_name = {c.name: c for c in self._view.columns}
            keys = [by_name[key] for key in self._view.primary_key]
            indexed = {entry.field_ids for entry in self._view.manifest.indexes}
            key_indexed = len(keys) == 1 and (keys[0].field_id,) in indexed
            key_types = tuple(c.type_text for c in keys)
            # Looked up only where the answer can matter: it may cost a scan of the key column.
            matters = key_indexed or not new_keys_are_compared(key_types)
            self._facts = FoldFacts(
                generations=len(self._generations),
                live_rows=self._folded.live_rows,
                tombstones=len(self._folded.tombstones),
                anchored=len(self._folded.anchors) > 0,
                anchored_in_base=matters and self._anchored_in_base(),
                base_rows=self._view.rows,
                key_types=key_types,
                key_indexed=key_indexed,
            )
        return self._facts

    def _anchored_in_base(self) -> bool:
        if len(self._generations) == 1 or not len(self._folded.anchors):
            return False
        rows = zip(*(column.to_pylist() for column in self._folded.anchors.columns), strict=True)
        found = self._base.scanner(
            columns=[self._view.primary_key[0]],
            filter=sql.keys_in(self._view.primary_key, rows),
            limit=1,
        ).to_table()
        return len(found) > 0

    @property
    def bytes_read(self) -> int:
        """Bytes read for this fold so far, base table included."""
        for dataset in (self._base, *(s.dataset for s in self._sources)):
            self._bytes_read += dataset.io_stats_incremental().read_bytes
        return self._bytes_read

    def rebased(self, view: TableView) -> LanceFold:
        """The same winners on a newer version of the base."""
        sources = tuple(
            replace(
                source,
                alignment=self._owner._source(
                    view, self._shard_id, generation, source.dataset
                ).alignment,
            )
            for generation, source in zip(self._generations, self._sources, strict=True)
        )
        rebased = LanceFold(
            tables=self._tables,
            owner=self._owner,
            view=view,
            shard_id=self._shard_id,
            generations=self._generations,
            sources=sources,
            folded=self._folded,
        )
        rebased._bytes_read = self.bytes_read
        return rebased

    def delete_pass(self, shape: CommitShape) -> tuple[int, int]:
        """Delete the tombstoned keys, unmarked and without a retry on conflict.

        A retry would delete rows that a newer commit put back (seen: field notes section 1).
        """
        builder = (
            self._base.merge_insert(list(self._view.primary_key))
            .when_matched_delete()
            .conflict_retries(0)
            .use_index(shape.join is Join.INDEX)
        )
        stats = _guarded(lambda: builder.execute(self._folded.tombstones))
        return int(self._base.version), int(stats["num_deleted_rows"])

    def commit(self, shape: CommitShape, mark: int) -> CommitStats:
        """Upsert the winners and mark the prefix, in one commit without a retry on conflict."""
        builder = (
            self._base.merge_insert(list(self._view.primary_key))
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .conflict_retries(0)
            .use_index(shape.join is Join.INDEX)
        )
        if shape.deletes is Deletes.SAME_COMMIT:
            columns = [c.to_pylist() for c in self._folded.tombstones.columns]
            predicate = sql.keys_in(self._view.primary_key, zip(*columns, strict=True))
            builder = builder.when_not_matched_by_source_delete(predicate)
        builder.mark_sstables_as_compacted([CompactedSsTable(self._shard_id, mark)])
        payload = _Payload(self._base.schema, self._sources, self._folded)
        stats = _guarded(lambda: builder.execute(payload.source(self._small())), payload)
        return CommitStats(
            version=int(self._base.version),
            rows_inserted=int(stats["num_inserted_rows"]),
            rows_updated=int(stats["num_updated_rows"]),
            rows_deleted=int(stats["num_deleted_rows"]),
        )

    def _small(self) -> bool:
        sizes = [g.in_memory_bytes for g in self._generations]
        return None not in sizes and sum(s or 0 for s in sizes) <= _IN_MEMORY_BYTES_MAX


def _guarded(call: Callable[[], Any], payload: _Payload | None = None) -> Any:
    """Run a commit; conflicts become LostRace, anything else an error with an open outcome."""
    try:
        return call()
    except (OSError, ValueError, RuntimeError) as error:
        # What went wrong while rows were read for the commit is not the commit's own fault.
        if payload is not None and payload.error is not None:
            raise payload.error from None
        text = tidy_text(error)
        if _CONFLICT.search(str(error)):
            raise LostRace(text) from None
        raise StoreUnavailable(text) from None


class _Payload:
    """The winners' rows in the base's schema, read generation by generation."""

    def __init__(self, schema: pa.Schema, sources: Sequence[_Source], folded: fold.Folded) -> None:
        self._schema = schema
        self._sources = sources
        self._folded = folded
        self._lock = threading.Lock()
        self.error: Exception | None = None

    def source(self, small: bool) -> pa.Table | pa.RecordBatchReader:
        """A table when the fold is small, a stream of batches otherwise."""
        if small:
            return pa.Table.from_batches(list(self._batches()), schema=self._schema)
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for source, winners in zip(self._sources, self._folded.winners, strict=True):
            if not len(winners):
                continue
            try:
                yield from self._generation(source, winners)
            except (OSError, ValueError, pa.ArrowException) as error:
                with self._lock:
                    self.error = _unreadable_text(source.dataset.uri, error)
                raise

    def _generation(self, source: _Source, winners: Any) -> Iterator[pa.RecordBatch]:
        scanner = source.dataset.scanner(
            columns=list(source.alignment.sources),
            with_row_address=True,
            batch_size=source.batch_rows,
            blob_handling="all_binary",
        )
        for batch in scanner.to_batches():
            kept = fold.keep_winners(batch, winners)
            if kept.num_rows:
                yield self._as_base_rows(source, kept)

    def _as_base_rows(self, source: _Source, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for field, column in zip(self._schema, source.alignment.columns, strict=True):
            if column.source is None:
                arrays.append(_nulls(field.type, batch.num_rows))
            else:
                arrays.append(_as_type(batch.column(column.source), field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _nulls(kind: pa.DataType, rows: int) -> pa.Array:
    if isinstance(kind, BlobType):
        return blob_array([None] * rows)
    return pa.nulls(rows, kind)


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Blobs (v2) are read as bytes and have to be wrapped again; all else is as it should be."""
    if isinstance(kind, BlobType):
        return blob_array(array.to_pylist())
    return array if array.type == kind else array.cast(kind)
