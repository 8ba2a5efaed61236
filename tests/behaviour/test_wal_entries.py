"""WAL entries as they are read: what is none, what is too large, what a listing leaves out."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from memwal import layout
from memwal.errors import Corruption, Refused
from memwal.model import ShardId, ShardManifest
from memwal.store.fencing import sentinel_bytes
from memwal.store.wal import WalEntries, WalLimits
from memwal.testing import Fault, FaultyObjects, MemoryObjects

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")


def stream(metadata: dict[str, str], batch: pa.RecordBatch | None = None) -> bytes:
    batch = batch if batch is not None else pa.record_batch({"id": [1, 2]})
    schema = batch.schema.with_metadata(metadata)
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(metadata))
    return out.getvalue()


def stored(data: bytes, position: int = 1) -> MemoryObjects:
    objects = MemoryObjects()
    objects.put(layout.wal_entry_path(SHARD, position), data)
    return objects


def head(data: bytes) -> object:
    return WalEntries(stored(data)).head(layout.wal_entry_path(SHARD, 1), len(data))


def test_an_entry_and_a_sentinel() -> None:
    entry = WalEntries(stored(stream({"writer_epoch": "3", "generation": "7"}))).rows(SHARD, 1)
    assert (entry.entry.writer_epoch, entry.entry.generation, entry.entry.rows) == (3, 7, 2)
    sentinel = WalEntries(stored(sentinel_bytes(4))).rows(SHARD, 1).entry
    assert (sentinel.writer_epoch, sentinel.fence_sentinel, sentinel.rows) == (4, True, 0)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"writer_epoch": "-1"},
        {"writer_epoch": str(2**64)},
        {"writer_epoch": "1", "generation": "x"},
    ],
)
def test_a_schema_that_is_no_entry_s_is_corruption(metadata: dict[str, str]) -> None:
    data = stream(metadata)
    with pytest.raises(Corruption):
        WalEntries(stored(data)).rows(SHARD, 1)
    with pytest.raises(Corruption):
        head(data)


def test_a_sentinel_with_rows_is_corruption() -> None:
    data = stream({"writer_epoch": "1", "fence_sentinel": "true"})
    with pytest.raises(Corruption, match="a fence sentinel with 2 rows"):
        WalEntries(stored(data)).rows(SHARD, 1)


@pytest.mark.parametrize(("value", "is_one"), [("true", True), ("1", True), ("false", False)])
def test_anything_but_an_outright_no_is_a_sentinel(value: str, is_one: bool) -> None:
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    data = stream({"writer_epoch": "1", "fence_sentinel": value}, empty)
    assert WalEntries(stored(data)).rows(SHARD, 1).entry.fence_sentinel is is_one


def test_an_entry_above_the_limit_is_refused() -> None:
    data = stream({"writer_epoch": "1"})
    limits = WalLimits(entry_bytes_max=len(data) - 1)
    with pytest.raises(Refused, match=f"at most {len(data) - 1} are read"):
        WalEntries(stored(data), limits).rows(SHARD, 1)


def test_a_batch_that_is_not_sound_is_corruption() -> None:
    offsets = pa.py_buffer((0).to_bytes(4, "little") + (2).to_bytes(4, "little"))
    text = pa.Array.from_buffers(pa.utf8(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    data = stream({"writer_epoch": "1"}, pa.record_batch({"t": text}))
    with pytest.raises(Corruption, match="UTF8"):
        WalEntries(stored(data)).rows(SHARD, 1)


def test_a_hole_that_is_only_the_listing_s_is_asked_for() -> None:
    entry = stream({"writer_epoch": "1"})
    objects = stored(entry, 2)
    manifest = ShardManifest(shard_id=SHARD, version=1, writer_epoch=1, current_generation=1)
    # Position 1 is there by the time that it is missed, as for a lister that was slow.
    late = Fault(
        operation="exists", hook=lambda: objects.put(layout.wal_entry_path(SHARD, 1), entry)
    )
    listed = WalEntries(FaultyObjects(objects, late)).settled(manifest)
    assert [position for position, _ in listed] == [1, 2]


def test_a_head_that_claims_to_be_huge_is_not_read_whole() -> None:
    forged = b"\xff\xff\xff\xff" + (2**31 - 1).to_bytes(4, "little") + b"\0" * (3 * 1024 * 1024)
    objects = stored(forged)
    with pytest.raises(Corruption):
        WalEntries(objects).head(layout.wal_entry_path(SHARD, 1), len(forged))
    assert objects.counts.bytes_read < 2 * 1024 * 1024
