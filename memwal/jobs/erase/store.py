"""What an erasure changes: keys deleted through the MemWAL, indexes built anew, and what goes.

A delete of the base alone would write the keys in clear into its transaction, and a pending row
would bring them back. A tombstone goes to each shard that still has a row of its key to be merged,
where it comes after it; a key that is in the base only goes where new rows of it would go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from memwal.errors import LostRace, PartlyFailed, Refused
from memwal.format import layout
from memwal.ingest.routing import MANUAL_SPEC_ID, Place, ShardValues
from memwal.ingest.target import IngestTable
from memwal.jobs.erase.keys import Keys
from memwal.jobs.erase.plan import ObjectKind, Pin, SearchResult, Sighting
from memwal.jobs.erase.search import is_data
from memwal.jobs.index_catchup.apply import SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.model import ErasureMark, ShardId, ShardStatus, TableView
from memwal.rows.keyset import KeySet
from memwal.run.stores import Stores
from memwal.store.shards.writers import ShardWriters, sentinel_bytes
from memwal.store.tables.indexes import describe_indexes, find_index, index_kind
from memwal.store.tables.lance_calls import call_lance


@dataclass(frozen=True, kw_only=True, eq=False)
class Claims:
    """The shards to claim with the keys to delete in each, and how far all shards go.

    `marks` are of the shards as they were when they were looked at.
    """

    keys: Mapping[ShardId, pa.Table] = field(default_factory=dict)
    places: Mapping[ShardId, ShardValues] = field(default_factory=dict)
    marks: Mapping[ShardId, ErasureMark] = field(default_factory=dict)

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards to claim."""
        return tuple(sorted(self.keys))


class TableTombstones:
    """The tombstones of one erasure."""

    def __init__(self, stores: Stores, keys: Keys) -> None:
        self._stores = stores
        self._keys = keys

    def plan(self, view: TableView, look: SearchResult) -> Claims:
        """Choose the shards to claim. Raises Refused, Unsupported as an ingest does."""
        self._check_shards(view, look)
        claimed = self._read_waiting(view, look)
        places: dict[ShardId, ShardValues] = {}
        for place, keys in self._route(view, look, list(claimed.values())):
            places[place.shard_id] = place.values
            before = claimed.get(place.shard_id, keys.slice(0, 0))
            claimed[place.shard_id] = pa.concat_tables([before, keys])
        return Claims(keys=claimed, places=places, marks=self._mark(view, look))

    def write(self, shard_id: ShardId, claims: Claims) -> ErasureMark:
        """Claim a shard and delete its keys there; returns how far it goes then.

        Raises Refused for a SEALED shard, Fenced, LostRace, StoreUnavailable.
        """
        values = claims.places.get(shard_id, ShardValues())
        keys = claims.keys[shard_id]
        opened = self._writers.open(shard_id, values.spec_id, values.entries)
        try:
            for start in range(0, keys.num_rows, self._table.rows_per_entry_max):
                opened.delete(keys.slice(start, self._table.rows_per_entry_max))
            opened.check_position()
            opened.close()
        except BaseException:
            opened.abandon()
            raise
        position = opened.position
        latest = self._stores.shard_manifests.latest(shard_id)
        generation = 0 if latest is None else latest.current_generation - 1
        return ErasureMark(position=position, generation=generation)

    # ---- which shards

    @cached_property
    def _table(self) -> IngestTable:
        return IngestTable.read(self._stores, self._stores.views.table(), None)

    @cached_property
    def _writers(self) -> ShardWriters:
        return self._table.make_writers()

    def _check_shards(self, view: TableView, look: SearchResult) -> None:
        for broken in view.broken:
            raise broken.error
        held = {s.shard_id for s in look.sightings if s.rows and s.shard_id is not None}
        for shard in view.shards:
            if shard.manifest.status is ShardStatus.SEALED and shard.shard_id in held:
                raise Refused(
                    "MW-M05",
                    f"{self._stores.uri}: shard {shard.shard_id} is SEALED and holds the keys: no "
                    "writer may claim it",
                )

    def _read_waiting(self, view: TableView, look: SearchResult) -> dict[ShardId, pa.Table]:
        """The keys of what the base does not have yet: in a shard's WAL above its replay position,
        or in a pending generation.
        """
        shards = {shard.shard_id: shard for shard in view.shards}
        found: dict[ShardId, list[pa.RecordBatch]] = {}
        for seen in look.sightings:
            shard = shards.get(seen.shard_id or ShardId(""))
            if shard is None or not seen.rows:
                continue
            batches: Iterable[pa.RecordBatch] = ()
            if seen.kind is ObjectKind.WAL_ENTRY:
                if seen.number > shard.manifest.replay_after_wal_entry_position:
                    entry = self._stores.wal.rows(shard.shard_id, seen.number)
                    batches = (b for b in entry.batches if b.num_rows)
            elif seen.number > shard.merged_generation and is_data(seen.path):
                batches = self._stores.tables.file_batches(seen.path, self._keys.names)
            found.setdefault(shard.shard_id, []).extend(self._keys.select(batches))
        return {shard: self._distinct(rows) for shard, rows in sorted(found.items()) if rows}

    def _distinct(self, batches: Collection[pa.RecordBatch]) -> pa.Table:
        names, kind = list(self._keys.names), self._keys.table.schema
        parts = [pa.Table.from_batches([b]).select(names).cast(kind) for b in batches]
        return pa.concat_tables(parts).group_by(names, use_threads=False).aggregate([]).cast(kind)

    # ---- keys that are in the base only

    def _route(
        self, view: TableView, look: SearchResult, waiting: Sequence[pa.Table]
    ) -> list[tuple[Place, pa.Table]]:
        """The keys of live rows of the base that no waiting shard deletes, by where they go."""
        if not look.fragments:
            return []
        router, names = self._table.make_router(), list(self._keys.names)
        columns = [*names, *(c for c in router.columns if c not in names)]
        dataset = self._stores.tables.at(look.version)
        parts = [f for f in call_lance(dataset.get_fragments) if f.fragment_id in look.fragments]
        batches = dataset.scanner(columns=columns, fragments=parts).to_batches()
        rows = [*self._keys.select(batches)]
        if not rows:
            return []
        live = pa.Table.from_batches(rows)
        if waiting:
            deleted = KeySet(pa.concat_tables(waiting).columns)
            typed = live.select(names).cast(self._keys.table.schema)
            live = live.filter(pc.invert(pa.array(deleted.contains(typed.columns))))
        left = live.combine_chunks().to_batches()
        if not live.num_rows:
            return []
        if router.spec is None and (place := self._find_manual(view)) is not None:
            return [(place, self._distinct(left))]
        checked = self._table.check_shards()
        return [
            (routed.place, self._distinct(routed.take(batch).to_batches()))
            for batch in left
            for routed in checked.route(batch, deleted=pa.array([True] * batch.num_rows))
        ]

    def _find_manual(self, view: TableView) -> Place | None:
        """A shard of a table whose writers choose their own: any open one hides a row below it."""
        open_shards = [s for s in view.shards if s.manifest.status is not ShardStatus.SEALED]
        if not open_shards:
            return None
        values = ShardValues(spec_id=MANUAL_SPEC_ID)
        return Place(shard_id=min(s.shard_id for s in open_shards), values=values)

    # ---- marks

    def _mark(self, view: TableView, look: SearchResult) -> dict[ShardId, ErasureMark]:
        """How far every shard goes; one without a manifest too, by what lies in its folder."""
        positions: dict[ShardId, int] = {}
        generations: dict[ShardId, int] = {}
        for seen in look.sightings:
            if seen.shard_id is not None:
                highest = positions if seen.kind is ObjectKind.WAL_ENTRY else generations
                highest[seen.shard_id] = max(seen.number, highest.get(seen.shard_id, 0))
        for shard in view.shards:
            manifest, found = shard.manifest, positions.get(shard.shard_id, 0)
            positions[shard.shard_id] = max(found, manifest.replay_after_wal_entry_position)
            generations[shard.shard_id] = manifest.current_generation - 1
        return {
            shard: ErasureMark(
                position=positions.get(shard, 0), generation=generations.get(shard, 0)
            )
            for shard in {*positions, *generations}
        }


