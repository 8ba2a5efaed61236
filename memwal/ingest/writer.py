"""Writing to a MemWAL table from a program: the coordinator, routing and writers put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pyarrow as pa

from memwal.errors import Usage
from memwal.ingest.blocking import BlockingCoordinator
from memwal.ingest.coordinator import WriteCoordinator
from memwal.ingest.ports import CoordinatorLimits
from memwal.ingest.shape import Shape
from memwal.ingest.shards import HandlerLimits, ShardHandler, ShardOperations, Tips, route_rows
from memwal.ingest.table import IngestTable
from memwal.run.stores import open_stores

_DELETED = "_memwal_deleted"
_WHERE = "the rows"


class TableWriter(AbstractContextManager["TableWriter"]):
    """Writes rows and deletes of one table. Any thread may call it; one a table and process.

    Two of them fence each other, shard by shard. As a context manager it ends with `close`.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        limits: CoordinatorLimits | None = None,
        missing_as_null: bool = False,
    ) -> None:
        """Open a table for writing; shards are claimed when the first row comes for them.

        With `missing_as_null`, columns that rows come without are written as NULL, over what the
        table has; without it such rows are refused, unless they delete.

        Raises NotATable, StoreUnavailable, BadCredentials, Unsupported (also for a store that does
        not keep put-if-absent), and Refused for a shard spec that rows can't be routed by, and
        while a shard holds rows of which nobody knows the values.
        """
        stores = open_stores(uri, storage_options or {})
        self.uri = stores.uri
        table = IngestTable.read(stores, stores.views.table(), None)
        key = table.view.primary_key
        self._shape = Shape(schema=table.schema, key=key, missing_as_null=missing_as_null)
        self._router = table.check_shards()
        # Shards are claimed by Lance, which looks no closer at the store.
        stores.prove_store()
        self._rows_max = table.rows_per_entry_max
        self._handler = ShardHandler(
            table.make_writers(), limits=HandlerLimits(rows_per_entry_max=self._rows_max)
        )
        self._coordinator: BlockingCoordinator[ShardOperations, Tips] = BlockingCoordinator(
            lambda: WriteCoordinator(self._handler, {}, limits=limits)
        )

    def write(self, rows: pa.Table, deleted: Sequence[bool] | pa.Array | None = None) -> int:
        """Hand over rows with the table's columns; `deleted` marks those that delete their key.

        Returns the epoch, to flush by. A deleted row needs its key and what its shard depends on.
        Raises Usage for rows that don't fit, FlushFailed, Closed.
        """
        gone = None if deleted is None else pa.array(deleted, pa.bool_())
        shape = self._shape
        if gone is not None:
            if len(gone) != len(rows):
                raise Usage(f"{len(rows)} rows, and {len(gone)} marks of what is deleted")
            shape = replace(shape, delete_column=_DELETED)
            rows = rows.append_column(_DELETED, gone)
        shape.check(rows.schema, _WHERE)
        conformed, gone = shape.conform(rows, _WHERE)
        return self._coordinator.write(
            route_rows(self._router, conformed, shape.key, deleted=gone, rows_max=self._rows_max)
        )

    def flush(self, epoch: int | None = None) -> int:
        """Wait until `epoch` (None: all written so far) is durable. Raises FlushFailed, Closed."""
        return self._coordinator.flush(epoch)

    def write_durable(
        self, rows: pa.Table, deleted: Sequence[bool] | pa.Array | None = None
    ) -> int:
        """Write, and wait until it is durable; its epoch."""
        epoch = self.write(rows, deleted)
        self.flush(epoch)
        return epoch

    @property
    def durable_epoch(self) -> int:
        """The highest epoch that would survive a crash, to be asked for without waiting.

        What was written up to it, a source of the rows may forget.
        """
        return self._coordinator.durable_epoch

    @property
    def tips(self) -> Tips:
        """How far each shard's WAL goes with what was flushed."""
        return self._coordinator.snapshot.snapshot

    def close(self) -> None:
        """Flush what is pending, and each shard to a generation. Raises FlushFailed."""
        try:
            self._coordinator.shutdown()
        except BaseException:
            self._handler.abandon()
            raise
        self._handler.close()

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
            return
        self._coordinator.__exit__(*error)
        self._handler.abandon()


open_writer = TableWriter
