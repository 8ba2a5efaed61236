"""What an erasure changes: keys deleted, indexes built anew, and what goes.

A tombstone goes to each shard that still has a row of its key to be merged, where it comes after
it. From the base the keys are deleted by a join: the condition of a delete would write them in
clear into its transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import pyarrow as pa

from memwal.errors import LostRace, PartlyFailed, Refused
from memwal.ingest.target import IngestTable
from memwal.jobs.erase.keys import Keys
from memwal.jobs.erase.plan import ObjectKind, Pin, SearchResult, Sighting
from memwal.jobs.erase.search import is_data
from memwal.jobs.index_catchup.apply import SegmentTask
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.jobs.merge.store.commits import delete_keys
from memwal.model import ErasureMark, ShardId, ShardStatus, TableView
from memwal.run.stores import Stores
from memwal.store.shards.writers import sentinel_bytes
from memwal.store.tables.indexes import describe_indexes, find_index, index_kind
from memwal.store.tables.lance_calls import call_lance


class ErasedTable:
    """The table that rows are erased from."""

    def __init__(self, stores: Stores, keys: Keys) -> None:
        self._stores = stores
        self._keys = keys
        self._indexes = LanceIndexTable(stores.tables)

    # ---- rows

    def plan(self, view: TableView, look: SearchResult) -> dict[ShardId, pa.Table]:
        """The shards to claim with the keys to delete in each.

        Raises Refused for a SEALED one, and what broke a shard.
        """
        for broken in view.broken:
            raise broken.error
        keys = self._read_waiting(view, look)
        for shard in view.shards:
            if shard.manifest.status is ShardStatus.SEALED and shard.shard_id in keys:
                where = f"{self._stores.uri}: shard {shard.shard_id}"
                raise Refused(
                    "MW-M05", f"{where} is SEALED and holds the keys: no writer may claim it"
                )
        return keys

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
        names = list(self._keys.names)
        return {
            shard: pa.Table.from_batches(rows).group_by(names, use_threads=False).aggregate([])
            for shard, rows in sorted(found.items())
            if rows
        }

    @cached_property
    def _ingest(self) -> IngestTable:
        return IngestTable.read(self._stores, self._stores.views.table(), None)

    def write(self, shard_id: ShardId, keys: pa.Table) -> ErasureMark:
        """Claim a shard and delete keys there; returns how far it goes then.

        Raises Refused for a SEALED shard, Fenced, LostRace, StoreUnavailable.
        """
        opened = self._ingest.make_writers().open(shard_id)
        try:
            for start in range(0, keys.num_rows, self._ingest.rows_per_entry_max):
                opened.delete(keys.slice(start, self._ingest.rows_per_entry_max))
            opened.check_position()
            opened.close()
        except BaseException:
            opened.abandon()
            raise
        position = opened.position
        latest = self._stores.shard_manifests.latest(shard_id)
        generation = 0 if latest is None else latest.current_generation - 1
        return ErasureMark(position=position, generation=generation)

    def delete_rows(self) -> None:
        """Delete the keys from the base. Raises LostRace when another commit has come first."""
        delete_keys(self._stores.tables.base(), self._keys.names, self._keys.table, marks={})

    # ---- indexes

    def list_indexes(self) -> list[str]:
        """The indexes of the latest version, without Lance's own."""
        dataset = self._stores.tables.base()
        return [str(index.name) for index in call_lance(lambda: describe_indexes(dataset))]

    def rebuild(self, name: str) -> None:
        """Build an index anew, of the rows that are there: nothing of the one before it stays.

        A vector index is trained again; a text index keeps its settings, as one segment over all
        fragments, which replaces every other. Raises MemWalError when that can't be done.
        """
        before, dataset = self._list_segments(name), self._stores.tables.base()
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
        return frozenset(str(s.uuid) for s in find_index(self._stores.tables.base(), name).segments)

    # ---- what else goes

    def commit_nothing(self) -> None:
        """Commit a version that changes nothing."""
        dataset = self._stores.tables.base()
        call_lance(lambda: dataset.delete("false"))

    def drop_pin(self, pin: Pin) -> None:
        """Delete a tag, or a checkpoint. Raises LostRace for a tag that was moved."""
        if pin.checkpoint is not None:
            self._stores.checkpoints.remove(pin.checkpoint)
            return
        tags = self._stores.tables.base().tags
        now = call_lance(lambda: tags.list().get(pin.tag))
        if now is not None and int(now["version"]) != pin.version:
            where = f"{self._stores.uri}: tag {pin.tag!r}"
            raise LostRace(f"{where} names version {now['version']} by now")
        if now is not None:
            call_lance(lambda: tags.delete(pin.tag))

    def delete(self, path: str) -> None:
        """Delete an object that nothing depends on. Raises Refused when that fails."""
        for _, why in self._stores.objects.delete([path]).failed:
            raise Refused("MW-Z04", f"{self._stores.uri}: {path} can't be deleted: {why}")

    def empty(self, entry: Sighting) -> None:
        """Put a sentinel in place of a WAL entry."""
        self._stores.objects.put(entry.path, sentinel_bytes(entry.writer_epoch or 1))
