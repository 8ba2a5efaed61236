"""Protobuf bytes <-> model: nothing is lost, and what is broken is Corruption, nothing else."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Corruption, MemWalError, Unsupported
from memwal.format import codec, layout
from memwal.format._generated import memwal_pb2 as pb
from memwal.model import FlushedGeneration, ShardId, ShardManifest, ShardStatus, VersionManifest

SHARD = ShardId("3c89df4b-beab-4b40-bfd4-7e09302b47ee")
OTHER = ShardId("00000000-0000-4000-8000-000000000000")

# What pylance 14.0.2's writer wrote as versions 1 and 8 of one shard.
FIRST = bytes.fromhex("0801100130015a120a103c89df4bbeab4b40bfd47e09302b47ee")
EIGHTH = bytes.fromhex(
    "0808100318062006300442180801120e65336162633763315f67656e5f3118492002281042180802120e3261"
    "32613736"
    "33655f67656e5f3218492002281042190803120e32646337343138305f67656e5f33188301200328185a120a"
    "103c89df4bbeab4b40bfd47e09302b47ee"
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
sizes = st.none() | u64


@st.composite
def shard_manifests(draw: st.DrawFn) -> ShardManifest:
    """Any manifest that can be written."""
    numbers = draw(st.lists(u64, unique=True, max_size=8))
    return ShardManifest(
        shard_id=ShardId(str(draw(st.uuids()))),
        version=draw(u64),
        writer_epoch=draw(u64),
        current_generation=draw(u64),
        replay_after_wal_entry_position=draw(u64),
        wal_entry_position_last_seen=draw(u64),
        shard_spec_id=draw(u32),
        flushed_generations=tuple(
            FlushedGeneration(
                generation=number,
                path=f"{draw(u32):08x}_gen_{number}",
                in_memory_bytes=draw(sizes),
                physical_rows=draw(sizes),
                primary_key_bytes=draw(sizes),
            )
            for number in sorted(numbers)
        ),
        shard_field_entries=tuple(draw(st.lists(st.tuples(st.text(), st.binary()), max_size=3))),
        status=draw(st.sampled_from(ShardStatus)),
    )


def decode(data: bytes, version: int = 8) -> ShardManifest:
    return codec.decode_shard_manifest(data, shard_id=SHARD, version=version)


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def unknown(number: int, payload: bytes) -> bytes:
    """A length-delimited field as it is on the wire."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


# ---- shard manifests


@given(shard_manifests())
def test_a_manifest_comes_back_as_it_was_written(manifest: ShardManifest) -> None:
    data = codec.encode_shard_manifest(manifest)
    found = codec.decode_shard_manifest(data, shard_id=manifest.shard_id, version=manifest.version)

    assert found == replace(manifest, raw=data)
    assert codec.encode_shard_manifest(found) == data


def test_what_pylance_wrote_is_read() -> None:
    assert decode(FIRST, 1) == ShardManifest(
        shard_id=SHARD, version=1, writer_epoch=1, current_generation=1, raw=FIRST
    )
    assert decode(EIGHTH) == ShardManifest(
        shard_id=SHARD,
        version=8,
        writer_epoch=3,
        current_generation=4,
        replay_after_wal_entry_position=6,
        wal_entry_position_last_seen=6,
        flushed_generations=(
            FlushedGeneration(
                generation=1,
                path="e3abc7c1_gen_1",
                in_memory_bytes=73,
                physical_rows=2,
                primary_key_bytes=16,
            ),
            FlushedGeneration(
                generation=2,
                path="2a2a763e_gen_2",
                in_memory_bytes=73,
                physical_rows=2,
                primary_key_bytes=16,
            ),
            FlushedGeneration(
                generation=3,
                path="2dc74180_gen_3",
                in_memory_bytes=131,
                physical_rows=3,
                primary_key_bytes=24,
            ),
        ),
        raw=EIGHTH,
    )


@pytest.mark.parametrize(("data", "version"), [(FIRST, 1), (EIGHTH, 8)])
def test_what_pylance_wrote_is_written_byte_for_byte(data: bytes, version: int) -> None:
    manifest = decode(data, version)

    assert codec.encode_shard_manifest(manifest) == data
    assert codec.encode_shard_manifest(replace(manifest, raw=b"")) == data


