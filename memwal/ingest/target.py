"""The table that an ingest writes to: columns, routing and limits, and shards that overlap.

Shards overlap when their rows may have values that other shards hold. Rows of one key in two shards
have no order. Shards made by LanceDB or pylance don't record which values they hold. So while such
a shard has rows that are not in the base table, its values have to be found out: from its id, when
the spec has few values; else from one of its rows, if the shard's id was derived from that row's
value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from memwal.errors import MemWalError, Refused, Usage
from memwal.format.layout import parse_shard_id
from memwal.ingest.routing import MANUAL_SPEC_ID, Place, Router, ShardValues, choose_spec, list_ids
from memwal.ingest.values.exact import convert_column
from memwal.ingest.values.shape import Shape
from memwal.model import ShardId, ShardView, TableView
from memwal.rows.conversions import read_conversions
from memwal.rows.pairs import STRICT
from memwal.rows.progress import warn_untouched
from memwal.run.stores import Stores
from memwal.sharding.spec import sources_of
from memwal.store.records.ingests import PlanRecord, Round, StagedRecord
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import MEMTABLE_ROWS_MAX, ShardWriters, read_settings
from memwal.store.tables.generations import Generations, as_base_rows
from memwal.store.tables.manifests import require_mem_wal
from memwal.text import count_of
from memwal.threads import side_by_side

_READERS_MAX = 16
_SAMPLE_ROWS = 64
_NAMED_MAX = 3

_ROWS_PER_ENTRY_MAX = 50_000


def check_strangers(router: Router, view: TableView, schema: pa.Schema, stores: Stores) -> None:
    """Raise Refused while unmerged rows of some shard may have any value.

    Only a table with a primary key is checked: without one, the order of rows does not matter.
    """
    if not router.key:
        return
    known = list_ids(router.spec)
    spec_id = MANUAL_SPEC_ID if router.spec is None else router.spec.spec_id
    unlabelled = [
        shard
        for shard in view.shards
        if shard.shard_id not in known
        and not (shard.manifest.shard_field_entries and shard.manifest.shard_spec_id == spec_id)
    ]

    def is_stranger(shard: ShardView) -> bool:
        return _waits(stores.wal, shard) and not _is_proven(router, view, schema, stores, shard)

    asked = side_by_side(is_stranger, unlabelled, _READERS_MAX)
    found = [str(b.shard_id) for b in view.broken if b.shard_id not in known]
    found += [shard.shard_id for shard, stranger in zip(unlabelled, asked, strict=True) if stranger]
    if found:
        shards = count_of(len(found), "shard")
        raise Refused(
            "MW-I19",
            f"{view.uri}: rows that are not merged are in {shards}, and nothing "
            f"tells for which values they are ({', '.join(found[:_NAMED_MAX])}"
            f"{', …' * (len(found) > _NAMED_MAX)}): of a key that is in one of them and in the "
            "source, nobody would know which row is newer. `memwal merge` first (`memwal rescue` "
            "for rows that are in a WAL only), or name the shard with --shard",
        )


def find_waiting(
    router: Router, view: TableView, wal: WalEntries, places: Iterable[Place] = ()
) -> frozenset[ShardId]:
    """The contested shards that have rows beyond the base table, for `Router.waiting`.

    A manifest doesn't show what a live writer has put since it claimed the shard, so the WALs of
    these shards are listed. `places` are further shards to which rows go.
    """
    contested = router.find_contested(places)
    asked = [shard for shard in view.shards if shard.shard_id in contested]
    waits = side_by_side(lambda shard: _waits(wal, shard), asked, _READERS_MAX)
    return frozenset(s.shard_id for s, waiting in zip(asked, waits, strict=True) if waiting)


def _waits(wal: WalEntries, shard: ShardView) -> bool:
    """Whether the shard may have rows beyond the base table, in generations or in its WAL."""
    return bool(shard.pending) or wal.find_unflushed(shard.manifest) is not None


def _is_proven(
    router: Router, view: TableView, schema: pa.Schema, stores: Stores, shard: ShardView
) -> bool:
    """Whether the shard's id is derived from the value of one of its rows.

    Such an id is derived from one value only, so the shard holds all rows of it and no others.
    """
    columns = pa.schema([schema.field(name) for name in router.columns])
    if not len(columns):
        return False
    with suppress(MemWalError, OSError, ValueError, KeyError):
        for batch in _read_sample(view, columns, stores, shard):
            if shard.shard_id in router.derive_ids(batch):
                return True
    return False


def _read_sample(
    view: TableView, columns: pa.Schema, stores: Stores, shard: ShardView
) -> Iterator[pa.RecordBatch]:
    """Some rows of the shard that are not in the base table."""
    if shard.pending:
        generations = Generations(
            objects=stores.objects,
            tables=stores.tables,
            field_ids=stores.views.field_ids,
        )
        source = generations.open(view, shard.shard_id, shard.pending[0])
        names = source.alignment.stored(columns.names)
        for batch in source.dataset.scanner(columns=names, limit=_SAMPLE_ROWS).to_batches():
            yield as_base_rows(source, batch, columns)
    elif (position := stores.wal.find_unflushed(shard.manifest)) is not None:
        for batch in stores.wal.rows(shard.shard_id, position).batches:
            rows = batch.slice(0, _SAMPLE_ROWS).select(columns.names)
            yield pa.RecordBatch.from_arrays(rows.columns, schema=columns)


@dataclass(frozen=True, kw_only=True)
class IngestTable:
    """The table as it was when the run began."""

    stores: Stores
    view: TableView
    schema: pa.Schema
    only: ShardId | None

    @classmethod
    def read(cls, stores: Stores, view: TableView, only: str | None) -> IngestTable:
        """The table of a view; reads its schema. Raises NotATable without a MemWAL."""
        require_mem_wal(stores.uri, view.manifest)
        schema = stores.tables.seen(view.version).schema
        return cls(
            stores=stores, view=view, schema=schema, only=None if only is None else ShardId(only)
        )

    @property
    def spec_id(self) -> int:
        """The spec that rows are routed by; 0 for a table without one, or one named shard."""
        spec = None if self.only is not None else choose_spec(self.view.mem_wal.shard_specs)
        return MANUAL_SPEC_ID if spec is None else spec.spec_id

    def make_router(
        self, written: Collection[ShardId] = (), places: Collection[Place] = ()
    ) -> Router:
        """A router by the table's spec. Raises Unsupported for a spec that can't be used.

        `written` are shards that the ingest must go on with; rows were staged for `places`.
        """
        router = self._make_router()
        router.written = written
        if router.fixed is None:
            router.waiting = find_waiting(router, self.view, self.stores.wal, places)
        return router

    def _make_router(self) -> Router:
        """A router that has not looked into any WAL (`Router.waiting` is empty)."""
        return Router(
            spec=choose_spec(self.view.mem_wal.shard_specs),
            sources=sources_of(self.view.columns, self.schema),
            manifests=[shard.manifest for shard in self.view.shards],
            key=self.view.primary_key,
            broken=[b.shard_id for b in self.view.broken],
            # A shard that the user named keeps its values.
            fixed=None if self.only is None else Place(shard_id=self.only, values=ShardValues()),
        )

    def check_shards(self, places: Collection[Place] = ()) -> Router:
        """Return a router, after checking that it is known which shard has a value's rows.

        Raises Refused while that is not known, and Unsupported. `places` are those that rows were
        staged for.
        """
        router = self.make_router(places=places)
        if router.fixed is None:
            check_strangers(router, self.view, self.schema, self.stores)
            for place in places:
                router.check_place(place)
        return router

    def find_shards(self, rows: pa.Table) -> pa.Array:
        """The id of the shard that an ingest would write each row to, as an array of text.

        `rows` need the columns that a shard depends on, in types that go into the table's. Raises
        Usage for a missing or unfit one, and what `Router.route` raises.
        """
        router = self.make_router()
        if missing := [name for name in router.columns if name not in rows.column_names]:
            raise Usage(
                f"a row's shard depends on {', '.join(missing)}, and nothing is given for it"
            )
        fields = [f for f in self.schema if f.name in {*router.columns, *router.key}]
        try:
            there = (f for f in fields if f.name in rows.column_names)
            columns = {f.name: convert_column(rows[f.name], f.type, STRICT) for f in there}
            # A table without columns has no rows.
            needed = pa.table(columns or {"": pa.nulls(len(rows))})
        except (ValueError, pa.ArrowException) as error:
            raise Usage(f"rows don't fit the table's columns: {error}") from None
        found = np.full(len(rows), None, dtype=object)
        for batch in needed.combine_chunks().to_batches():
            for routed in router.route(batch):
                found[routed.indices.to_numpy()] = str(routed.place.shard_id)
        return pa.array(found, pa.string())

    def make_shape(
        self,
        *,
        delete_column: str | None = None,
        missing_as_null: bool = False,
        convert: Iterable[str] = (),
    ) -> Shape:
        """What rows have to be like that go into the table."""
        return Shape(
            schema=self.schema,
            key=self.view.primary_key,
            delete_column=delete_column,
            missing_as_null=missing_as_null,
            conversions=read_conversions(convert),
        )

    @property
    def rows_per_entry_max(self) -> int:
        """How many rows one call may have; pylance never splits a call."""
        memtable = self._settings.get("max_memtable_rows", MEMTABLE_ROWS_MAX)
        return max(1, min(_ROWS_PER_ENTRY_MAX, memtable))

    def make_writers(self) -> ShardWriters:
        """The shards' writers, with the settings that the table recorded."""
        return ShardWriters(
            self.stores.objects,
            self.stores.tables,
            self._settings,
            merged=self.view.mem_wal.merged,
            schema=self.schema,
        )

    @property
    def _settings(self) -> dict[str, int]:
        return read_settings(self.view.mem_wal.writer_config_defaults)

    def list_warnings(self) -> tuple[str, ...]:
        """What the user should know before rows are written."""
        found = [f"shard {b.shard_id} can't be read: {b.error}" for b in self.view.broken]
        found += (*self.view.warnings, *warn_untouched(self.view))
        movers = [name for name in self._make_router().columns if name not in self.view.primary_key]
        if movers and self.view.primary_key:
            found.append(
                f"a row's shard depends on {', '.join(movers)}, outside the primary key: a key "
                "for which that changes is in two shards, and nothing says which row is newer"
            )
        return tuple(found)


def make_place(staged: StagedRecord, spec_id: int) -> Place:
    """The place of staged rows, from their plan."""
    entries = tuple((name, bytes.fromhex(value)) for name, value in staged.entries)
    values = ShardValues(spec_id=spec_id, entries=entries)
    return Place(shard_id=parse_shard_id(staged.shard_id), values=values)


def list_unfinished_places(found: Round, plan: PlanRecord) -> list[Place]:
    """The places of a round's staged rows that are not all written."""
    left = (s for s in plan.staged or () if not found.read_progress(s.shard_id).finished)
    return [make_place(staged, plan.spec_id) for staged in left]
