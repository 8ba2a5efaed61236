"""The LSM merging read by others than memwal: pylance's own, and one by brute force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
from lance.file import LanceFileReader
from lance.mem_wal import LsmScanner, ShardSnapshot

from memwal.format import layout
from memwal.model import FlushedGeneration, ShardId
from memwal.run.stores import Stores, open_stores
from memwal.store.shards.listing import list_shards

Pending = dict[ShardId, list[FlushedGeneration]]
"""The generations of each shard that a version has not merged, oldest first."""

_KEY_METADATA = (b"lance-schema:unenforced-primary-key", b"true")


def lsm_read(
    uri: str,
    options: Mapping[str, str] | None = None,
    *,
    version: int | None = None,
    columns: Sequence[str] = (),
) -> pa.Table:
    """A base version and the generations that it has not merged, as pylance reads them.

    A MemTable that pylance 14.0.2 flushes in the background gets a `_pk_index` of the rows that
    were indexed by then: a few, or none (lance issue 9035). LsmScanner shows older rows beside
    those that the index lacks, or fails. Such a table is read by brute force.
    """
    stores = open_stores(uri, options or {})
    dataset = lance.dataset(uri, version=version, storage_options=dict(options or {}) or None)
    pending = _pending(stores, int(dataset.version))
    names = list(columns) or dataset.schema.names
    if not all(
        indexed_rows(f"{uri}/{folder_of(shard, g)}", options) == g.physical_rows
        for shard, generations in pending.items()
        for g in generations
    ):
        return brute_force(stores, dataset, pending).select(names)
    snapshots = []
    for shard, generations in pending.items():
        snapshot = ShardSnapshot(shard)
        for generation in generations:
            snapshot = snapshot.with_sstable(generation.generation, generation.path)
        snapshots.append(snapshot)
    return LsmScanner.from_snapshots(dataset, snapshots).project(names).to_table()


def folder_of(shard: ShardId, generation: FlushedGeneration) -> str:
    """Where the generation lies in its table."""
    return layout.generation_folder(shard, generation.path, generation.generation)


def indexed_rows(generation: str, options: Mapping[str, str] | None = None) -> int:
    """Rows in the `_pk_index` of the generation at this address; -1 where it has none."""
    try:
        address = f"{generation}/_pk_index/page_data.lance"
        reader = LanceFileReader(address, storage_options=dict(options or {}) or None)
        return int(reader.metadata().num_rows)
    except (OSError, ValueError):
        return -1


def brute_force(stores: Stores, dataset: Any, pending: Pending) -> pa.Table:
    """Rows one by one: the newest generation wins, in it the highest address; tombstones hide."""
    schema = dataset.schema
    keys = [f.name for f in schema if _KEY_METADATA in (f.metadata or {}).items()]

    def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    rows = {key_of(row): row for row in dataset.to_table().to_pylist()}
    for shard, generations in pending.items():
        for generation in generations:
            for row in stores.tables.generation(shard, generation).to_table().to_pylist():
                if row.pop(layout.TOMBSTONE, False):
                    rows.pop(key_of(row), None)
                else:
                    rows[key_of(row)] = row
    return pa.Table.from_pylist(list(rows.values()), schema=schema)


def _pending(stores: Stores, version: int) -> Pending:
    state = stores.table_manifests.read(version).mem_wal
    pending: Pending = {}
    for shard in list_shards(stores.objects, folders_only=True).shards:
        manifest = stores.shard_manifests.latest(shard)
        merged = state.merged.get(shard, 0) if state else 0
        listed = manifest.flushed_generations if manifest else ()
        pending[shard] = [g for g in listed if g.generation > merged]
    return pending
