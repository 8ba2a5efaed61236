"""Shards whose writer has gone, for tests: acknowledged rows that are in no generation."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa

from memwal.format import layout
from memwal.model import ShardId
from tests.support import builders
from tests.support.builders import Delete, Effects, Put, Table

# A writer that is dropped may flush; one that is kept and never touched again is as good as dead.
_ABANDONED: list[Any] = []


def abandon(table: Table, shard: ShardId, *ops: Put | Delete, **options: Any) -> Any:
    """One writer session that ends without a flush; the writer is returned, still open.

    The model counts what it did as the shard's next generation, which the next writer makes of it.
    """
    done: Effects = {}
    # It goes on looking for something to flush until the tests end, so it may do that slowly.
    writer = table.writer(shard, **{"max_wal_flush_interval_ms": 20, **options})
    for op in ops:
        builders.apply(table, writer, table.dataset.schema, op, done)
    _ABANDONED.append(writer)
    table.effects[shard].append(done)
    return writer


def entry_file(table: Table, shard: ShardId, position: int) -> Path:
    """The file of an entry of a local table."""
    return Path(table.uri) / layout.wal_entry_path(shard, position)


def rewrite(
    table: Table, shard: ShardId, position: int, *, to: int | None = None, **metadata: object
) -> None:
    """Write the entry again with other schema metadata (None: left out), here or at `to`."""
    with pa.ipc.open_stream(entry_file(table, shard, position).read_bytes()) as stream:
        kept = {
            k: v for k, v in (stream.schema.metadata or {}).items() if k.decode() not in metadata
        }
        given = {k: str(v) for k, v in metadata.items() if v is not None}
        schema = stream.schema.with_metadata({**kept, **given})
        batches = list(stream)
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as written:
        for batch in batches:
            written.write_batch(batch.cast(schema))
    entry_file(table, shard, to or position).write_bytes(out.getvalue())


def inflate(table: Table, shard: ShardId, position: int, size_bytes: int = 2**40) -> None:
    """Compress the entry, and let its first buffer say that it unfolds to so many bytes."""
    file = entry_file(table, shard, position)
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        batches, schema = list(stream), stream.schema
    out = io.BytesIO()
    with pa.ipc.new_stream(
        out, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as written:
        for batch in batches:
            written.write_batch(batch)
    data = out.getvalue()
    messages = pa.ipc.MessageReader.open_stream(data)
    messages.read_next_message()  # the schema
    at = data.index(messages.read_next_message().body.to_pybytes())
    file.write_bytes(data[:at] + size_bytes.to_bytes(8, "little") + data[at + 8 :])
