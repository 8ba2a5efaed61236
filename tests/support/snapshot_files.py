"""Refreshes snapshots, forges them, and reads them back."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from lance.file import LanceFileReader

from memwal.errors import Missing
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.snapshot.apply import SnapshotRefresher
from memwal.jobs.snapshot.plan import SnapshotTableReport, Storage
from memwal.jobs.snapshot.store import StoredSnapshots, to_lance_bytes, to_table
from memwal.model import ShardManifest
from memwal.run.stores import Stores
from memwal.store.shards.snapshots import external_path

__all__ = ["to_lance_bytes"]

MERGE_ALL = MergeRequest()


def from_lance_bytes(data: bytes) -> pa.Table:
    """The table in a Lance file's bytes; only for bytes of our own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.lance"
        path.write_bytes(data)
        return LanceFileReader(str(path)).read_all().to_table()


def stored_rows(stores: Stores) -> tuple[dict[str, Any], ...] | None:
    """The rows of a table's snapshot; None when it has none."""
    state = stores.views.mem_wal(stores.views.table_version())
    try:
        data = state.inline_snapshots or stores.objects.get(external_path(state.index_uuid))
    except Missing:
        return None
    return tuple(from_lance_bytes(data).to_pylist())


def row_of(manifest: ShardManifest) -> dict[str, Any]:
    """A shard manifest as a row, on a table without shard specs."""
    return {
        "shard_id": UUID(manifest.shard_id).bytes,
        "version": manifest.version,
        "shard_spec_id": manifest.shard_spec_id,
        "writer_epoch": manifest.writer_epoch,
        "replay_after_wal_entry_position": manifest.replay_after_wal_entry_position,
        "wal_entry_position_last_seen": manifest.wal_entry_position_last_seen,
        "current_generation": manifest.current_generation,
        "flushed_generations": [
            {"generation": g.generation, "path": g.path} for g in manifest.flushed_generations
        ],
    }


def rows_of(manifests: Sequence[ShardManifest]) -> pa.Table:
    """What a snapshot of these manifests holds, without shard specs."""
    return to_table(manifests, ())


def store_snapshot(
    stores: Stores, data: bytes, *, num_shards: int, storage: Storage = Storage.INLINE
) -> None:
    """Put these bytes in place of a snapshot, confirmed as memwal's own are."""
    version = stores.views.table_version()
    index_uuid, taken_at_millis = str(uuid.uuid4()), stores.clock.now_nanos() // 10**6
    store = store_of(stores)
    store.commit(
        version=version,
        state=stores.views.mem_wal(version),
        index_uuid=index_uuid,
        data=data,
        storage=storage,
        num_shards=num_shards,
        taken_at_millis=taken_at_millis,
        merged={},
    )
    store.confirm(taken_at_millis=taken_at_millis, index_uuid=index_uuid, data=data)


def store_of(stores: Stores) -> StoredSnapshots:
    """The Snapshots port over a table's stores."""
    return StoredSnapshots(stores.objects, stores.tables)


def refresh(stores: Stores, **settings: Any) -> SnapshotTableReport:
    """A refresh of the table's snapshot, without its lease."""
    views = stores.views
    ports = {"views": views, "snapshots": store_of(stores), "clock": stores.clock}
    refresher = SnapshotRefresher(name="t", read=views.table, **{**ports, **settings})
    return refresher.run(views.table())