class TableChanges:
    """What an erasure does to a table besides its tombstones."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._tables = stores.tables
        self._indexes = LanceIndexTable(stores.tables)

    def list_indexes(self) -> list[str]:
        """The indexes of the latest version, without Lance's own."""
        dataset = self._tables.base()
        return [str(index.name) for index in call_lance(lambda: describe_indexes(dataset))]

    def rebuild(self, name: str) -> None:
        """Build an index anew, of the rows that are there: nothing of the one before it stays.

        A vector index is trained again; a text index keeps its settings, as one segment over all
        fragments, which replaces every other. Raises MemWalError when that can't be done.
        """
        before, dataset = self._list_segments(name), self._tables.base()
        described = find_index(dataset, name)
        kind = index_kind(described)
        if kind.startswith("IVF_"):
            self._indexes.retrain(name, 0)
        elif kind in ("INVERTED", "BTREE"):
            facts = self._indexes.facts(int(dataset.version))
            task = SegmentTask(
                version=facts.version, index=name, kind=kind, fragments=facts.fragments
            )
            self._indexes.commit_segments(facts.version, name, [self._indexes.build(task)])
        else:
            column = described.field_names[0]
            call_lance(lambda: dataset.create_scalar_index(column, kind, name=name, replace=True))
        if kept := before & self._list_segments(name):
            raise PartlyFailed(f"{len(kept)} of its segments stayed as they were")

    def _list_segments(self, name: str) -> frozenset[str]:
        return frozenset(str(s.uuid) for s in find_index(self._tables.base(), name).segments)

    def commit_nothing(self) -> None:
        """Commit a version that changes nothing."""
        dataset = self._tables.base()
        call_lance(lambda: dataset.delete("false"))

    def drop_pin(self, pin: Pin) -> None:
        """Delete a tag, or a checkpoint. Raises LostRace for a tag that was moved."""
        if pin.checkpoint:
            for found in self._stores.checkpoints.named(pin.name):
                if layout.checkpoint_tag(found.key) == pin.tag:
                    self._stores.checkpoints.remove(found)
            return
        tags = self._tables.base().tags
        now = call_lance(lambda: tags.list().get(pin.tag))
        if now is None:
            return
        if int(now["version"]) != pin.version:
            raise LostRace(
                f"{self._stores.uri}: tag {pin.name!r} names version {now['version']} by now"
            )
        call_lance(lambda: tags.delete(pin.tag))

    def delete(self, paths: Sequence[str]) -> None:
        """Delete objects that nothing depends on. Raises Refused when one can't be deleted."""
        for path, why in self._stores.objects.delete(paths).failed:
            raise Refused("MW-Z04", f"{self._stores.uri}: {path} can't be deleted: {why}")

    def empty(self, entry: Sighting) -> None:
        """Put a sentinel in place of a WAL entry."""
        self._stores.objects.put(entry.path, sentinel_bytes(entry.writer_epoch or 1))
