"""The rows of a shard that no generation holds yet, read out of its WAL.

Together with a view's generations they make a read strongly consistent, as long as no writer holds
acknowledged rows in memory only (`durable_write=False`).

The view's manifest draws the line: entries of a generation below its current one are in generations
that are listed or merged, even where they lie above the replay position, and are passed over.

Entries are read upwards from the view's replay position until one is missing. A flush meanwhile
does no harm: its entries stay, and count as newer than any generation that the view lists. Only
when they were deleted too (merged, and past the garbage job's grace) was the missing position not
the end. So the shard's manifest is read again afterwards: Moved is raised when it covers the
position at which reading stopped, and the caller needs a fresh view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from memwal.errors import Corruption, Missing, Refused, StandDown, Unsupported
from memwal.format import layout
from memwal.format.replay import hole_text, is_flushed, replay
from memwal.model import ColumnInfo, ShardId, ShardManifest, ShardView, TableView
from memwal.rows import align, fold
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.wal import ReadEntry, StoredEntry, WalEntries, field_id_of
from memwal.store.tables.blobs import blob_columns
from memwal.store.tables.field_ids import FieldIds
from memwal.store.tables.generations import line_up_rows

# Rows are folded when they have grown by so much since the last time.
_FOLD_BYTES = 64 * 1024 * 1024
_VIEWS_MAX = 5
_NULLS = 64


class Moved(StandDown):
    """Rows moved from the WAL to a generation while it was read; a fresh view lists it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UnflushedRows:
    """What one shard's WAL adds to a view.

    `rows` has the asked-for base columns, the key's among them, and `_tombstone` (bool, never
    null); the values of a deleted row are null outside its key. With a primary key there is one row
    a key, the newest; without one, or with a row-merge policy, all rows in the order of the writes.
    All of them are newer than every generation that the view lists. `first_position` and
    `last_position` bound the entries that were read (inclusive; last = first - 1 for none);
    `rows_read` counts rows before folding, `bytes_read` stored bytes.
    """

    shard_id: ShardId
    rows: pa.Table
    first_position: int
    last_position: int
    entries: int
    rows_read: int
    bytes_read: int
    warnings: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Gathered:
    """Rows so far, folded now and then."""

    keys: tuple[str, ...]
    bytes_max: int
    where: str
    tables: list[pa.Table] = field(default_factory=list)
    folded_bytes: int = 0
    bytes: int = 0

    def add(self, table: pa.Table) -> None:
        self.tables.append(table)
        self.bytes += table.nbytes
        if self.bytes > min(2 * self.folded_bytes + _FOLD_BYTES, self.bytes_max):
            self.fold()

    def fold(self) -> pa.Table:
        table = pa.concat_tables(self.tables)
        if self.keys:
            table = fold.keep_newest(table, self.keys)
        self.tables = [table]
        self.bytes = self.folded_bytes = table.nbytes
        if self.bytes > self.bytes_max:
            raise Refused("MW-W05", self.too_much)
        return table

    @property
    def too_much(self) -> str:
        return (
            f"{self.where} holds more than {self.bytes_max} bytes of unflushed rows; let its "
            "writer flush, or rescue the shard if it has none"
        )


@dataclass(frozen=True, kw_only=True)
class StoredWalRows:
    """Reads unflushed rows of a table's shards."""

    wal: WalEntries
    manifests: ShardManifests
    field_ids: FieldIds

    def read_unflushed(
        self,
        view: TableView,
        shard: ShardView,
        schema: pa.Schema,
        columns: Sequence[str] | None = None,
        *,
        bytes_max: int | None = None,
    ) -> UnflushedRows:
        """The unflushed rows of a shard of `view`, lined up with the view's columns.

        `schema` is the base table's Arrow schema at the view's version. Raises Moved; Corruption
        for an entry that is torn, forged or missing; Refused for rows that can't be lined up, NULL
        keys, or more than the limits allow.
        """
        wanted = set(schema.names if columns is None else [*columns, *view.primary_key])
        where = f"{self.wal.uri}: shard {shard.shard_id}: the WAL"
        gathered = _Gathered(
            keys=view.primary_key if view.policy_text is None else (),
            bytes_max=self.wal.limits.rows_bytes_max if bytes_max is None else bytes_max,
            where=where,
        )
        return _ShardReader(
            wal=self.wal,
            manifests=self.manifests,
            field_ids=self.field_ids,
            view=view,
            manifest=shard.manifest,
            fields=[schema.field(name) for name in schema.names if name in wanted],
            where=where,
            gathered=gathered,
        ).read()

    def read_settled(
        self,
        read_view: Callable[[], TableView],
        schema_of: Callable[[TableView], pa.Schema],
        columns: Sequence[str] | None = None,
        shards: Callable[[TableView], Sequence[ShardView]] = lambda view: view.shards,
    ) -> tuple[TableView, Mapping[ShardId, UnflushedRows]]:
        """A view and the unflushed rows of its shards, from a fresh view when rows move meanwhile.

        Raises Moved when that happens again and again, and what `read_unflushed` raises. The limit
        on rows in memory is for all shards together.
        """
        for attempt in range(_VIEWS_MAX):
            view = read_view()
            found: dict[ShardId, UnflushedRows] = {}
            left = self.wal.limits.rows_bytes_max
            try:
                schema = schema_of(view)
                for shard in shards(view):
                    rows = self.read_unflushed(view, shard, schema, columns, bytes_max=left)
                    left -= rows.rows.nbytes
                    found[shard.shard_id] = rows
            except Moved:
                if attempt + 1 == _VIEWS_MAX:
                    raise
            else:
                return view, found
        raise AssertionError("unreachable")


