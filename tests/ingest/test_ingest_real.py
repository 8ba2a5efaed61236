"""The coordinator on real tables: what was written is what is read, before and after a merge."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import memwal.ingest
from memwal.errors import Usage
from memwal.ingest import open_writer
from memwal.ingest.coordinator import Closed, FlushFailed
from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.request import MergeRequest
from memwal.store.shards.manifests import Fenced
from tests.support.ingest_tables import MemWalTable, Session, make, rows_of

pytestmark = pytest.mark.integration

SPECS = [
    ({"bucket_column": "id", "num_buckets": 3}, True),
    ({"unsharded": True}, False),
    ({}, False),
]


def merge_all(table: MemWalTable) -> None:
    stores = table.stores
    merger = ShardMerger(views=stores.views, table=open_merge_table(stores), clock=stores.clock)
    for shard in stores.views.table().shards:
        assert merger.run(shard.shard_id, MergeRequest()).error is None


@pytest.mark.parametrize(("spec", "join"), SPECS, ids=str)
def test_random_writes_and_deletes(tmp_path, spec, join) -> None:
    table = make(tmp_path / "t", **spec)
    chance = random.Random(repr(spec))
    wanted: dict[int, tuple[int, str]] = {}
    for _ in range(2):
        session = Session(table, join=join, pending_bytes_max=2000)
        for n in range(8):
            ids = [chance.randrange(40) for _ in range(chance.randrange(1, 30))]
            gone = [chance.random() < 0.2 for _ in ids]
            session.write(rows_of(ids, n), gone)
            for i, dead in zip(ids, gone, strict=True):
                wanted.pop(i, None)
                if not dead:
                    wanted[i] = (n, f"{i}-{n}")
        session.coordinator.flush()
        assert table.read() == wanted
        session.end()
    merge_all(table)
    base = table.dataset.to_table().to_pylist()
    assert {row["id"]: (row["n"], row["note"]) for row in base} == wanted
    assert len(base) == len(wanted)


def test_shards_carry_their_values_and_reads_prune_by_them(tmp_path) -> None:
    table = make(tmp_path / "t", identity_column="id")
    session = Session(table)
    session.write(rows_of([1, 2, 3]))
    session.end()
    view = table.stores.views.table()
    values = sorted(
        int.from_bytes(s.manifest.shard_field_entries[0][1], "little") for s in view.shards
    )
    assert values == [1, 2, 3]
    assert {s.manifest.shard_spec_id for s in view.shards} == {1}
    later = Session(table)
    later.write(rows_of([2, 3, 4], 1))
    later.end()
    assert len(table.stores.views.table().shards) == 4


def test_the_snapshot_tells_how_far_each_wal_goes(tmp_path) -> None:
    table = make(tmp_path / "t", bucket_column="id", num_buckets=2)
    session = Session(table, join=False)
    for n in range(3):
        session.coordinator.write_durable(session.delta(rows_of(range(10), n)))
    tips = session.coordinator.snapshot.snapshot
    stores = table.stores
    assert {
        shard: (tip.writer_epoch, tip.position, stores.wal.exists(shard, tip.position + 1))
        for shard, tip in tips.items()
    } == dict.fromkeys(tips, (2, 4, False))
    assert len(tips) == 2
    session.end()


def test_neighbours_are_written_together(tmp_path) -> None:
    table = make(tmp_path / "t")
    session = Session(table, flush_interval_seconds=None)
    for n in range(20):
        session.write(rows_of([n]))
    session.coordinator.flush()
    [tip] = session.coordinator.snapshot.snapshot.values()
    assert tip.position == 2  # the sentinel and one entry
    session.end()
    assert sorted(table.read()) == list(range(20))


def test_a_fenced_coordinator_fails_its_waiters_and_loses_nothing(tmp_path) -> None:
    table = make(tmp_path / "t", bucket_column="id", num_buckets=2)
    first = Session(table)
    first.coordinator.write_durable(first.delta(rows_of(range(10))))
    second = Session(table)
    second.coordinator.write_durable(second.delta(rows_of(range(10, 20))))
    with pytest.raises(FlushFailed, match="epoch 3 took over") as caught:
        first.coordinator.write_durable(first.delta(rows_of(range(20, 30))))
    assert isinstance(caught.value.__cause__, Fenced)
    assert caught.value.exit_code == Fenced.exit_code
    with pytest.raises(FlushFailed):
        first.coordinator.flush()
    first.handler.abandon()
    second.end()
    assert sorted(table.read()) == list(range(20))


def test_many_threads_through_one_coordinator(tmp_path) -> None:
    table = make(tmp_path / "t", bucket_column="id", num_buckets=3)
    session = Session(table)
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: session.coordinator.write_durable(
                    session.delta(rows_of(range(n * 10, n * 10 + 10), n))
                ),
                range(16),
            )
        )
    session.end()
    assert table.read() == {i: (i // 10, f"{i}-{i // 10}") for i in range(160)}


@pytest.mark.nightly
def test_on_s3(make_s3_uri, s3_server) -> None:
    table = make(make_s3_uri(), s3_server.storage_options, bucket_column="id", num_buckets=2)
    session = Session(table)
    session.coordinator.write_durable(session.delta(rows_of(range(10))))
    session.coordinator.write_durable(session.delta(rows_of([3, 4]), [True, True]))
    session.end()
    again = Session(table)
    again.coordinator.write_durable(again.delta(rows_of([4], 7)))
    again.end()
    assert sorted(table.read()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_everything_that_is_offered_is_there() -> None:
    assert all(getattr(memwal.ingest, name).__doc__ for name in memwal.ingest.__all__)


def test_a_programs_own_writer(tmp_path) -> None:
    table = make(tmp_path / "t", bucket_column="id", num_buckets=2)
    with open_writer(table.uri) as writer:
        assert writer.write(rows_of(range(10))) == 1
        assert writer.write(rows_of([3, 4]), deleted=[True, False]) == 2
        assert writer.durable_epoch <= 2
        assert writer.flush() == writer.durable_epoch == 2
        assert sorted(table.read()) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert len(writer.tips) == 2
        with pytest.raises(Usage, match="no column 'other'"):
            writer.write(rows_of([1]).append_column("other", [[1]]))
        with pytest.raises(Usage, match="2 rows, and 1 marks"):
            writer.write(rows_of([1, 2]), deleted=[True])
        assert writer.write_durable(rows_of([3], 5).select(["note", "id", "n"])) == 3
    assert table.read(with_wal=False)[3] == (5, "3-5")
    with pytest.raises(Closed):
        writer.write(rows_of([1]))
    with pytest.raises(KeyError), open_writer(table.uri) as writer:
        raise KeyError
