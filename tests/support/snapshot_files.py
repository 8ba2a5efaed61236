"""Refreshes snapshots, and reads them back, which memwal never does: it compares their bytes."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from lance.file import LanceFileReader

from memwal.errors import Missing
from memwal.jobs.snapshot.apply import SnapshotRefresher
from memwal.jobs.snapshot.plan import SnapshotRow
from memwal.jobs.snapshot.report import SnapshotTableReport
from memwal.jobs.snapshot.store import StoredSnapshots, external_path
from memwal.run.stores import Stores


def from_lance_bytes(data: bytes) -> pa.Table:
    """The table in a Lance file's bytes; only for bytes of our own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.lance"
        path.write_bytes(data)
        return LanceFileReader(str(path)).read_all().to_table()


def stored_rows(stores: Stores) -> tuple[SnapshotRow, ...] | None:
    """The rows of a table's snapshot; None when it has none."""
    state = stores.views.mem_wal(stores.views.table_version())
    try:
        data = state.inline_snapshots or stores.objects.get(external_path(state.index_uuid))
    except Missing:
        return None
    return tuple(map(_row, from_lance_bytes(data).to_pylist()))


def _row(found: dict[str, Any]) -> SnapshotRow:
    values = {f.name: found[f.name] for f in fields(SnapshotRow) if f.name in found}
    values |= {
        "shard_id": str(UUID(bytes=found["shard_id"])),
        "flushed_generations": tuple(
            (g["generation"], g["path"]) for g in found["flushed_generations"]
        ),
        "shard_fields": {},
    }
    return SnapshotRow(**values)


def store_of(stores: Stores) -> StoredSnapshots:
    """The Snapshots port over a table's stores."""
    return StoredSnapshots(stores.objects, stores.tables)


def refresh(stores: Stores, **settings: Any) -> SnapshotTableReport:
    """A refresh of the table's snapshot, without its lease."""
    views = stores.views
    ports = {"views": views, "snapshots": store_of(stores), "clock": stores.clock}
    refresher = SnapshotRefresher(name="t", read=views.table, **{**ports, **settings})
    return refresher.run(views.table())
