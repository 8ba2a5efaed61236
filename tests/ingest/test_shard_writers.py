"""pylance's writers as the ingest counts on them: epochs, sentinels, one entry a call."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, cast

import pyarrow as pa
import pytest

from memwal.errors import LostRace, MemWalError, Refused
from memwal.format import layout
from memwal.ingest.progress.resume import find_written
from memwal.ingest.target import IngestTable
from memwal.model import ShardId
from memwal.ports import Objects
from memwal.store.records.ingests import SessionRecord
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import ShardWriters, read_settings
from memwal.store.tables.datasets import LanceTables
from tests.support.ingest_tables import make, rows_of

pytestmark = pytest.mark.integration

SHARD = ShardId("5d1c1f8a-3c4b-4d0e-9a64-0d2b9c6f1a11")
VALUES = (("bucket", b"\3\0\0\0"),)


def entries(writers: ShardWriters) -> list[tuple[int, int, int | None]]:
    """(position, epoch, rows or None for a sentinel) of the WAL."""
    found = [
        writers.wal.rows(SHARD, position).entry for position, _ in writers.wal.list_entries(SHARD)
    ]
    return [(e.position, e.writer_epoch, None if e.fence_sentinel else e.rows) for e in found]


def test_every_call_is_one_entry_behind_the_sentinel(tmp_path) -> None:
    table = make(tmp_path / "t", bucket_column="id", num_buckets=4)
    writers = table.writers(max_memtable_rows=500)
    shard = writers.open(SHARD, 1, VALUES)
    assert (shard.claim.writer_epoch, shard.claim.start_position) == (2, 1)
    for n, size in enumerate([1, 400, 399, 30, 500]):  # MemTables fill up on the way
        shard.put(rows_of(range(size), n))
    shard.delete(rows_of([0, 1]).select(["id"]))
    assert shard.position == 7
    shard.check_position()
    wanted = [(1, 2, None), (2, 2, 1), (3, 2, 400), (4, 2, 399), (5, 2, 30), (6, 2, 500), (7, 2, 2)]
    assert entries(writers) == wanted
    shard.close()
    again = table.writers().open(SHARD)
    assert (again.claim.writer_epoch, again.claim.start_position) == (3, 8)
    again.put(rows_of([9]))
    assert entries(writers) == [*wanted, (8, 3, None), (9, 3, 1)]
    manifest = writers.manifests.latest(SHARD)
    assert manifest is not None
    assert (manifest.shard_spec_id, manifest.shard_field_entries) == (1, VALUES)


def test_a_put_is_in_the_wal_when_it_returns(tmp_path) -> None:
    table = make(tmp_path / "t")
    writers = table.writers(durable_write=False, max_wal_flush_interval_ms=500)
    shard = writers.open(SHARD)
    shard.put(rows_of([1]))
    shard.check_position()
    assert entries(writers)[-1] == (2, 2, 1)
    shard.close()


def test_entries_left_by_a_writer_that_never_closed(tmp_path) -> None:
    table = make(tmp_path / "t")
    first = table.writers().open(SHARD)
    first.put(rows_of([1]))
    first.put(rows_of([2]))
    second = table.writers().open(SHARD)
    assert second.claim.start_position == 4
    second.put(rows_of([3]))
    second.check_position()
    assert sorted(table.read()) == [1, 2, 3]


def test_a_writer_claims_its_shard_before_it_writes(tmp_path) -> None:
    table = make(tmp_path / "t")
    writers = table.writers()
    other = table.dataset.mem_wal_writer(SHARD)
    other.put(rows_of([1]))
    ours = writers.open(SHARD)
    manifest = writers.manifests.latest(SHARD)
    assert manifest is not None
    assert (ours.claim.writer_epoch, manifest.writer_epoch) == (2, 2)
    with pytest.raises(OSError, match="fenced"):
        other.put(rows_of([2]))
    ours.put(rows_of([3]))
    assert [epoch for _, epoch, rows in entries(writers) if rows] == [1, 2]
    ours.close()
    assert sorted(table.read()) == [1, 3]


def test_a_fenced_writer_says_who_took_over(tmp_path) -> None:
    table = make(tmp_path / "t")
    first = table.writers().open(SHARD)
    first.put(rows_of([1]))
    with table.dataset.mem_wal_writer(SHARD) as other:
        other.put(rows_of([2]))
        with pytest.raises(Fenced, match=r"epoch 2\) was fenced: a writer with epoch 3 took over"):
            first.put(rows_of([3]))
        with pytest.raises(Fenced, match="epoch 3 took over"):
            first.check_position()
    first.abandon()
    assert sorted(table.read()) == [1, 2]


def test_programs_that_share_a_shard_are_told_that_it_takes_one(tmp_path) -> None:
    """Whatever pylance calls it: fenced while it opens, while it writes, or beaten at the claim."""
    table = make(tmp_path / "t")
    table.writers().open(SHARD).close()

    def write(program: int) -> Iterator[MemWalError]:
        for attempt in range(15):
            try:
                shard = table.writers().open(SHARD)
                shard.put(rows_of([100 * program + attempt]))
                shard.close()
            except MemWalError as error:
                yield error

    with ThreadPoolExecutor(4) as pool:
        refused = list(chain.from_iterable(pool.map(lambda p: list(write(p)), range(4))))
    assert refused
    for error in refused:
        assert isinstance(error, Fenced | LostRace), repr(error)
        assert str(error).endswith("A shard takes one writer at a time")


@dataclass
class BeatenBy:
    """Lance's tables, where each claim is followed by the sentinel of one that it beat.

    The manifest says by then where that one stands.
    """

    tables: LanceTables
    objects: Objects

    def shard_writer(self, shard_id: ShardId, **settings: Any) -> Any:
        writer = self.tables.shard_writer(shard_id, **settings)
        tip = max(position for position, _ in WalEntries(self.objects).list_entries(shard_id))
        sentinel = self.objects.get(layout.wal_entry_path(shard_id, 1))
        self.objects.put(layout.wal_entry_path(shard_id, tip + 1), sentinel)
        manifests = ShardManifests(self.objects)
        latest = manifests.latest(shard_id)
        assert latest is not None
        told = replace(latest, version=latest.version + 1, wal_entry_position_last_seen=tip + 1)
        manifests.commit(latest, told)
        return writer


def test_a_claim_that_was_beaten_leaves_its_sentinel_above_ours(tmp_path) -> None:
    """What came of threads that claim one shard at once; a fifth of them did."""
    table = make(tmp_path / "t")
    table.writers().open(SHARD).close()
    stores = table.stores
    beaten = cast(LanceTables, BeatenBy(stores.tables, stores.objects))
    ours = ShardWriters(stores.objects, beaten, merged={}).open(SHARD)
    assert (ours.claim.writer_epoch, ours.claim.start_position) == (3, 2)
    ours.put(rows_of([1]))
    ours.put(rows_of([2]))
    assert ours.position == 5
    ours.abandon()
    stores.objects.delete([layout.wal_entry_path(SHARD, 4)])  # as garbage does
    later = table.writers().open(SHARD)
    own = {3: SessionRecord(run_id="r", writer_epoch=3, start_position=2)}
    found = find_written(WalEntries(stores.objects), later.claim, None, own)
    assert [tip.position for tip in found] == [4, 5]
    later.abandon()
    restored = replace(later.claim, writer_epoch=3 + layout.LEAP_MIN)
    with pytest.raises(Refused, match="MW-I42"):
        find_written(WalEntries(stores.objects), restored, None, own)


def test_a_sealed_shard_and_rows_that_do_not_fit(tmp_path) -> None:
    table = make(tmp_path / "t")
    shard = table.writers().open(SHARD)
    with pytest.raises(Refused, match="does not match"):
        shard.put(rows_of([1]).select(["id", "n"]))
    with pytest.raises(ValueError, match="empty write"):
        shard.put(rows_of([]))
    shard.abandon()


def test_a_column_that_came_meanwhile_is_no_fault_of_the_rows(tmp_path) -> None:
    """Whoever runs again lays them out by the columns that there are now."""
    table = make(tmp_path / "t")
    stores = table.stores
    writers = IngestTable.read(stores, stores.views.table(), None).make_writers()
    table.dataset.add_columns(pa.field("added", pa.int64()))
    shard = writers.open(SHARD)
    with pytest.raises(LostRace, match="columns have changed"):
        shard.put(rows_of([1]))
    shard.abandon()
    assert table.read() == {}


def test_two_claims_at_the_same_time(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t")
    writers = table.writers()
    dataset = table.dataset
    latest, asked = writers.manifests.latest, []

    def late(shard_id: ShardId):
        found = latest(shard_id)
        if not asked:
            asked.append(dataset.mem_wal_writer(shard_id))
        return found

    writers.open(SHARD).close()
    monkeypatch.setattr(writers.manifests, "latest", late)
    with pytest.raises(LostRace, match="epoch 2 became 4"):
        writers.open(SHARD)
    asked[0].close()


def test_two_coordinators_make_one_shard(tmp_path) -> None:
    table = make(tmp_path / "t", bucket_column="id", num_buckets=4)
    first = table.writers().open(SHARD, 1, VALUES)
    second = table.writers()._create(SHARD, 1, VALUES)
    assert second.writer_epoch == 2
    first.put(rows_of([1]))
    first.close()


def test_settings_that_the_table_recorded(tmp_path) -> None:
    table = make(tmp_path / "t", max_memtable_rows=50, max_wal_buffer_size=1000)
    recorded = table.stores.views.table().mem_wal.writer_config_defaults
    settings = read_settings(recorded)
    assert (settings["max_memtable_rows"], settings["max_wal_buffer_size"]) == (50, 1000)
    shard = table.writers(**settings).open(SHARD)
    with pytest.raises(Refused, match="exceeds max_memtable_rows=50"):
        shard.put(rows_of(range(60)))
    shard.abandon()


def test_a_call_does_not_wait_for_a_slow_tick(tmp_path) -> None:
    # pylance's own is 100 ms, of which a call waits for half.
    shard = make(tmp_path / "t").writers().open(SHARD)
    seconds = []
    for n in range(20):
        began = time.perf_counter()
        shard.put(rows_of([n]))
        seconds.append(time.perf_counter() - began)
    shard.abandon()
    assert sorted(seconds)[5] < 0.03
