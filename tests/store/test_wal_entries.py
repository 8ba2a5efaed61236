"""WAL entries as they are read: what is none, what is too large, what a listing leaves out."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest

from memwal.errors import Corruption, Refused
from memwal.format import layout
from memwal.model import ShardId, ShardManifest
from memwal.store.shards.wal import WalEntries, WalLimits, count_decoded_bytes, is_cut_off
from memwal.store.shards.writers import sentinel_bytes
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
    for read in (lambda: WalEntries(stored(data)).rows(SHARD, 1), lambda: head(data)):
        with pytest.raises(Corruption):
            read()


def test_anything_but_an_outright_no_is_a_sentinel_which_has_no_rows() -> None:
    empty = pa.record_batch({"id": pa.array([], pa.int64())})
    for value, is_one in (("true", True), ("1", True), ("false", False)):
        data = stream({"writer_epoch": "1", "fence_sentinel": value}, empty)
        assert WalEntries(stored(data)).rows(SHARD, 1).entry.fence_sentinel is is_one
    data = stream({"writer_epoch": "1", "fence_sentinel": "true"})
    with pytest.raises(Corruption, match="a fence sentinel with 2 rows"):
        WalEntries(stored(data)).rows(SHARD, 1)


def test_an_entry_above_the_limit_is_refused() -> None:
    data = stream({"writer_epoch": "1"})
    limits = WalLimits(entry_bytes_max=len(data) - 1)
    with pytest.raises(Refused, match=f"at most {len(data) - 1} are read"):
        WalEntries(stored(data), limits).rows(SHARD, 1)


# ---- what unfolds to more than it is stored as


def folded(compression: str | None) -> bytes:
    """An entry of several batches with columns of all layouts."""
    rows = 3000
    table = pa.table(
        {
            "id": pa.array([0] * rows),
            "text": ["x" * 10] * rows,
            "view": pa.array(["y" * 30] * rows, pa.string_view()),
            "list": [[1, 2]] * rows,
            "word": pa.array(["q", "r"] * (rows // 2)).dictionary_encode(),
            "null": pa.nulls(rows, pa.int32()),
        }
    ).replace_schema_metadata({"writer_epoch": "1"})
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1000)
    return out.getvalue()


def test_compression_as_arrow_once_told_it_counts() -> None:
    """Readers still heed it: then the first value is the size of its column."""
    batch = pa.record_batch({"id": [2**50, 2]})
    out = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(out, batch.schema, options=options) as writer:
        writer.write_batch(batch, custom_metadata={"ARROW:experimental_compression": "zstd"})
    assert count_decoded_bytes(out.getvalue()) == 2**50


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_what_an_entry_unfolds_to_is_known_beforehand(compression: str | None) -> None:
    data = folded(compression)
    size = count_decoded_bytes(data)
    plain = pa.ipc.open_stream(folded(None)).read_all().get_total_buffer_size()
    assert plain <= size <= plain + 64 * 30  # paddings

    WalEntries(stored(data), WalLimits(decoded_bytes_max=size)).rows(SHARD, 1)
    with pytest.raises(Refused, match=f"to {size} bytes; at most {size - 1} are decoded"):
        WalEntries(stored(data), WalLimits(decoded_bytes_max=size - 1)).rows(SHARD, 1)


def test_a_size_that_no_memory_has_is_refused_and_is_no_damage() -> None:
    data = folded("zstd")
    reader = pa.ipc.MessageReader.open_stream(data)
    reader.read_next_message()
    body = reader.read_next_message().body.to_pybytes()
    at = data.index(body)
    forged = data[:at] + (2**50).to_bytes(8, "little") + data[at + 8 :]
    entries = WalEntries(stored(forged))
    with pytest.raises(Refused, match="at most 1073741824 are decoded"):
        entries.rows(SHARD, 1)
    (entry,) = entries.describe(SHARD, entries.list_entries(SHARD))
    assert entry.refused
    assert "unfolds from" in str(entry.problem)


def test_of_entries_that_unfold_to_much_one_is_decoded_at_a_time() -> None:
    objects = MemoryObjects()
    for position in range(1, 7):
        data = folded("zstd" if position % 2 else None)
        objects.put(layout.wal_entry_path(SHARD, position), data)
    entries = WalEntries(objects, WalLimits(bytes_in_flight_max=1000, entries_in_flight_max=8))
    turns: list[str] = []

    class Turns:
        def __enter__(self) -> None:
            turns.append("in")

        def __exit__(self, *_: object) -> None:
            turns.append("out")

    entries._one_large = Turns()  # type: ignore[assignment]
    assert len(entries.describe(SHARD, entries.list_entries(SHARD))) == 6
    assert turns == ["in", "out"] * 3


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
    listed = WalEntries(FaultyObjects(objects, late)).list_settled(manifest)
    assert [position for position, _ in listed] == [1, 2]


def test_a_head_that_claims_to_be_huge_is_not_read_whole() -> None:
    forged = b"\xff\xff\xff\xff" + (2**31 - 1).to_bytes(4, "little") + b"\0" * (3 * 1024 * 1024)
    objects = stored(forged)
    with pytest.raises(Corruption):
        WalEntries(objects).head(layout.wal_entry_path(SHARD, 1), len(forged))
    assert objects.counts.bytes_read < 2 * 1024 * 1024


def test_only_what_is_cut_off_is_told_as_such() -> None:
    """Every beginning of an entry is, but for those that Arrow reads to their end."""
    out = io.BytesIO()
    batch = pa.record_batch({"n": list(range(50))})
    with pa.ipc.new_stream(out, batch.schema) as stream:
        stream.write_batch(batch)
        stream.write_batch(batch)
    data = out.getvalue()
    ends = {n for n in range(len(data) + 1) if not is_cut_off(data[:n])}
    readable = {n for n in range(len(data) + 1) if _can_read(data[:n])}
    assert len(data) in ends
    assert ends == readable
    assert is_cut_off(b"\0" * 900)
    assert not is_cut_off(b"no Arrow")
    assert not is_cut_off(data[:40] + b"junk" + data[44:])


def _can_read(data: bytes) -> bool:
    try:
        with pa.ipc.open_stream(data) as stream:
            return bool([batch.num_rows for batch in stream]) or True
    except (pa.ArrowInvalid, OSError):
        return False
