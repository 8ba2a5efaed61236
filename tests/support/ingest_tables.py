"""Tables to ingest into, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from memwal.ingest.coordinator import CoordinatorLimits, WriteCoordinator
from memwal.ingest.routing import Router, choose_spec
from memwal.ingest.shards import HandlerLimits, ShardHandler, ShardOperations, Tips, route_rows
from memwal.read import open_table
from memwal.run.stores import Stores, open_stores
from memwal.sharding.spec import sources_of
from memwal.store.shards.writers import ShardWriters

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("n", pa.int64()),
        pa.field("note", pa.string()),
    ]
)


def rows_of(ids: Sequence[int], n: int = 0) -> pa.Table:
    return pa.table(
        {"id": list(ids), "n": [n] * len(ids), "note": [f"{i}-{n}" for i in ids]}, schema=SCHEMA
    )


@dataclass(kw_only=True)
class MemWalTable:
    """A table with a MemWAL."""

    uri: str
    options: Mapping[str, str]

    @property
    def stores(self) -> Stores:
        return open_stores(self.uri, self.options)

    @property
    def dataset(self) -> Any:
        return lance.dataset(self.uri, storage_options=dict(self.options) or None)

    def writers(self, **settings: Any) -> ShardWriters:
        stores = self.stores
        return ShardWriters(stores.objects, stores.tables, settings, merged={})

    def router(self, **settings: Any) -> Router:
        view = self.stores.views.table()
        return Router(
            spec=choose_spec(view.mem_wal.shard_specs),
            sources=sources_of(view.columns, self.dataset.schema),
            manifests=[shard.manifest for shard in view.shards],
            **settings,
        )

    def read(self, *, with_wal: bool = True) -> dict[int, tuple[Any, ...]]:
        """What a reader sees, by id; with the WAL, a strongly consistent one."""
        found = open_table(self.uri, self.options).read(with_wal=with_wal).read_all()
        rows = {row["id"]: (row["n"], row["note"]) for row in found.to_pylist()}
        assert len(rows) == found.num_rows
        return rows


def make(folder: Path | str, options: Mapping[str, str] | None = None, **spec: Any) -> MemWalTable:
    uri = str(folder)
    dataset = lance.write_dataset(
        SCHEMA.empty_table(), uri, storage_options=dict(options or {}) or None
    )
    dataset.initialize_mem_wal(**spec)
    return MemWalTable(uri=uri, options=dict(options or {}))


class Session:
    """A coordinator on a table."""

    def __init__(self, table: MemWalTable, *, join: bool = True, **limits: Any) -> None:
        self.router = table.router()
        self.handler = ShardHandler(
            table.writers(), limits=HandlerLimits(rows_per_entry_max=1000), join=join
        )
        self.coordinator = WriteCoordinator[ShardOperations, Tips](
            self.handler, {}, limits=CoordinatorLimits(**limits)
        )

    def write(self, rows: pa.Table, deleted: Sequence[bool] | None = None) -> int:
        return self.coordinator.write(self.delta(rows, deleted))

    def delta(self, rows: pa.Table, deleted: Sequence[bool] | None = None) -> ShardOperations:
        gone = None if deleted is None else pa.array(deleted)
        return route_rows(self.router, rows, ["id"], deleted=gone, rows_max=1000)

    def end(self) -> None:
        self.coordinator.shutdown()
        self.handler.close()


def wal_rows(table: MemWalTable, above: int = 0) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every WAL entry, by shard and in order: deletes are (True, id).

    Only entries at positions above `above`.
    """
    stores = table.stores
    found: dict[str, list[tuple[Any, ...]]] = {}
    for shard in stores.views.table().shards:
        rows = found.setdefault(shard.shard_id, [])
        for position, _ in stores.wal.list_entries(shard.shard_id):
            entry = stores.wal.rows(shard.shard_id, position)
            for batch in entry.batches if position > above else ():
                rows += [_row(row) for row in batch.to_pylist()]
    return found


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    dead = bool(row["_tombstone"])
    return (dead, row["id"]) if dead else (dead, row["id"], row["n"], row["note"])
