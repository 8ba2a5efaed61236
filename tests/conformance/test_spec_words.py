"""Numbers and small examples that the spec states in so many words."""

from __future__ import annotations

from memwal.clock import SystemClock
from memwal.format import layout
from memwal.jobs.snapshot.plan import (
    SnapshotLimits,
    Storage,
    Stored,
    choose_storage,
    collect_manifests,
    is_fresh,
)
from memwal.jobs.snapshot.store import snapshot_schema, to_lance_bytes, to_table
from memwal.model import ShardId
from tests.support.memory_table import MemoryTable
from tests.support.snapshot_files import from_lance_bytes

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
FIVE = "101" + 61 * "0"


def test_entry_5_and_version_5() -> None:
    assert len(FIVE) == 64
    assert layout.wal_entry_path(SHARD, 5) == f"_mem_wal/{SHARD}/wal/{FIVE}.arrow"
    assert layout.shard_manifest_path(SHARD, 5) == f"_mem_wal/{SHARD}/manifest/{FIVE}.binpb"
    assert layout.parse_wal_entry_name(f"{FIVE}.arrow") == 5
    assert layout.parse_shard_manifest_name(f"{FIVE}.binpb") == 5


def test_a_hundred_shards_are_inline_and_more_are_not() -> None:
    for count, storage in ((100, Storage.INLINE), (101, Storage.EXTERNAL)):
        table = MemoryTable(clock=SystemClock())
        for number in range(count):
            table.flush(ShardId(f"00000000-0000-4000-8000-{number:012}"), {(1,): {"id": 1}})
        view = table.table()
        manifests = collect_manifests(view)
        assert len(manifests) == count
        assert choose_storage(len(manifests), SnapshotLimits()) is storage


def test_a_snapshot_of_no_shards_is_an_empty_file_with_the_schema() -> None:
    empty = from_lance_bytes(to_lance_bytes(to_table([], [])))
    assert (len(empty), empty.schema) == (0, snapshot_schema([]))
    # And where there is none at all, nothing is written for no shards.
    assert is_fresh(MemoryTable(clock=SystemClock()).table().mem_wal, 0, Stored.NONE)