@dataclass(frozen=True, kw_only=True)
class _ShardReader:
    """Reads one shard's WAL once."""

    wal: WalEntries
    manifests: ShardManifests
    field_ids: FieldIds
    view: TableView
    manifest: ShardManifest
    fields: Sequence[pa.Field]
    where: str
    gathered: _Gathered

    def read(self) -> UnflushedRows:
        start = self.manifest.replay_after_wal_entry_position + 1
        entries = []
        self.gathered.add(self._schema().empty_table())
        for found in self._read_upwards(start):
            entries.append(found.entry)
            if found.entry.rows and not is_flushed(self.manifest, found.entry.generation):
                self.gathered.add(self._line_up(found))
        decided = replay(self._judge_by(start + len(entries)), entries)
        if decided.problems:
            raise Corruption("MW-W01", f"{self.where}: {'; '.join(decided.problems)}")
        return UnflushedRows(
            shard_id=self.manifest.shard_id,
            rows=self.gathered.fold(),
            first_position=start,
            last_position=start + len(entries) - 1,
            entries=len(decided.unflushed),
            rows_read=decided.rows,
            bytes_read=sum(e.size_bytes for e in entries),
            warnings=tuple(f"{self.where}: {text}" for text in decided.warnings),
        )

    def _read_upwards(self, start: int) -> Iterator[ReadEntry]:
        """Entries from `start` on, up to the first position that holds none."""
        shard, position = self.manifest.shard_id, start
        count = min(2, self.wal.readers_for(1))
        while True:
            window = self.wal.read_stored(shard, position, count)
            largest = 1
            for offset, stored in enumerate(window):
                if stored is not None:
                    # Only now: compressed, many may be small that are large together.
                    found = self.wal.decode(stored)
                else:
                    again = self._read_again(position + offset, window[offset + 1 :])
                    if again is None:
                        return
                    found = again
                largest = max(largest, found.entry.size_bytes)
                yield found
            position += count
            count = min(2 * count, self.wal.readers_for(largest))

    def _read_again(self, position: int, above: Sequence[StoredEntry | None]) -> ReadEntry | None:
        """None when the position is the end. Reads it again when something is stored above it.

        A live writer may have put both between our two requests. If it is missing all the same,
        the manifest tells whether it was collected; if not, it is a hole.
        """
        shard = self.manifest.shard_id
        stored_above = any(above) if above else self.wal.exists(shard, position + 1)
        if not stored_above:
            return None
        try:
            return self.wal.rows(shard, position)
        except Missing:
            self._check_manifest(position)
            raise Corruption(
                "MW-W01",
                f"{self.where}: position {position} is missing, but one above it is stored: "
                "entries are lost in between",
            ) from None

    def _judge_by(self, tip: int) -> ShardManifest:
        """The manifest to judge the entries by: the view's, with what was claimed since.

        A writer may have put an entry at `tip` after we found none, and a manifest may tell of it
        by now. So only one that is missing even after that manifest was read is a hole.
        """
        shard = self.manifest.shard_id
        latest = self._check_manifest(tip)
        seen = latest.wal_entry_position_last_seen
        if hole_text(tip, latest, 0):
            if self.wal.exists(shard, tip):
                seen = tip - 1
            else:
                # Whoever collected it covered it before: then this raises Moved.
                self._check_manifest(tip)
        return replace(
            self.manifest, writer_epoch=latest.writer_epoch, wal_entry_position_last_seen=seen
        )

    def _check_manifest(self, tip: int) -> ShardManifest:
        """The latest. Raises Moved when it covers `tip`: that it is missing proves nothing then."""
        latest = self.manifests.latest(self.manifest.shard_id)
        if latest is None:
            raise Corruption("MW-M06", f"{self.where}: the shard's manifests are gone")
        if latest.replay_after_wal_entry_position >= tip:
            raise Moved(f"{self.where} was flushed while it was read")
        return latest

    def _line_up(self, found: ReadEntry) -> pa.Table:
        for name in blob_columns(self.view.columns):
            raise Unsupported(
                "MW-B01",
                f"{self.where}, position {found.entry.position}: the blobs of column {name!r} "
                "can't be read out of a WAL: let the writer flush, or rescue the shard if it has "
                "none",
            )
        try:
            alignment = self._align(found)
        except (Refused, Unsupported) as error:
            raise error.at(f"{self.where}, position {found.entry.position}") from None
        table = pa.Table.from_batches(found.batches, schema=found.schema)
        if table.num_columns != len(set(table.column_names)):
            raise Corruption(
                "MW-W07", f"{self.where}, position {found.entry.position}: a column is twice"
            )
        lacking = [f.type for f in self.fields if f.name in alignment.lacking]
        self._check_size(len(table), lacking)
        schema = self._schema()
        values = pa.schema([field for field in schema if field.name != layout.TOMBSTONE])
        batches = [line_up_rows(alignment, batch, values) for batch in found.batches]
        rows = pa.Table.from_batches(batches, schema=values)
        return rows.append_column(
            schema.field(layout.TOMBSTONE), self._tombstones(table, found.entry.position)
        )

    def _check_size(self, rows: int, left_out: Sequence[pa.DataType]) -> None:
        """Refuse rows that are narrow, and many, where what they leave out is wide."""
        row_bytes = sum(pa.nulls(_NULLS, kind).nbytes for kind in left_out) / _NULLS
        if rows * row_bytes > self.gathered.bytes_max:
            raise Refused("MW-W05", self.gathered.too_much)

    def _align(self, found: ReadEntry) -> align.Alignment:
        columns = _columns(found.schema, self.view.columns)
        epoch = found.entry.writer_epoch
        ids = [column.field_id for column in columns]
        reused = self.field_ids.find_reused(
            self.view.version, self.manifest.shard_id, ids, epoch=epoch
        )
        return align.align(self.view.columns, columns, "entry", reused)

    def _tombstones(self, table: pa.Table, position: int) -> pa.ChunkedArray:
        if layout.TOMBSTONE not in table.column_names:
            return pa.chunked_array([pa.array(np.zeros(len(table), dtype=bool))])
        found = table[layout.TOMBSTONE]
        if not pa.types.is_boolean(found.type):
            raise Corruption(
                "MW-W07",
                f"{self.where}, position {position}: {layout.TOMBSTONE} is of type {found.type}",
            )
        return found.fill_null(False)

    def _schema(self) -> pa.Schema:
        # A deleted row has no values, whatever the base demands of its columns.
        loose = [f.with_nullable(f.name not in self.view.primary_key) for f in self.fields]
        return pa.schema([*loose, pa.field(layout.TOMBSTONE, pa.bool_(), nullable=False)])


