"""Tables for benchmarks, with flushed generations written by pylance's own writer."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

KEY = {"lance-schema:unenforced-primary-key": "true"}
_WRITER = {"max_wal_flush_interval_ms": 1}


def schema(dim: int = 32) -> pa.Schema:
    """An int64 key, a float, a string and, if `dim` is not 0, a vector of float32."""
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("v", pa.float64()),
        pa.field("text", pa.string()),
    ]
    if dim:
        fields.append(pa.field("vector", pa.list_(pa.float32(), dim)))
    return pa.schema(fields)


def rows_of(ids: Any, seed: int, dim: int = 32) -> pa.Table:
    """Rows with these keys; text of 16 characters, random numbers."""
    rng = np.random.default_rng(seed)
    ids = np.asarray(ids, dtype=np.int64)
    columns = [
        pa.array(ids),
        pa.array(rng.random(len(ids))),
        pa.array(np.char.add("text-", np.char.zfill(ids.astype("U11"), 11))),
    ]
    if dim:
        values = pa.array(rng.random(len(ids) * dim, dtype=np.float32))
        columns.append(pa.FixedSizeListArray.from_arrays(values, dim))
    return pa.table(columns, schema=schema(dim))


def make_base(uri: Path | str, rows: int, *, dim: int = 32, options: Any = None) -> Any:
    """A table with keys 0 to `rows` - 1 and a MemWAL; returns the dataset."""
    step = 1_000_000
    parts = (
        batch
        for start in range(0, rows, step)
        for batch in rows_of(np.arange(start, min(rows, start + step)), start, dim).to_batches()
    )
    dataset = lance.write_dataset(
        pa.RecordBatchReader.from_batches(schema(dim), parts), str(uri), storage_options=options
    )
    dataset.initialize_mem_wal()
    return lance.dataset(str(uri), storage_options=options)


def flush(
    uri: Path | str, shard: str, rows: pa.Table, deletes: Any = None, options: Any = None
) -> None:
    """One writer session, so one generation: `rows` put, then the keys `deletes` deleted."""
    dataset = lance.dataset(str(uri), storage_options=options)
    with dataset.mem_wal_writer(shard, **_WRITER) as writer:
        for batch in rows.to_batches(max_chunksize=50_000):
            writer.put(pa.Table.from_batches([batch]))
        if deletes is not None and len(deletes):
            writer.delete(pa.table({"id": pa.array(np.asarray(deletes, dtype=np.int64))}))


def new_shards(count: int) -> list[str]:
    """Shard ids."""
    return [str(uuid.uuid4()) for _ in range(count)]


def pending(
    uri: Path | str,
    shards: Sequence[str],
    generations: int,
    rows: int,
    base_rows: int,
    *,
    new_share: float = 0.5,
    dim: int = 32,
    seed: int = 7,
    options: Any = None,
) -> None:
    """Write `generations` of `rows` rows a shard: part updates of random base rows, part new keys.

    A key goes to one shard only: shard i of n owns the keys with `id % n == i`.
    """
    rng = np.random.default_rng(seed)
    count = len(shards)
    for place, shard in enumerate(shards):
        for number in range(generations):
            new = int(rows * new_share)
            old = rng.choice(max(1, base_rows // count), rows - new, replace=False) * count + place
            fresh = (base_rows // count + 1 + number * new + np.arange(new)) * count + place
            ids = np.concatenate([old, fresh])
            flush(uri, shard, rows_of(ids, number, dim), options=options)
