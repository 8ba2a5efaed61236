"""Protobuf bytes <-> model: nothing is lost, and what is broken is Corruption, nothing else."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwal.errors import Corruption, Unsupported
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


LISTED = tuple(
    FlushedGeneration(
        generation=number,
        path=f"{path}_gen_{number}",
        in_memory_bytes=size,
        physical_rows=rows,
        primary_key_bytes=rows * 8,
    )
    for number, path, size, rows in (
        (1, "e3abc7c1", 73, 2),
        (2, "2a2a763e", 73, 2),
        (3, "2dc74180", 131, 3),
    )
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (FIRST, {"version": 1, "writer_epoch": 1, "current_generation": 1}),
        (
            EIGHTH,
            {
                "version": 8,
                "writer_epoch": 3,
                "current_generation": 4,
                "replay_after_wal_entry_position": 6,
                "wal_entry_position_last_seen": 6,
                "flushed_generations": LISTED,
            },
        ),
    ],
)
def test_what_pylance_wrote_is_read_and_written_byte_for_byte(
    data: bytes, expected: dict[str, Any]
) -> None:
    manifest = decode(data, expected["version"])
    assert manifest == ShardManifest(shard_id=SHARD, raw=data, **expected)
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


def test_an_entry_under_another_path_keeps_nothing_of_the_old_one() -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.flushed_generations[0].MergeFromString(unknown(99, b"of the old path"))
    read = decode(message.SerializeToString())
    moved = FlushedGeneration(generation=1, path="0a1b2c3d_gen_1")

    data = codec.encode_shard_manifest(replace(read, flushed_generations=(moved,)))

    assert decode(data).flushed_generations == (moved,)
    assert b"of the old path" not in data


def test_a_manifest_cut_at_any_byte_is_corruption() -> None:
    for data, version in ((FIRST, 1), (EIGHTH, 8)):
        for length in range(len(data)):
            with pytest.raises(Corruption):
                decode(data[:length], version)


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


@pytest.mark.parametrize("path", ["../../etc", "e3abc7c1_gen_2", "e3abc7c1_gen_" + "1" * 5000])
def test_a_forged_path_is_corruption(path: str) -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    message.flushed_generations[0].path = path
    with pytest.raises(Corruption, match="generation"):
        decode(message.SerializeToString())


def test_a_path_that_is_not_text_is_corruption() -> None:
    with pytest.raises(Corruption):
        decode(EIGHTH.replace(b"e3abc7c1_gen_1", b"\xff3abc7c1_gen_1"))


def test_generations_are_sorted_and_one_that_a_retried_flush_listed_again_counts_once() -> None:
    message = pb.ShardManifest.FromString(EIGHTH)
    turned = list(message.flushed_generations)[::-1]
    del message.flushed_generations[:]
    message.flushed_generations.extend([*turned, turned[-1]])
    assert decode(message.SerializeToString()).flushed_generations == LISTED
    message.flushed_generations.add(generation=2, path="00000000_gen_2")
    with pytest.raises(Corruption, match="lists generation 2 twice"):
        decode(message.SerializeToString())


def test_a_status_of_a_later_build_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="status 2"):
        decode(EIGHTH + bytes([15 << 3, 2]))


# ---- hints


@pytest.mark.parametrize("version", [1, 15, 2**64 - 1])
def test_hints_are_written_as_pylance_writes_them(version: int) -> None:
    assert layout.encode_version_hint(version) == f'{{"version":{version}}}'.encode()
    assert codec.decode_version_hint(layout.encode_version_hint(version)) == version


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"15", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000),
        *(
            b'{"version":' + value + b"}"
            for value in (b"null", b"true", b"0", b"-1", b"1.0", b'"1"', b"%d" % 2**64, b"9" * 5000)
        ),
    ],
)
def test_a_hint_that_cannot_be_read_is_none(data: bytes) -> None:
    assert codec.decode_version_hint(data) is None


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
    later = unknown(900, b"of a later build")
    before = pb.MemWalIndexDetails.FromString(details().SerializeToString() + later)
    after = with_snapshot(before)
    assert (after.snapshot_ts_millis, after.num_shards, after.inline_snapshots) == (77, 2, b"rows")
    before.snapshot_ts_millis, before.num_shards, before.inline_snapshots = 77, 2, b"rows"
    assert after == before
    assert later in after.SerializeToString()
    assert not with_snapshot(after, inline=None).HasField("inline_snapshots")


@pytest.mark.parametrize(("raised", "kept"), [(4, 5), (5, 5), (6, 6)])
def test_a_snapshot_only_raises_progress(raised: int, kept: int) -> None:
    after = with_snapshot(details(), merged={SHARD: raised, OTHER: 1})
    progress = {entry.shard_id.uuid: entry.generation for entry in after.merged_generations}
    assert progress == {UUID(SHARD).bytes: kept, UUID(OTHER).bytes: 1}


def test_two_mem_wal_entries_are_corruption() -> None:
    with pytest.raises(Corruption, match="2 entries named __lance_mem_wal"):
        decode_version(*blocks(mem_wal_entry(details()), mem_wal_entry(details())))


def merged_twice(message: pb.MemWalIndexDetails) -> None:
    message.merged_generations.add(shard_id=uuid_of(SHARD), generation=6)


def caught_up_twice(message: pb.MemWalIndexDetails) -> None:
    message.index_catchup[0].caught_up_generations.add(shard_id=uuid_of(SHARD), generation=6)


def index_twice(message: pb.MemWalIndexDetails) -> None:
    message.index_catchup.add(index_name="id_idx")


def forged_shard(message: pb.MemWalIndexDetails) -> None:
    message.merged_generations[0].shard_id.uuid = b"../../etc"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (merged_twice, f"progress of shard {SHARD} twice"),
        (caught_up_twice, "twice"),
        (index_twice, "twice"),
        (forged_shard, "instead of 16"),
    ],
)
def test_progress_that_makes_no_sense_is_corruption(
    change: Callable[[pb.MemWalIndexDetails], None], why: str
) -> None:
    message = details()
    change(message)
    with pytest.raises(Corruption, match=why):
        decode_version(*blocks(mem_wal_entry(message)))


def test_an_index_without_a_uuid_or_with_other_details_is_corruption() -> None:
    for entry in (mem_wal_entry(details()), pb.IndexMetadata(name="id_idx")):
        entry.uuid.uuid = b"short"
        with pytest.raises(Corruption, match=entry.name):
            decode_version(*blocks(entry))
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


@pytest.mark.parametrize(
    "tail",
    [
        *(b"", b"LANC", struct.pack("<qHH", 5, 0, 2) + b"LAN"),
        *(struct.pack("<qHH", 5, 0, 2) + b"LANX", struct.pack("<qHH", -1, 0, 2) + b"LANC"),
    ],
)
def test_a_broken_footer_is_corruption(tail: bytes) -> None:
    with pytest.raises(Corruption):
        codec.decode_footer(tail)


def test_the_footer_is_read_from_the_end_of_any_tail() -> None:
    assert codec.decode_footer(b"before" + struct.pack("<qHH", 5, 0, 2) + b"LANC") == 5
