"""The table that an ingest writes to: its columns, routing and limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from memwal.errors import Usage
from memwal.format.layout import parse_shard_id
from memwal.ingest.overlapping_shards import check_strangers, find_waiting
from memwal.ingest.routing import MANUAL_SPEC_ID, Place, Router, ShardValues, choose_spec
from memwal.model import ShardId, TableView
from memwal.rows.progress import warn_untouched
from memwal.run.stores import Stores
from memwal.sharding.spec import sources_of
from memwal.store.records.ingests import PlanRecord, Round, StagedRecord
from memwal.store.shards.writers import MEMTABLE_ROWS_MAX, ShardWriters, read_settings

_ROWS_PER_ENTRY_MAX = 50_000


@dataclass(frozen=True, kw_only=True)
class IngestTable:
    """The table as it was when the run began."""

    stores: Stores
    view: TableView
    schema: pa.Schema
    only: ShardId | None

    @classmethod
    def read(cls, stores: Stores, view: TableView, only: str | None) -> IngestTable:
        """The table of a view; reads its schema."""
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

        `rows` need the columns that a shard depends on, in types that cast to the table's. Raises
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
            columns = {f.name: rows[f.name].cast(f.type) for f in there}
            # A table without columns has no rows.
            needed = pa.table(columns or {"": pa.nulls(len(rows))})
        except pa.ArrowException as error:
            raise Usage(f"rows don't fit the table's columns: {error}") from None
        found = np.full(len(rows), None, dtype=object)
        for batch in needed.combine_chunks().to_batches():
            for routed in router.route(batch):
                found[routed.indices.to_numpy()] = str(routed.place.shard_id)
        return pa.array(found, pa.string())

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
