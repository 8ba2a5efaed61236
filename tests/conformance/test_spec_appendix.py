"""The worked examples of the MemWAL spec (appendices 1 and 2), step by step."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest

from memwal.errors import LostRace
from memwal.format import layout
from memwal.format.replay import Standing, replay
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, ShardManifest
from memwal.ports import Objects
from memwal.store.objects.local import LocalObjects
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.testing import MemoryBucket, MemoryObjects
from tests.support import builders
from tests.support.fencing import ShardClaim, ShardFencing, claim_epoch, verify_epoch

pytestmark = pytest.mark.integration

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
WAIT_SECONDS_MAX = 60
ONE_BY_ONE = MergeLimits(generations_per_commit_max=1)


# ---- appendix 1


@pytest.fixture(params=["memory", "local"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Objects]:
    if request.param == "local":
        return lambda: LocalObjects(str(tmp_path / "table"))
    bucket = MemoryBucket()
    return lambda: MemoryObjects(bucket=bucket)


def write_wal_entry(objects: Objects, position: int, epoch: int) -> None:
    schema = pa.schema([("id", pa.int64())], metadata={"writer_epoch": str(epoch)})
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_table(pa.table({"id": [position]}, schema=schema))
    objects.put_if_absent(layout.wal_entry_path(SHARD, position), out.getvalue())


def test_appendix_1_writer_fencing_example(open_store: Callable[[], Objects]) -> None:
    store, a, b = open_store(), ShardManifests(open_store()), ShardManifests(open_store())
    for position in (11, 12):
        write_wal_entry(store, position, epoch=5)
    ShardManifests(store).commit(
        None,
        ShardManifest(
            shard_id=SHARD,
            version=1,
            writer_epoch=5,
            current_generation=1,
            replay_after_wal_entry_position=10,
            wal_entry_position_last_seen=12,
        ),
    )

    # 1. Writer A loads the manifest, sees epoch=5.
    seen = a.latest(SHARD)
    assert seen is not None
    assert (seen.writer_epoch, seen.version) == (5, 1)
    # 2. It increments to epoch=6, writes manifest v2.
    of_a = claim_epoch(a, SHARD)
    assert (of_a.writer_epoch, of_a.version) == (6, 2)
    # 3. It starts writing WAL entries 13, 14, 15.
    for position in (13, 14, 15):
        write_wal_entry(store, position, epoch=of_a.writer_epoch)
    # 4. Writer B loads manifest v2, sees epoch=6.
    seen = b.latest(SHARD)
    assert seen is not None
    assert (seen.writer_epoch, seen.version) == (6, 2)
    # 5. It increments to epoch=7, writes manifest v3.
    of_b = claim_epoch(b, SHARD)
    assert (of_b.writer_epoch, of_b.version) == (7, 3)
    # 6. It starts writing WAL entries 16, 17.
    for position in (16, 17):
        write_wal_entry(store, position, epoch=of_b.writer_epoch)
    # 7. to 9. A tries to flush a MemTable, sees epoch=7 where its own is 6, and aborts.
    with pytest.raises(Fenced, match="writer epoch 6 was superseded by 7"):
        verify_epoch(a, SHARD, of_a.writer_epoch)
    flushed = FlushedGeneration(generation=1, path="abc12300_gen_1")
    with pytest.raises(LostRace):
        a.commit(of_a, replace(of_a, flushed_generations=(flushed,), current_generation=2))
    with pytest.raises(Fenced):
        ShardFencing(open_store()).update(
            ShardClaim(manifest=of_a, next_position=16),
            lambda found: replace(found, flushed_generations=(flushed,), current_generation=2),
        )
    # 10. B continues writing normally: epoch=7, version=3.
    assert verify_epoch(b, SHARD, of_b.writer_epoch) == of_b
    assert of_b.flushed_generations == ()
    assert (of_b.replay_after_wal_entry_position, of_b.wal_entry_position_last_seen) == (10, 12)

    # B recovers. 1. to 3. It reads upwards from entry 11 until one is not found.
    wal = WalEntries(store)
    assert [wal.exists(SHARD, position) for position in range(11, 19)] == [True] * 7 + [False]
    # 4. to 7. Entries of epochs 5, 6 and 7 are <= the current epoch: all valid, all replayed.
    stored = wal.describe(SHARD, wal.list_entries(SHARD))
    replayed = replay(of_b, stored)
    valid = [(e.position, e.writer_epoch) for e in replayed.unflushed]
    assert valid == [*zip(range(11, 18), (5, 5, 6, 6, 6, 7, 7), strict=True)]
    assert (replayed.tip, replayed.problems) == (18, ())
    # By A's manifest the last two can't be valid: somebody has claimed the shard since.
    assert [e.position for e in replay(of_a, stored).unflushed] == [11, 12, 13, 14, 15]
    # Its flush covers them, and is the next version.
    after = b.commit(
        of_b,
        replace(
            of_b,
            flushed_generations=(flushed,),
            current_generation=2,
            replay_after_wal_entry_position=17,
            wal_entry_position_last_seen=17,
        ),
    )
    assert (after.version, after.writer_epoch) == (4, 7)
    assert a.latest(SHARD) == after
    # Key point 3: the fenced writer's files remain, now as a part of the flushed MemTable.
    assert wal.describe(SHARD, wal.list_entries(SHARD)) == stored
    covered = replay(after, stored)
    assert set(covered.standings.values()) == {Standing.COVERED}
    assert (covered.unflushed, covered.tip) == ((), 18)


def test_appendix_1_with_pylance_s_own_writers(tmp_path: Path) -> None:
    """A is fenced with durable entries that it never flushed; B replays them, nothing is lost."""
    table = builders.make_table(tmp_path / "table", rows=[1])
    (shard,) = table.shards
    schema = table.dataset.schema
    acknowledged: builders.Effects = {}

    def put(writer: object, key: int) -> None:
        builders.apply(table, writer, schema, builders.Put([key], 10 * key), acknowledged)

    a = table.writer(shard)
    for key in (1, 2, 3):
        put(a, key)
    manifests = table.stores.shard_manifests
    of_a = manifests.latest(shard)
    assert of_a is not None
    assert (of_a.writer_epoch, of_a.flushed_generations) == (1, ())

    b = table.writer(shard)
    of_b = manifests.latest(shard)
    assert of_b is not None
    assert of_b.writer_epoch == 2
    put(b, 3)
    put(b, 4)
    with pytest.raises(OSError, match="fenced"):
        put(a, 5)
        a.close()
    with pytest.raises(Fenced):
        verify_epoch(manifests, shard, of_a.writer_epoch)
    put(b, 6)
    b.close()

    # A put that failed may have been half way: its key is not among what was acknowledged.
    assert table.kind.key(5) not in acknowledged
    table.effects[shard].append(acknowledged)
    last = verify_epoch(manifests, shard, of_b.writer_epoch)
    assert last.current_generation == len(last.flushed_generations) + 1
    builders.same_rows(table.lsm_rows(), table.truth(), "what B left")
    assert [merge.outcome for merge in table.merge_all()] == ["done"]
    builders.same_rows(table.base_rows(), table.truth(), "merged")


# ---- appendix 2


@pytest.fixture
def table(tmp_path: Path) -> builders.Table:
    """merged_generations: {shard: 5}, current_generation: 8, flushed_generations: 6 and 7."""
    table = builders.make_table(tmp_path / "table", rows=range(4))
    (shard,) = table.shards
    for n in range(1, 8):
        # Each generation changes an old key, adds a new one, and from the second on deletes one.
        ops = [builders.Put([n % 4, 10 + n], 100 * n), builders.Delete([10 + n - 1])]
        assert table.flush(shard, *(ops if n > 1 else ops[:1])) == n
    merged = table.merger().run(shard, MergeRequest(until_generation=5))
    assert merged.to_generation == 5
    for n in range(1, 6):
        builders.unlist_generation(table, shard, n)
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    assert manifest.current_generation == 8
    assert [g.generation for g in manifest.flushed_generations] == [6, 7]
    assert table.progress() == {shard: 5}
    return table


def wait(event: Event) -> None:
    assert event.wait(WAIT_SECONDS_MAX), "the other merger did not get there"


def test_appendix_2_scenario_1_racing_on_the_same_generation(table: builders.Table) -> None:
    (shard,) = table.shards
    before = int(table.dataset.version)
    a_is_merging, b_is_merging, a_committed = Event(), Event(), Event()
    steps_of_b: list[tuple[str, dict[ShardId, int]]] = []

    def steps_a(step: str) -> None:
        if step == "commit":  # 3. A has read merged_gen=5 and the manifest, and folded gen 6
            a_is_merging.set()
            wait(b_is_merging)
        elif step == "committed":  # 7. A commits (merged_gen=6)
            assert table.progress() == {shard: 6}
            a_committed.set()

    def steps_b(step: str) -> None:
        steps_of_b.append((step, table.progress()))
        if not b_is_merging.is_set():  # 6. so has B
            assert table.progress() == {shard: 5}
            b_is_merging.set()
            wait(a_committed)  # 8. B tries to commit

    with ThreadPoolExecutor(2) as threads:
        merger_a = table.merger(steps=steps_a, limits=ONE_BY_ONE)
        merger_b = table.merger(steps=steps_b, limits=ONE_BY_ONE)
        of_a = threads.submit(merger_a.run, shard, MergeRequest(until_generation=6))
        wait(a_is_merging)
        of_b = threads.submit(merger_b.run, shard, MergeRequest())
        a, b = of_a.result(WAIT_SECONDS_MAX), of_b.result(WAIT_SECONDS_MAX)

    assert (a.outcome, a.from_generation, a.to_generation, a.commits) == ("done", 5, 6, 1)
    assert a.conflicts == 0
    # 9. to 11. B's commit of gen 6 conflicts; it sees merged_gen=6, and goes on to gen 7.
    assert (b.outcome, b.from_generation, b.to_generation) == ("done", 5, 7)
    assert (b.commits, b.generations, b.conflicts) == (1, 1, 1)
    assert steps_of_b == [
        ("commit", {shard: 5}),
        ("commit", {shard: 6}),
        ("committed", {shard: 7}),
    ]
    assert builders.check_versions(table, before) == before + 2
    assert table.progress() == {shard: 7}
    builders.same_rows(table.base_rows(), table.truth(), "base")


class Killed(BaseException):
    """Not an Exception: nothing on the way may handle it."""


def test_appendix_2_scenario_2_crash_after_table_commit(table: builders.Table) -> None:
    (shard,) = table.shards
    before = int(table.dataset.version)

    def crash(step: str) -> None:
        if step == "committed":  # 2. A merges gen 6, commits; 3. CRASH
            raise Killed

    with pytest.raises(Killed):
        table.merger(steps=crash, limits=ONE_BY_ONE).run(shard, MergeRequest())
    assert table.progress() == {shard: 6}

    # 4. to 7. B reads merged_gen=6, skips gen 6, merges gen 7.
    b = table.merger(limits=ONE_BY_ONE).run(shard, MergeRequest())

    assert (b.outcome, b.from_generation, b.to_generation) == ("done", 6, 7)
    assert (b.commits, b.generations, b.conflicts) == (1, 1, 0)
    assert builders.check_versions(table, before) == before + 2
    builders.same_rows(table.base_rows(), table.truth(), "base")
    # And there is nothing left to do.
    again = table.merger().run(shard, MergeRequest())
    assert (again.outcome, again.commits) == ("nothing_to_do", 0)