def _columns(schema: pa.Schema, base: Sequence[ColumnInfo]) -> tuple[ColumnInfo, ...]:
    """An entry's columns with the field ids that pylance leaves in the schema.

    Where its writer left no ids, columns go by their names.
    """
    by_id = {column.field_id: column for column in base}
    by_name = {column.name: column for column in base}
    found = []
    for arrow in schema:
        if arrow.name == layout.TOMBSTONE:
            continue
        field_id = field_id_of(arrow)
        like = by_name.get(arrow.name) if field_id is None else by_id.get(field_id)
        if like is None and field_id is None:
            raise Refused(
                "MW-W08",
                f"column {arrow.name!r} has no field id, and the table has no column of that name",
            )
        found.append(_column(arrow, like))
    return tuple(found)


def _column(arrow: pa.Field, like: ColumnInfo | None) -> ColumnInfo:
    """`like` is the base's column in that place: it tells which nested fields have ids at all."""
    children: tuple[ColumnInfo, ...] = ()
    if like is not None and like.children:
        members = [arrow.type.field(place) for place in range(arrow.type.num_fields)]
        by_id = {child.field_id: child for child in like.children}
        ids = [field_id_of(member) for member in members]
        known = [i for i in ids if i is not None]
        if len(known) == len(ids):
            children = tuple(_column(m, by_id.get(i)) for m, i in zip(members, known, strict=True))
        elif len(members) == len(like.children):
            children = tuple(map(_column, members, like.children))
    own = field_id_of(arrow)
    return ColumnInfo(
        field_id=own if own is not None else (like.field_id if like else -1),
        name=arrow.name,
        type_text=str(arrow.type),
        nullable=arrow.nullable,
        children=children,
    )