def test_unknown_fields_survive_a_read_modify_write() -> None:
    own, first, third = (unknown(200, b"of a later build"), unknown(99, b"one"), unknown(99, b"3"))
    message = pb.ShardManifest.FromString(EIGHTH)
    for entry, extra in ((0, first), (2, third)):
        message.flushed_generations[entry].MergeFromString(extra)
    read = decode(message.SerializeToString() + own)

    proposed = replace(
        read,
        version=9,
        writer_epoch=4,
        status=ShardStatus.SEALED,
        flushed_generations=(
            read.flushed_generations[0],
            replace(read.flushed_generations[2], physical_rows=77),
            FlushedGeneration(generation=4, path="0a1b2c3d_gen_4"),
        ),
    )
    data = codec.encode_shard_manifest(proposed)

    assert decode(data, 9) == replace(proposed, raw=data)
    assert own in data
    written = pb.ShardManifest.FromString(data).flushed_generations
    assert [entry.generation for entry in written] == [1, 3, 4]
    assert first in written[0].SerializeToString()
    assert third in written[1].SerializeToString()
    assert b"of a later build" not in written[2].SerializeToString()
    # And once more, from what was read back.
    assert codec.encode_shard_manifest(decode(data, 9)) == data


@given(st.lists(st.tuples(st.integers(100, 10_000), st.binary(max_size=40)), max_size=5))
def test_any_unknown_fields_survive(fields: list[tuple[int, bytes]]) -> None:
    extra = b"".join(unknown(number, payload) for number, payload in fields)
    read = decode(EIGHTH + extra)
    drained = replace(read, version=9, flushed_generations=read.flushed_generations[1:])

    assert (
        decode(codec.encode_shard_manifest(drained), 9).flushed_generations
        == (read.flushed_generations[1:])
    )
    assert codec.encode_shard_manifest(drained).endswith(extra)


def test_an_entry_under_another_path_keeps_nothing_of_the_old_one() -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.flushed_generations[0].MergeFromString(unknown(99, b"of the old path"))
    read = decode(message.SerializeToString())
    moved = FlushedGeneration(generation=1, path="0a1b2c3d_gen_1")

    data = codec.encode_shard_manifest(replace(read, flushed_generations=(moved,)))

    assert decode(data).flushed_generations == (moved,)
    assert b"of the old path" not in data


@pytest.mark.parametrize("data", [b"", b"\0", b"not protobuf at all", b"\xff" * 40, b"{}"])
def test_what_is_no_manifest_is_corruption(data: bytes) -> None:
    with pytest.raises(Corruption):
        decode(data)


def test_a_manifest_cut_at_any_byte_is_corruption() -> None:
    for data, version in ((FIRST, 1), (EIGHTH, 8)):
        for length in range(len(data)):
            with pytest.raises(Corruption):
                decode(data[:length], version)


def test_a_manifest_cut_behind_its_shard_id_raises_nothing_but_corruption() -> None:
    # Fields 14 and 15 come last. A cut right between two fields can't be told from their absence;
    # manifests are created whole, so this does not happen on a working store.
    whole = codec.encode_shard_manifest(
        replace(decode(EIGHTH), status=ShardStatus.SEALED, shard_field_entries=(("f", b"x"),))
    )
    readable = []
    for length in range(len(whole)):
        try:
            readable.append(decode(whole[:length]).flushed_generations)
        except Corruption:
            continue
    assert readable == [decode(EIGHTH).flushed_generations] * 2


@given(st.integers(0, len(EIGHTH) - 1), st.integers(1, 255))
def test_a_manifest_with_a_flipped_byte_raises_nothing_unexpected(at: int, flip: int) -> None:
    data = bytearray(EIGHTH)
    data[at] ^= flip
    with contextlib.suppress(Corruption, Unsupported):
        decode(bytes(data))


@given(st.binary(max_size=200))
def test_random_bytes_are_corruption(data: bytes) -> None:
    with pytest.raises(Corruption):
        decode(data, 77)


