"""What pylance 14 does where the spec is silent, open or different: the evidence of the table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from lance.mem_wal import CompactedSsTable, LsmScanner, ShardSnapshot

from memwal.format import layout
from memwal.format.replay import WalEntry, replay
from memwal.model import ShardManifest, ShardStatus
from memwal.store.shards.listing import list_shards
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.fencing import claim_epoch
from tests.support.wal_tables import abandon, entry_file, rewrite

pytestmark = pytest.mark.integration


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return builders.make_table(tmp_path / "t", rows=range(5))


def latest(table: Table) -> ShardManifest:
    found = table.stores.shard_manifests.latest(table.shards[0])
    assert found is not None
    return found


def entries(table: Table) -> list[WalEntry]:
    wal = table.stores.wal
    return wal.describe(table.shards[0], wal.list_entries(table.shards[0]))


def flushed_keys(table: Table) -> list[list[int]]:
    """The keys in each flushed generation."""
    found = []
    for generation in latest(table).flushed_generations:
        dataset = table.stores.tables.generation(table.shards[0], generation)
        found.append(sorted(dataset.to_table()["k"].to_pylist()))
    return found


def keys(table: Table, *numbers: int) -> list[int]:
    return sorted(table.kind.key(number)[0] for number in numbers)


def reopen(table: Table) -> int:
    """Open a writer and close it; the rows that it had replayed."""
    with table.writer(table.shards[0]) as writer:
        return int(writer.memtable_stats()["row_count"])


# ---- places and numbers


def test_what_a_session_leaves_and_where(table: Table) -> None:
    """Positions, versions and generations start at 1; entries end in `.arrow`."""
    (shard,) = table.shards
    table.flush(shard, Put([1], 10), Put([2], 20))
    table.flush(shard, Put([3], 30))
    folder = Path(table.uri) / layout.shard_folder(shard)
    tops = sorted(path.name for path in folder.iterdir())
    generations = [name for name in tops if layout.parse_generation_folder(name)]
    assert sorted(layout.parse_generation_folder(name) or 0 for name in generations) == [1, 2]
    assert sorted({*tops} - {*generations}) == ["manifest", "wal"]
    stored = sorted(path.name for path in (folder / "wal").iterdir())
    assert stored == sorted(f"{layout.bit_reversed(p)}.arrow" for p in (1, 2, 3, 4))
    names = {path.name for path in (folder / "manifest").iterdir()}
    assert "version_hint.json" in names
    versions = table.stores.shard_manifests.versions(shard)
    assert names - {"version_hint.json"} == {f"{layout.bit_reversed(v)}.binpb" for v in versions}
    assert versions == list(range(1, len(versions) + 1))
    manifest = latest(table)
    assert (manifest.current_generation, manifest.replay_after_wal_entry_position) == (3, 4)
    assert [(e.position, e.generation) for e in entries(table)] == [
        (1, 1),
        (2, 1),
        (3, None),
        (4, 2),
    ]
    for name in generations:
        inside = {path.name for path in (folder / name).iterdir()}
        assert inside == {"_pk_index", "_transactions", "_versions", "bloom_filter.bin", "data"}


@pytest.mark.parametrize(
    "text", ["00000000-0000-0000-0000-000000000000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"]
)
def test_any_uuid_names_a_shard(tmp_path: Path, text: str) -> None:
    """The caller picks it; its version is not looked at, nor what rows go there."""
    table = builders.make_table(tmp_path / "t", rows=[1], shards=0)
    shard = table.add_shard(text)
    table.flush(shard, Put([1], 10))
    assert list_shards(table.stores.objects).shards == [shard]


# ---- claims


def test_a_claim_is_the_next_epoch_and_a_sentinel(table: Table) -> None:
    """The first claim writes one manifest and no entry; a later one two manifests and an entry."""
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    assert (latest(table).version, latest(table).writer_epoch) == (1, 1)
    assert [e.fence_sentinel for e in entries(table)] == [False]
    abandon(table, shard)
    manifest = latest(table)
    assert (manifest.version, manifest.writer_epoch) == (3, 2)
    assert manifest.wal_entry_position_last_seen == 2
    put, sentinel = entries(table)
    assert (put.writer_epoch, put.generation, put.rows) == (1, 1, 1)
    assert (sentinel.writer_epoch, sentinel.generation, sentinel.rows) == (2, None, 0)
    assert sentinel.fence_sentinel
    fields = table.stores.wal.rows(shard, 1).schema
    assert fields.field("n").metadata[b"lance:field_id"] == b"1"
    assert not fields.field(layout.TOMBSTONE).metadata


def test_a_fenced_writer_fails_at_its_next_put(table: Table) -> None:
    """The spec lets it write until it updates the manifest."""
    (shard,) = table.shards
    old = abandon(table, shard, Put([1], 10))
    abandon(table, shard)
    for _ in range(2):
        with pytest.raises(OSError, match="local epoch 1 < stored epoch 2"):
            builders.apply(table, old, table.dataset.schema, Put([2], 20), {})
    assert [e.position for e in entries(table)] == [1, 2]


def test_a_fenced_writer_may_close_without_a_word(table: Table) -> None:
    """The flush of a full MemTable was refused in the background; closing then tells nothing.

    What it had put is in the WAL, so that nothing is lost. A flush is believed only when it shows.
    """
    (shard,) = table.shards
    with table.writer(shard, max_memtable_batches=2) as writer:
        builders.apply(table, writer, table.dataset.schema, Put([10], 1), {})
        claim_epoch(table.stores.shard_manifests, shard)
        builders.apply(table, writer, table.dataset.schema, Put([11], 2), {})
        time.sleep(0.5)
    assert latest(table).flushed_generations == ()
    assert replay(latest(table), entries(table)).rows == 2


def test_a_sealed_shard_refuses_a_claim(table: Table) -> None:
    (shard,) = table.shards
    abandon(table, shard, Put([1], 10))
    builders.set_status(table, shard, ShardStatus.SEALED)
    with pytest.raises(OSError, match="is sealed; refusing claim"):
        table.writer(shard)
    assert latest(table).writer_epoch == 1


# ---- replay


def test_the_replay_position_is_understated_when_a_memtable_fills_up(table: Table) -> None:
    """Generation 1 holds both entries, and the manifest says that it covers one or none."""
    (shard,) = table.shards
    with table.writer(shard, max_memtable_rows=4) as writer:
        for op in (Put([10], 1), Put([11, 12, 13], 2)):
            builders.apply(table, writer, table.dataset.schema, op, {})
    manifest = latest(table)
    assert flushed_keys(table) == [keys(table, 10, 11, 12, 13)]
    assert manifest.current_generation == 2
    assert manifest.replay_after_wal_entry_position < 2
    assert [e.generation for e in entries(table)] == [1, 1]
    # Its own replay passes over the rest, and so does ours.
    assert replay(manifest, entries(table)).unflushed == ()
    assert reopen(table) == 0
    assert len(latest(table).flushed_generations) == 1


def test_a_hole_ends_the_replay_without_a_word(table: Table) -> None:
    """Three acknowledged puts are behind it; the flush that follows leaves them behind for good."""
    (shard,) = table.shards
    abandon(table, shard, *(Put([10 + n], n) for n in range(1, 6)))
    entry_file(table, shard, 3).unlink()
    before = replay(latest(table), entries(table))
    assert before.problems == (
        "position 3 is missing, but 5 was written: entries are lost in between",
    )
    assert [reopen(table) for _ in range(3)] == [2, 0, 0]
    assert flushed_keys(table) == [keys(table, 11, 12)]
    assert latest(table).current_generation == 2
    # The second claim's sentinel went into the hole; what is above is of a flushed generation now.
    after = replay(latest(table), entries(table))
    assert [e.writer_epoch for e in entries(table)] == [1, 1, 3, 1, 1, 2, 4]
    assert after.unflushed == ()
    assert [text.partition(" has")[0] for text in after.problems] == ["position 4", "position 5"]


def test_a_torn_entry_keeps_every_writer_out(table: Table) -> None:
    """And each try takes an epoch before it fails."""
    (shard,) = table.shards
    abandon(table, shard, *(Put([10 + n], n) for n in range(1, 4)))
    path = entry_file(table, shard, 2)
    path.write_bytes(path.read_bytes()[:1000])
    for epoch in (2, 3):
        with pytest.raises(OSError, match="WAL IPC stream"):
            table.writer(shard)
        assert latest(table).writer_epoch == epoch


def test_an_entry_without_an_end_marker_is_replayed(table: Table) -> None:
    (shard,) = table.shards
    abandon(table, shard, Put([10], 1))
    path = entry_file(table, shard, 1)
    path.write_bytes(path.read_bytes()[:-8])
    assert not entries(table)[0].ended
    assert reopen(table) == 1


def test_epochs_of_entries_as_pylance_takes_them(table: Table) -> None:
    (shard,) = table.shards
    abandon(table, shard, Put([10], 1))
    abandon(table, shard, Put([11], 2), Put([12], 3))
    # 1: put, 2: sentinel, 3 and 4: puts of epoch 2.
    rewrite(table, shard, 3, writer_epoch=1)
    decided = replay(latest(table), entries(table))
    assert [e.position for e in decided.unflushed] == [1, 3, 4]
    assert "position 3 has writer epoch 1 after 2" in decided.warnings[0]
    copy = copied(table, "lower")
    assert reopen(copy) == 3

    rewrite(table, shard, 3, writer_epoch=99)
    assert replay(latest(table), entries(table)).problems
    with pytest.raises(OSError, match="entry at position 3 has writer_epoch 99 > our claimed"):
        table.writer(shard)


def copied(table: Table, name: str) -> Table:
    """The same table elsewhere, its old writers left behind."""
    to = Path(table.uri).parent / name
    shutil.copytree(table.uri, to)
    return replace(table, uri=str(to))


@pytest.mark.parametrize(
    ("generations", "text"),
    [
        ((1, 7, 1), "generation 1 below the generation 7 replayed before it"),
        ((1, 3, 3), "cannot flush before generation 2"),
    ],
)
def test_generations_out_of_turn_keep_every_writer_out(
    table: Table, generations: Sequence[int], text: str
) -> None:
    (shard,) = table.shards
    abandon(table, shard, *(Put([10 + n], n) for n in range(1, 4)))
    for position, generation in enumerate(generations, start=1):
        rewrite(table, shard, position, generation=generation)
    assert replay(latest(table), entries(table)).problems
    with pytest.raises(OSError, match=text):
        reopen(table)


# ---- merging, reading, the index


def test_a_mark_may_pass_over_generations(table: Table) -> None:
    (shard,) = table.shards
    for number in range(3):
        table.flush(shard, Put([10 + number], number))
    dataset = table.dataset
    nothing = dataset.schema.empty_table()
    builder = dataset.merge_insert(["k"]).when_matched_update_all().when_not_matched_insert_all()
    builder.mark_sstables_as_compacted([CompactedSsTable(shard, 3)]).execute(nothing)
    assert table.progress() == {shard: 3}


def test_a_missing_generation_fails_the_scanner(table: Table) -> None:
    """The spec's reader would skip it."""
    (shard,) = table.shards
    table.flush(shard, Put([1], 10))
    (generation,) = latest(table).flushed_generations
    shutil.rmtree(Path(table.uri) / layout.generation_folder(shard, generation.path, 1))
    snapshot = ShardSnapshot(shard).with_sstable(1, generation.path)
    with pytest.raises(OSError, match="was not found"):
        LsmScanner.from_snapshots(table.dataset, [snapshot]).to_table()


def test_pylance_takes_no_snapshot(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([1], 10))
    table.merge_all()
    state = table.stores.table_manifests.read(int(table.dataset.version)).mem_wal
    assert state is not None
    assert (state.num_shards, state.inline_snapshots, state.snapshot_ts_millis) == (0, None, 0)


def test_an_index_without_an_entry_is_not_caught_up(tmp_path: Path) -> None:
    """After a merge its rows are not indexed, and the index is in no list."""
    table = builders.make_table(tmp_path / "t", rows=range(5), indexed=True)
    table.flush(table.shards[0], Put(range(10, 30), 10), Delete([1]))
    table.merge_all()
    version = int(table.dataset.version)
    state = table.stores.table_manifests.read(version).mem_wal
    assert state is not None
    assert dict(state.index_catchup) == {}
    assert table.stores.tables.unindexed_rows(version, "key_idx") == 20
