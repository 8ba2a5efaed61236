"""Names in storage: every name leads back to its value, and no other text to any value."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memwal.errors import Corruption, Usage
from memwal.format import layout
from memwal.model import ShardId

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
u64 = st.integers(0, layout.U64_MAX)
versions = st.integers(1, layout.DETACHED_BIT - 1)
texts = st.text(max_size=80) | st.text("01", max_size=70) | st.text("0123456789d.manifest")


# ---- bit-reversed names


@given(u64, u64)
@example(0, 2**63)
def test_names_are_as_different_as_their_values(one: int, other: int) -> None:
    name = layout.bit_reversed(one)
    assert name == f"{one:064b}"[::-1]
    assert layout.from_bit_reversed(name) == one
    assert (name == layout.bit_reversed(other)) == (one == other)


def test_a_name_is_the_spec_s_example() -> None:
    assert layout.bit_reversed(5) == "101" + "0" * 61


@pytest.mark.parametrize("value", [-1, layout.U64_MAX + 1])
def test_values_beyond_64_bits_have_no_name(value: int) -> None:
    with pytest.raises(ValueError, match="64 bits"):
        layout.bit_reversed(value)


@pytest.mark.parametrize(
    "name",
    ["", "0" * 63, "0" * 65, "2" + "0" * 63, "0" * 64 + "\n", "0b" + "0" * 62, "\u0660" * 64],
)
def test_other_texts_are_no_bit_reversed_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a bit-reversed"):
        layout.from_bit_reversed(name)


# ---- files of a shard


@given(u64)
def test_files_of_a_shard_come_back_from_their_paths(value: int) -> None:
    manifest = layout.shard_manifest_path(SHARD, value)
    entry = layout.wal_entry_path(SHARD, value)

    folder, _, name = manifest.rpartition("/")
    assert folder == layout.manifest_folder(SHARD) == f"_mem_wal/{SHARD}/manifest"
    assert layout.parse_shard_manifest_name(name) == value
    assert layout.parse_wal_entry_name(name) is None

    folder, _, name = entry.rpartition("/")
    assert folder == layout.wal_folder(SHARD) == f"_mem_wal/{SHARD}/wal"
    assert layout.parse_wal_entry_name(name) == value
    assert layout.parse_shard_manifest_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        *("version_hint.json", "0" * 64, "0" * 63 + ".binpb", "0" * 64 + ".binpb.tmp", ".binpb"),
        *("0" * 64 + ".binpb\n", "." + "0" * 64 + ".binpb", "0" * 64 + ".lance"),
    ],
)
def test_strangers_beside_manifests_and_entries_are_passed_over(name: str) -> None:
    assert layout.parse_shard_manifest_name(name) is None
    assert layout.parse_wal_entry_name(name.replace("binpb", "arrow")) is None


@given(texts)
def test_names_are_parsed_without_an_exception(name: str) -> None:
    for parse in (
        layout.parse_shard_manifest_name,
        layout.parse_wal_entry_name,
        layout.parse_generation_folder,
        layout.parse_table_manifest_name,
    ):
        found = parse(name)
        assert found is None or found >= 0
    assert layout.is_shard_folder(name) in (True, False)


# ---- shard ids


@given(st.uuids())
def test_shard_ids_are_canonical(value: UUID) -> None:
    typed = [str(value), value.hex, f"{{{value}}}", value.urn]
    assert {layout.parse_shard_id(text) for text in typed} == {str(value)}
    # Two folders for one shard would be merged twice.
    assert [layout.is_shard_folder(text) for text in typed] == [True, False, False, False]


@pytest.mark.parametrize("text", ["", "shard-1", SHARD[:-1], f"{SHARD}0", f"../{SHARD}"])
def test_what_is_not_a_uuid_is_no_shard(text: str) -> None:
    with pytest.raises(Usage) as refused:
        layout.parse_shard_id(text)
    assert repr(text) in str(refused.value)
    assert not layout.is_shard_folder(text)
    assert layout.parse_shard_id(SHARD.upper()) == SHARD
    assert not layout.is_shard_folder(SHARD.upper())


# ---- generations


@given(st.integers(0, 2**32 - 1), u64)
def test_a_generation_folder_belongs_to_its_number(random_part: int, generation: int) -> None:
    name = f"{random_part:08x}_gen_{generation}"

    assert layout.check_generation_path(name, generation) == name
    assert layout.parse_generation_folder(name) == generation
    assert layout.generation_folder(SHARD, name, generation) == f"_mem_wal/{SHARD}/{name}"
    for other in (generation - 1, generation + 1):
        with pytest.raises(Corruption, match=f"does not belong to generation {other}"):
            layout.check_generation_path(name, other)


@pytest.mark.parametrize(
    "path",
    [
        *("", "..", "../../etc", "/etc", "/0a1b2c3d_gen_7", "../0a1b2c3d_gen_7"),
        *("0a1b2c3d_gen_7/..", "0a1b2c3d_gen_7/", "0a1b2c3d_gen_7\n", "0a1b2c3d_gen_7\0"),
        *("0A1B2C3D_gen_7", "0a1b2c3_gen_7", "0a1b2c3d0_gen_7", "0a1b2c3d_gen_07"),
        *("0a1b2c3d_gen_+7", "0a1b2c3d_gen_\u0667", "0a1b2c3d_gen_", "_mem_wal/0a1b2c3d_gen_7"),
    ],
)
def test_forged_generation_paths_are_corruption(path: str) -> None:
    with pytest.raises(Corruption) as found:
        layout.generation_folder(SHARD, path, 7)
    assert repr(path) in str(found.value)


@given(st.text())
@example("0a1b2c3d_gen_" + "1" * 5000)  # int() refuses this many digits with a ValueError
def test_any_other_path_is_corruption_and_nothing_else(path: str) -> None:
    with pytest.raises(Corruption):
        layout.check_generation_path(path, 7)


# ---- versions of a table


@pytest.mark.parametrize(
    ("version", "v2", "v1"),
    [
        (1, "18446744073709551614.manifest", "1.manifest"),
        (42, "18446744073709551573.manifest", "42.manifest"),
        (2**63 - 1, "09223372036854775808.manifest", "9223372036854775807.manifest"),
    ],
)
def test_both_naming_schemes(version: int, v2: str, v1: str) -> None:
    assert layout.table_manifest_names(version) == (v2, v1)
    assert layout.parse_table_manifest_name(v2) == version
    assert layout.parse_table_manifest_name(v1) == version


@given(versions, versions)
def test_versions_come_back_from_both_names_and_v2_names_sort_newest_first(
    one: int, other: int
) -> None:
    names = layout.table_manifest_names(one)
    assert [layout.parse_table_manifest_name(name) for name in names] == [one, one]
    assert not layout.is_detached(one)
    newest = min(layout.table_manifest_names(v)[0] for v in (one, other))
    assert layout.parse_table_manifest_name(newest) == max(one, other)


@given(st.integers(layout.DETACHED_BIT, layout.U64_MAX))
def test_detached_versions_have_one_name(version: int) -> None:
    names = layout.table_manifest_names(version)

    assert names == (f"d{version}.manifest", f"d{version}.manifest")
    assert layout.parse_table_manifest_name(names[0]) == version
    assert layout.is_detached(version)


@pytest.mark.parametrize("version", [0, -1, layout.U64_MAX + 1])
def test_numbers_that_are_no_version_have_no_name(version: int) -> None:
    with pytest.raises(ValueError, match="not a table version"):
        layout.table_manifest_names(version)


@pytest.mark.parametrize(
    "name",
    [
        *("latest_version_hint.json", "latest.manifest", ".manifest", "1.manifest.tmp", "1"),
        *("1.manifest-5f1c", "01.manifest", "+1.manifest", "0.manifest"),
        "18446744073709551615.manifest",  # version 0 in V2
        "00000000000000000001.manifest",  # a V2 name with the detached bit
        "9223372036854775808.manifest",  # a V1 name with the detached bit
        "99999999999999999999.manifest",  # beyond 64 bits
        *("d.manifest", "d1x.manifest", "d" + "9" * 5000 + ".manifest", "9" * 5000 + ".manifest"),
        *("d5.manifest", f"d{2**64}.manifest"),  # without the detached bit, or more than it
    ],
)
def test_strangers_in_a_versions_folder_are_passed_over(name: str) -> None:
    assert layout.parse_table_manifest_name(name) is None


@pytest.mark.parametrize(
    ("branch", "folder"),
    [(None, "_versions"), ("dev", "tree/dev/_versions"), ("dev/x", "tree/dev/x/_versions")],
)
def test_branches_have_a_versions_folder_of_their_own(branch: str | None, folder: str) -> None:
    assert layout.versions_folder(branch) == folder


def test_what_systems_and_editors_leave() -> None:
    for name in (
        *(".DS_Store", "._6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11", ".nfs000000000012ab"),
        *(".fuse_hidden0000001200000001", ".directory", "Thumbs.db", "desktop.ini"),
        *(".version_hint.json.swp", "notes.txt~", "#notes#", ".#notes"),
    ):
        assert layout.is_litter(name), name


def test_what_may_be_the_table_s_own_is_no_leaving() -> None:
    entry = layout.bit_reversed(3)
    for name in (
        *(SHARD, f"{SHARD}~", "0a1b2c3d_gen_1", "0a1b2c3d_gen_1~", "#0a1b2c3d_gen_1#"),
        *(f"{entry}.binpb", f"{entry}.binpb~", f".#{entry}.arrow"),
        *("lease.json", ".hidden", ".nfs", "manifest"),
    ):
        assert not layout.is_litter(name), name
