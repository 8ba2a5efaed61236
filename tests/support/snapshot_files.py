"""Reads stored snapshots back, which memwal itself never does: it compares their bytes."""

from __future__ import annotations

import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from lance.file import LanceFileReader

from memwal.errors import Missing
from memwal.jobs.snapshot.plan import SnapshotRow
from memwal.jobs.snapshot.store import external_path


def from_lance_bytes(data: bytes) -> pa.Table:
    """The table in a Lance file's bytes; only for bytes of our own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.lance"
        path.write_bytes(data)
        return LanceFileReader(str(path)).read_all().to_table()


def stored_rows(stores: Any) -> tuple[SnapshotRow, ...] | None:
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
