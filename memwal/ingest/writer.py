"""Writes to a MemWAL table from a program: combines coordinator, routing and shard writers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Thread
from warnings import warn
from weakref import finalize

import pyarrow as pa

from memwal.errors import Usage
from memwal.format.layout import find_shard, parse_shard
from memwal.ingest.coordinator import CoordinatorLimits, WriteCoordinator, check_process
from memwal.ingest.shards import (
    GENERATION_SECONDS,
    HandlerLimits,
    ShardHandler,
    ShardOperations,
    Tips,
    route_rows,
)
from memwal.ingest.target import IngestTable
from memwal.ingest.values.python_rows import Rows, read_rows
from memwal.run.keywords import speaks_python
from memwal.run.stores import open_stores, take_options
from memwal.text import parse_seconds

_DELETED = "_memwal_deleted"
_WHERE = "the rows"
_CLOSE_SECONDS_MAX = 60.0
_LOG = logging.getLogger("memwal")


Coordinator = WriteCoordinator[ShardOperations, Tips]


@speaks_python()
class TableWriter(AbstractContextManager["TableWriter"]):
    """Writes rows to one table, and deletes them. Thread-safe; use one per table and process.

    Two writers of a table fence each other, shard by shard. As a context manager it ends with
    `close`.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        limits: CoordinatorLimits | None = None,
        missing_as_null: bool = False,
        convert: Iterable[str] = (),
        shard: str | None = None,
        generation_every: str | float | None = GENERATION_SECONDS,
        allow_untested_lance: bool = False,
    ) -> None:
        """Open a table for writing; a shard is claimed when its first row comes.

        `storage_options` take precedence over those in MEMWAL_STORAGE_OPTIONS.

        With `missing_as_null`, columns that rows lack are written as NULL, replacing the table's
        values; without it such rows are refused, unless they delete. `convert` names what goes in
        though it is not exact: round, utc, text. With `shard`, all rows go to that shard.

        Rows become a generation, so that reads and merges see them, `generation_every` ("30s", or
        seconds) after they were written at the latest: give half of what a watch keeps the table
        fresh by. With None that happens by pylance's limits, and on `close`.

        Raises NotATable, StoreUnavailable, BadCredentials, Unsupported (also for a store without
        put-if-absent, and an untested pylance), and Refused for a shard spec that rows can't be
        routed by, and while a shard holds unmerged rows whose values are not known.
        """
        self.generation_every_seconds = _read_interval(generation_every)
        self._made_in = os.getpid()
        stores = open_stores(uri, take_options(storage_options, allow_untested_lance))
        self.uri = stores.uri
        view = stores.views.table()
        if shard is not None:
            shard = find_shard(parse_shard(shard), set(view.shard_ids), self.uri)
        table = IngestTable.read(stores, view, shard)
        self._shape = table.make_shape(missing_as_null=missing_as_null, convert=convert)
        self._router = table.check_shards()
        for text in table.list_warnings():
            _LOG.warning("%s: %s", self.uri, text)
        # Lance claims shards, and does not check the store for put-if-absent.
        stores.prove_store()
        self._rows_max = table.rows_per_entry_max
        self._handler = ShardHandler(
            table.make_writers(),
            limits=HandlerLimits(
                rows_per_entry_max=self._rows_max,
                generation_every_seconds=self.generation_every_seconds,
            ),
        )
        self._coordinator = Coordinator(
            self._handler, {}, limits=limits, settle=self._handler.settle
        )
        self._dropped = finalize(
            self, _close_dropped, self.uri, os.getpid(), self._coordinator, self._handler
        )

    def write(self, rows: Rows, deleted: Sequence[bool] | pa.Array | None = None) -> int:
        """Hand over rows with the table's columns; `deleted` marks those that delete their key.

        `rows` are Arrow data, or a list of dicts, which get the table's types. Returns the epoch
        for `flush`. A deleted row needs only its key and the columns that its shard depends on.
        Raises Usage for rows that don't fit and in a process that was forked since, FlushFailed,
        Closed.
        """
        gone = None if deleted is None else pa.array(deleted, pa.bool_())
        shape = self._shape
        marks = None if gone is None else gone.to_pylist()
        if marks is not None and len(marks) != len(rows):
            raise Usage(f"{len(rows)} rows, and {len(marks)} marks of what is deleted")
        table = read_rows(rows, shape.schema, marks, shape.lenience)
        if gone is not None:
            shape = replace(shape, delete_column=_DELETED)
            table = table.append_column(_DELETED, gone)
        shape.check(table.schema, _WHERE)
        conformed, gone = shape.conform(table, _WHERE)
        return self._coordinator.write(
            route_rows(self._router, conformed, shape.key, deleted=gone, rows_max=self._rows_max)
        )

    def flush(self, epoch: int | None = None) -> int:
        """Wait until `epoch` (None: all written so far) is durable. Raises FlushFailed, Closed."""
        return self._coordinator.flush(epoch)

    def write_durable(self, rows: Rows, deleted: Sequence[bool] | pa.Array | None = None) -> int:
        """Write rows and wait until they are durable; returns their epoch."""
        epoch = self.write(rows, deleted)
        self.flush(epoch)
        return epoch

    @property
    def durable_epoch(self) -> int:
        """The highest epoch that would survive a crash; does not wait.

        A source of the rows may forget what was written up to it.
        """
        return self._coordinator.durable_epoch

    @property
    def tips(self) -> Tips:
        """The last flushed WAL entry of each shard."""
        return self._coordinator.snapshot.snapshot

    def close(self) -> None:
        """Flush what is pending, then each shard to a generation. Raises FlushFailed."""
        check_process(self._made_in)
        self._dropped.detach()
        _close(self._coordinator, self._handler)

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.close()
            return
        if os.getpid() == self._made_in:
            self._dropped.detach()
            self._coordinator.__exit__(*error)
            self._handler.abandon()


def _read_interval(given: str | float | None) -> float | None:
    """Seconds from a number or a text. Raises Usage."""
    try:
        seconds = parse_seconds(given) if isinstance(given, str) else given
    except ValueError as error:
        raise Usage(f"generation_every: {error}") from None
    if seconds is not None and not seconds > 0:
        raise Usage(f"generation_every: {given!r}: expected more than 0 seconds, or None")
    return seconds


def _close(coordinator: Coordinator, handler: ShardHandler) -> None:
    try:
        coordinator.shutdown()
    except BaseException:
        handler.abandon()
        raise
    handler.close()


def _close_dropped(uri: str, made_in: int, coordinator: Coordinator, handler: ShardHandler) -> None:
    """Close a writer that was dropped without `close`, so that its rows are kept, and warn.

    The thread in which it is garbage-collected may hold a lock that closing needs, or be needed for
    the closing itself. So another thread closes it, and the wait for that is bounded.
    """
    if os.getpid() != made_in:
        return  # the parent still has it

    def close() -> None:
        try:
            _close(coordinator, handler)
        except Exception:
            _LOG.exception("%s: a writer was dropped without close, and rows may be lost", uri)

    closing = Thread(target=close, name="dropped writer")
    try:
        closing.start()
        closing.join(_CLOSE_SECONDS_MAX)
    except RuntimeError:  # Python is ending and starts no more threads
        close()
    warn(f"{uri}: a writer was dropped without close", ResourceWarning, stacklevel=2)


open_writer = TableWriter