def test_a_manifest_of_another_version_is_corruption() -> None:
    with pytest.raises(Corruption, match="holds version 8 instead of 9"):
        decode(EIGHTH, 9)
    with pytest.raises(Corruption, match="is empty"):
        decode(b"", 9)


def test_a_manifest_of_another_shard_is_corruption() -> None:
    with pytest.raises(Corruption, match=f"belongs to shard {SHARD}"):
        codec.decode_shard_manifest(EIGHTH, shard_id=OTHER, version=8)


@pytest.mark.parametrize("value", [b"", b"x" * 15, b"x" * 17])
def test_a_shard_id_of_another_length_is_corruption(value: bytes) -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.shard_id.uuid = value
    with pytest.raises(Corruption, match="instead of 16"):
        decode(message.SerializeToString())


@pytest.mark.parametrize(
    "path",
    [
        "../../etc",
        "/etc/passwd",
        "e3abc7c1_gen_2",
        "",
        "e3abc7c1_gen_1/../..",
        "x" * 10000,
        "e3abc7c1_gen_" + "1" * 5000,
    ],
)
def test_a_forged_path_is_corruption(path: str) -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.flushed_generations[0].path = path
    with pytest.raises(Corruption, match="generation"):
        decode(message.SerializeToString())


def test_a_path_that_is_not_text_is_corruption() -> None:
    with pytest.raises(Corruption):
        decode(EIGHTH.replace(b"e3abc7c1_gen_1", b"\xff3abc7c1_gen_1"))


def test_a_generation_listed_with_two_paths_is_corruption() -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.flushed_generations.add(generation=2, path="00000000_gen_2")
    with pytest.raises(Corruption, match="lists generation 2 twice"):
        decode(message.SerializeToString())


def test_a_generation_that_a_retried_flush_listed_again_counts_once() -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.flushed_generations.append(message.flushed_generations[-1])
    found = decode(message.SerializeToString()).flushed_generations
    assert found == decode(EIGHTH).flushed_generations


def test_generations_are_sorted_whatever_their_order_on_the_wire() -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    turned = list(message.flushed_generations)[::-1]
    del message.flushed_generations[:]
    message.flushed_generations.extend(turned)

    found = decode(message.SerializeToString()).flushed_generations

    assert [g.generation for g in found] == [1, 2, 3]


def test_a_status_of_a_later_build_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="status 2"):
        decode(EIGHTH + bytes([15 << 3, 2]))


# ---- hints


@given(st.integers(1, 2**64 - 1))
def test_hints_come_back(version: int) -> None:
    assert codec.decode_version_hint(layout.encode_version_hint(version)) == version


def test_hints_are_written_as_pylance_writes_them() -> None:
    assert layout.encode_version_hint(15) == b'{"version":15}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"15",
        b"[]",
        b"null",
        b"{}",
        b'{"version":null}',
        b'{"version":true}',
        b'{"version":0}',
        b'{"version":-1}',
        b'{"version":1.0}',
        b'{"version":"1"}',
        b'{"version":18446744073709551616}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"version":' + b"9" * 5000 + b"}",
    ],
)
def test_a_hint_that_cannot_be_read_is_none(data: bytes) -> None:
    assert codec.decode_version_hint(data) is None


@given(st.binary(max_size=50))
def test_any_bytes_are_a_hint_or_none(data: bytes) -> None:
    codec.decode_version_hint(data)


# ---- table manifests


def uuid_of(shard: ShardId) -> pb.UUID:
    return pb.UUID(uuid=UUID(shard).bytes)


def mem_wal_entry(details: pb.MemWalIndexDetails) -> pb.IndexMetadata:
    entry = pb.IndexMetadata(uuid=uuid_of(OTHER), name="__lance_mem_wal", created_at=1234)
    entry.index_details.type_url = "/lance.table.MemWalIndexDetails"
    entry.index_details.value = details.SerializeToString()
    return entry


def details() -> pb.MemWalIndexDetails:
    message = pb.MemWalIndexDetails(num_shards=1, maintained_indexes=["id_idx"])
    message.merged_generations.add(shard_id=uuid_of(SHARD), generation=5)
    caught_up = message.index_catchup.add(index_name="id_idx")
    caught_up.caught_up_generations.add(shard_id=uuid_of(SHARD), generation=4)
    return message


def framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def blocks(*entries: pb.IndexMetadata) -> tuple[bytes, bytes]:
    manifest = pb.Manifest(version=7, index_section=0)
    manifest.timestamp.seconds = 12
    section = pb.IndexSection(indices=entries)
    return framed(manifest.SerializeToString()), framed(section.SerializeToString())


def decode_version(
    manifest: bytes, index: bytes | None, version: int = 7, file_bytes: int = 99
) -> VersionManifest:
    return codec.decode_version_manifest(manifest, index, version=version, file_bytes=file_bytes)


def test_progress_is_read() -> None:
    other = pb.IndexMetadata(uuid=uuid_of(SHARD), name="id_idx", fields=[0], dataset_version=3)
    manifest, index = blocks(mem_wal_entry(details()), other)

    found = decode_version(manifest + b"what follows", index + manifest)

    assert found.mem_wal is not None
    assert found.mem_wal.merged == {SHARD: 5}
    assert found.mem_wal.index_catchup == {"id_idx": {SHARD: 4}}
    assert found.mem_wal.index_uuid == OTHER
    assert found.mem_wal.created_at_millis == 1234
    assert found.mem_wal.maintain_all_indexes is None
    assert [(entry.name, entry.field_ids) for entry in found.indexes] == [("id_idx", (0,))]
    assert (found.version, found.timestamp_nanos, found.file_bytes) == (7, 12 * 10**9, 99)


def test_a_version_without_indexes_has_no_mem_wal() -> None:
    manifest, _ = blocks()
    assert decode_version(manifest, None).mem_wal is None


def test_progress_listed_twice_is_corruption() -> None:
    twice = details()
    twice.merged_generations.add(shard_id=uuid_of(SHARD), generation=6)
    with pytest.raises(Corruption, match=f"progress of shard {SHARD} twice"):
        decode_version(*blocks(mem_wal_entry(twice)))


def test_catch_up_listed_twice_is_corruption() -> None:
    shard_twice, index_twice = details(), details()
    shard_twice.index_catchup[0].caught_up_generations.add(shard_id=uuid_of(SHARD), generation=6)
    index_twice.index_catchup.add(index_name="id_idx")
    for message in (shard_twice, index_twice):
        with pytest.raises(Corruption, match="twice"):
            decode_version(*blocks(mem_wal_entry(message)))


def with_snapshot(
    before: pb.MemWalIndexDetails,
    inline: bytes | None = b"rows",
    merged: dict[ShardId, int] | None = None,
) -> pb.MemWalIndexDetails:
    """The details as they are behind a refresh."""
    state = decode_version(*blocks(mem_wal_entry(before))).mem_wal
    assert state is not None
    return pb.MemWalIndexDetails.FromString(
        codec.encode_snapshot(
            state, taken_at_millis=77, num_shards=2, inline=inline, merged=merged or {}
        )
    )


def test_a_snapshot_changes_nothing_but_itself() -> None:
    before = details()
    after = with_snapshot(before)
    assert (after.snapshot_ts_millis, after.num_shards, after.inline_snapshots) == (77, 2, b"rows")
    before.snapshot_ts_millis, before.num_shards, before.inline_snapshots = 77, 2, b"rows"
    assert after == before
    assert not with_snapshot(after, inline=None).HasField("inline_snapshots")


def test_a_snapshot_keeps_unknown_fields_of_the_details() -> None:
    before = pb.MemWalIndexDetails.FromString(
        details().SerializeToString() + unknown(900, b"of a later build")
    )
    assert unknown(900, b"of a later build") in with_snapshot(before).SerializeToString()


@pytest.mark.parametrize(("raised", "kept"), [(4, 5), (5, 5), (6, 6)])
def test_a_snapshot_only_raises_progress(raised: int, kept: int) -> None:
    after = with_snapshot(details(), merged={SHARD: raised, OTHER: 1})
    progress = {entry.shard_id.uuid: entry.generation for entry in after.merged_generations}
    assert progress == {UUID(SHARD).bytes: kept, UUID(OTHER).bytes: 1}


def test_two_mem_wal_entries_are_corruption() -> None:
    with pytest.raises(Corruption, match="2 entries named __lance_mem_wal"):
        decode_version(*blocks(mem_wal_entry(details()), mem_wal_entry(details())))


def test_progress_of_a_forged_shard_is_corruption() -> None:
    message = details()
    message.merged_generations[0].shard_id.uuid = b"../../etc"
    with pytest.raises(Corruption, match="instead of 16"):
        decode_version(*blocks(mem_wal_entry(message)))


def test_an_index_without_a_uuid_is_corruption() -> None:
    for entry in (mem_wal_entry(details()), pb.IndexMetadata(name="id_idx")):
        entry.uuid.uuid = b"short"
        with pytest.raises(Corruption, match=entry.name):
            decode_version(*blocks(entry))


def test_details_that_are_no_message_are_corruption() -> None:
    entry = mem_wal_entry(details())
    entry.index_details.value = b"\xff\xff"
    with pytest.raises(Corruption, match="MemWalIndexDetails"):
        decode_version(*blocks(entry))


def test_another_table_version_is_corruption() -> None:
    with pytest.raises(Corruption, match="holds table version 7 instead of 8"):
        decode_version(*blocks(), version=8)


def test_blocks_cut_at_any_byte_are_corruption() -> None:
    manifest, index = blocks(mem_wal_entry(details()))
    for length in range(len(manifest)):
        with pytest.raises(Corruption):
            codec.index_section_offset(manifest[:length])
        with pytest.raises(Corruption):
            decode_version(manifest[:length], index)
    for length in range(len(index)):
        with pytest.raises(Corruption):
            decode_version(manifest, index[:length])


@given(st.data())
def test_a_flipped_byte_in_a_block_raises_nothing_unexpected(data: st.DataObject) -> None:
    manifest, index = (bytearray(block) for block in blocks(mem_wal_entry(details())))
    block = data.draw(st.sampled_from([manifest, index]))
    block[data.draw(st.integers(0, len(block) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        codec.index_section_offset(bytes(manifest))
        decode_version(bytes(manifest), bytes(index))
    except MemWalError:
        pass


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_random_blocks_raise_nothing_unexpected(manifest: bytes, index: bytes) -> None:
    for call in (
        lambda: codec.decode_footer(manifest),
        lambda: codec.index_section_offset(manifest),
        lambda: decode_version(manifest, index),
        lambda: decode_version(framed(manifest), framed(index), 0),
    ):
        with contextlib.suppress(MemWalError):
            call()


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"LANC",
        struct.pack("<qHH", 5, 0, 2) + b"LAN",
        struct.pack("<qHH", 5, 0, 2) + b"LANX",
        struct.pack("<qHH", -1, 0, 2) + b"LANC",
    ],
)
def test_a_broken_footer_is_corruption(tail: bytes) -> None:
    with pytest.raises(Corruption):
        codec.decode_footer(tail)


def test_the_footer_is_read_from_the_end_of_any_tail() -> None:
    assert codec.decode_footer(b"before" + struct.pack("<qHH", 5, 0, 2) + b"LANC") == 5


@pytest.mark.integration
def test_a_version_that_pylance_wrote_is_read(tmp_path: Path) -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key)])
    dataset = lance.write_dataset(pa.table({"id": [1]}, schema=schema), str(tmp_path / "table"))
    dataset.create_scalar_index("id", "BTREE")
    dataset.initialize_mem_wal(maintained_indexes=["id_idx"], bucket_column="id", num_buckets=4)
    file = tmp_path / "table" / "_versions" / f"{2**64 - 1 - dataset.version:020d}.manifest"
    data = file.read_bytes()

    block = data[codec.decode_footer(data) :]
    offset = codec.index_section_offset(block)
    assert offset is not None
    found = codec.decode_version_manifest(
        block, data[offset:], version=dataset.version, file_bytes=len(data)
    )

    assert [entry.name for entry in found.indexes] == ["id_idx"]
    state = found.mem_wal
    assert state is not None
    assert (state.merged, state.index_catchup, state.num_shards) == ({}, {}, 4)
    assert state.maintained_indexes == ("id_idx",)
    assert [(f.transform, f.parameters) for f in state.shard_specs[0].fields] == [
        ("bucket", {"num_buckets": "4"})
    ]
