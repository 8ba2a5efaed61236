"""Writer fencing, in memory, in files and on S3, and against pylance's own writers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.errors import AlreadyExists, LostRace, StoreUnavailable
from memwal.format import layout
from memwal.format.replay import Standing, replay
from memwal.model import FlushedGeneration, ShardId, ShardManifest
from memwal.ports import Objects
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.shards.wal import WalEntries
from memwal.store.shards.writers import sentinel_bytes
from memwal.testing import Fault, FaultyObjects, MemoryObjects
from tests.support.fencing import ShardClaim, ShardFencing, claim_epoch
from tests.support.stores import Address

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
OpenStore = Callable[[], Objects]
GENERATION = FlushedGeneration(generation=1, path="0badcafe_gen_1")


def positions(objects: Objects) -> list[int]:
    return [position for position, _ in WalEntries(objects).list_entries(SHARD)]


def put_entry(objects: Objects, position: int, epoch: int) -> None:
    """An entry as a writer of that epoch puts it; raises AlreadyExists where one is stored."""
    schema = pa.schema([("id", pa.int64())], metadata={"writer_epoch": str(epoch)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(pa.table({"id": [position]}, schema=schema))
    objects.put_if_absent(layout.wal_entry_path(SHARD, position), sink.getvalue().to_pybytes())


def flushed(manifest: ShardManifest) -> ShardManifest:
    return replace(
        manifest,
        flushed_generations=(GENERATION,),
        current_generation=2,
        replay_after_wal_entry_position=1,
    )


def test_a_claim_puts_a_sentinel_at_the_tip(open_store: OpenStore) -> None:
    store = open_store()
    ShardFencing(store).claim(SHARD)
    for position in (1, 2):
        put_entry(store, position, epoch=1)
    claim = ShardFencing(store).claim(SHARD)
    assert (claim.writer_epoch, claim.next_position) == (2, 4)
    wal = WalEntries(store)
    found = replay(claim.manifest, wal.describe(SHARD, wal.list_entries(SHARD)))
    assert found.standings == {1: Standing.UNFLUSHED, 2: Standing.UNFLUSHED, 3: Standing.SENTINEL}
    assert found.problems == ()
    # The old writer's next put is not acknowledged.
    with pytest.raises(AlreadyExists):
        put_entry(store, 3, epoch=1)


def test_claims_in_turn_leave_no_hole_and_the_first_fences_nobody(open_store: OpenStore) -> None:
    store = open_store()
    first = ShardFencing(store).claim(SHARD)
    assert (first.writer_epoch, first.next_position, positions(store)) == (1, 1, [])
    claims = [ShardFencing(store).claim(SHARD) for _ in range(3)]
    assert [claim.next_position for claim in claims] == [2, 3, 4]
    assert positions(store) == [1, 2, 3]


WAL = "*/wal/*"
MANIFEST = "*/manifest/*.binpb"


def faulty(objects: Objects, path: str, hook: Any = None, **how: Any) -> ShardFencing:
    """Through a store where something happens to one put below a path."""
    fault = Fault(operation="put_if_absent", path=path, hook=hook, **how)
    return ShardFencing(FaultyObjects(objects, fault))


@pytest.fixture
def objects() -> MemoryObjects:
    """A store with a shard that was claimed once."""
    store = MemoryObjects()
    ShardFencing(store).claim(SHARD)
    return store


def test_the_sentinel_goes_above_what_gets_in_first(objects: MemoryObjects) -> None:
    claim = faulty(objects, WAL, lambda: put_entry(objects, 1, epoch=1)).claim(SHARD)
    assert claim.next_position == 3
    assert positions(objects) == [1, 2]


def test_a_claim_that_is_overtaken_before_its_sentinel_is_fenced(objects: MemoryObjects) -> None:
    newer: list[ShardClaim] = []
    overtaken = faulty(objects, WAL, lambda: newer.append(ShardFencing(objects).claim(SHARD)))
    with pytest.raises(Fenced, match="writer epoch 2 was superseded by 3"):
        overtaken.claim(SHARD)
    assert (newer[0].writer_epoch, newer[0].next_position) == (3, 2)
    assert positions(objects) == [1]


def test_a_sentinel_whose_reply_was_lost_is_ours(objects: MemoryObjects) -> None:
    lost = faulty(objects, WAL, when="after", error=StoreUnavailable("no reply"))
    claim = lost.claim(SHARD)
    assert (claim.writer_epoch, claim.next_position) == (2, 2)
    assert objects.get(layout.wal_entry_path(SHARD, 1)) == sentinel_bytes(2)


def test_a_sentinel_that_can_not_be_written_fails_the_claim(objects: MemoryObjects) -> None:
    with pytest.raises(StoreUnavailable, match="down"):
        faulty(objects, WAL, error=StoreUnavailable("down")).claim(SHARD)
    # Its epoch is taken all the same, and the next claim goes on above it.
    assert ShardFencing(objects).claim(SHARD).writer_epoch == 3


def test_an_update_goes_on_top_of_what_maintenance_wrote(objects: MemoryObjects) -> None:
    """Losers retry: the other one's change is kept, and so is ours."""
    fencing, theirs = ShardFencing(objects), ShardManifests(objects)
    claim = fencing.update(fencing.claim(SHARD), flushed)

    def drop() -> None:
        current = theirs.latest(SHARD)
        assert current is not None
        theirs.commit(current, replace(current, flushed_generations=()))

    mine = faulty(objects, MANIFEST, drop)
    claim = mine.update(claim, lambda m: replace(m, wal_entry_position_last_seen=7))
    assert claim.manifest.version == 5
    assert claim.manifest.flushed_generations == ()
    assert claim.manifest.wal_entry_position_last_seen == 7
    assert theirs.latest(SHARD) == claim.manifest


def test_a_fenced_writer_updates_nothing(objects: MemoryObjects) -> None:
    fencing = ShardFencing(objects)
    of_a, of_b = fencing.claim(SHARD), fencing.claim(SHARD)
    with pytest.raises(Fenced, match="writer epoch 2 was superseded by 3"):
        fencing.update(of_a, flushed)
    with pytest.raises(Fenced):
        fencing.verify(of_a)
    assert fencing.verify(of_b) == of_b
    assert fencing.update(of_b, flushed).manifest.version == 4


def test_a_claim_right_before_the_commit_fences_it_too(objects: MemoryObjects) -> None:
    """Between the check and the put there is time; the put is the compare-and-swap."""
    claim = ShardFencing(objects).claim(SHARD)
    with pytest.raises(Fenced):
        faulty(objects, MANIFEST, lambda: ShardFencing(objects).claim(SHARD) and None).update(
            claim, flushed
        )
    latest = ShardManifests(objects).latest(SHARD)
    assert latest is not None
    assert (latest.writer_epoch, latest.flushed_generations) == (3, ())


def test_updates_that_keep_losing_end(objects: MemoryObjects) -> None:
    claim, theirs = ShardFencing(objects).claim(SHARD), ShardManifests(objects)

    def touch() -> None:
        current = theirs.latest(SHARD)
        theirs.commit(current, current)  # type: ignore[arg-type]

    always = Fault(operation="put_if_absent", path=MANIFEST, nth=None, hook=touch)
    with pytest.raises(LostRace):
        ShardFencing(FaultyObjects(objects, always), updates_max=3).update(claim, flushed)


def test_racing_claims_leave_one_that_may_write(open_store: OpenStore) -> None:
    """Every other one finds out at its next update, or has done already."""
    store = open_store()
    ShardFencing(store).claim(SHARD)

    def claim(_: int) -> ShardClaim | None:
        try:
            return ShardFencing(store).claim(SHARD)
        except Fenced:
            return None

    with ThreadPoolExecutor(4) as threads:
        claims = [c for c in threads.map(claim, range(6)) if c is not None]
    assert len({c.writer_epoch for c in claims}) == len(claims)
    *others, winner = sorted(claims, key=lambda c: c.writer_epoch)
    assert winner.writer_epoch == 7
    for other in others:
        with pytest.raises(Fenced):
            ShardFencing(store).update(other, flushed)
    wal = WalEntries(store)
    entries = wal.describe(SHARD, wal.list_entries(SHARD))
    assert [e.position for e in entries] == list(range(1, len(entries) + 1))
    assert all(e.fence_sentinel for e in entries)
    assert winner.next_position == len(entries) + 1


# ---- against pylance


@pytest.fixture
def local(tmp_path: Path) -> Address:
    return Address(uri=str(tmp_path / "t"), storage_options={})


def make_table(address: Address) -> Any:
    key = pa.field("id", pa.int64(), nullable=False,
                   metadata={"lance-schema:unenforced-primary-key": "true"})  # fmt: skip
    rows = pa.table({"id": [0]}, schema=pa.schema([key]))
    options = address.storage_options or None
    dataset = lance.write_dataset(rows, address.uri, storage_options=options)
    dataset.initialize_mem_wal()
    return dataset


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def one_row(address: Address) -> Any:
    """A writer of pylance that has put row 1."""
    writer = make_table(address).mem_wal_writer(SHARD, max_wal_flush_interval_ms=1)
    writer.put(rows_of(1))
    return writer


@pytest.mark.integration
def test_our_claim_fences_pylance_at_its_next_put(address: Address) -> None:
    writer = one_row(address)

    claim = ShardFencing(address.objects()).claim(SHARD)

    assert (claim.writer_epoch, claim.next_position) == (2, 3)
    for _ in range(2):
        with pytest.raises(OSError, match="fenced"):
            writer.put(rows_of(2))
    with pytest.raises(OSError, match="fenced"):
        writer.close()
    assert positions(address.objects()) == [1, 2]


@pytest.mark.integration
def test_without_a_sentinel_pylance_is_fenced_at_its_next_flush(local: Address) -> None:
    """As the spec has it: what it put until then was written with a valid epoch, and is kept."""
    writer = one_row(local)
    latest = claim_epoch(ShardManifests(local.objects()), SHARD)
    writer.put(rows_of(2))
    with pytest.raises(OSError, match="fenced"):
        writer.close()
    wal = WalEntries(local.objects())
    found = replay(latest, wal.describe(SHARD, wal.list_entries(SHARD)))
    assert [(e.position, e.writer_epoch) for e in found.unflushed] == [(1, 1), (2, 1)]


@pytest.mark.integration
def test_pylance_s_claim_refuses_ours(local: Address) -> None:
    dataset = make_table(local)
    fencing = ShardFencing(local.objects())
    mine = fencing.claim(SHARD)
    put_row(local, mine, 7)

    with dataset.mem_wal_writer(SHARD, max_wal_flush_interval_ms=1) as writer:
        with pytest.raises(Fenced, match="writer epoch 1 was superseded by 2"):
            fencing.update(mine, flushed)
        # Our next entry's position is taken by its sentinel.
        with pytest.raises(AlreadyExists):
            put_row(local, replace(mine, next_position=mine.next_position + 1), 8)
        writer.put(rows_of(9))

    # It has replayed what we had put while the shard was ours.
    latest = ShardManifests(local.objects()).latest(SHARD)
    assert latest is not None
    (generation,) = latest.flushed_generations
    folder = layout.generation_folder(SHARD, generation.path, generation.generation)
    stored = lance.dataset(f"{local.uri}/{folder}")
    assert sorted(stored.to_table()["id"].to_pylist()) == [7, 9]


def put_row(address: Address, claim: ShardClaim, key: int) -> None:
    """An entry of ours, as pylance writes them: with `_tombstone`, epoch and generation."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False, metadata={"lance:field_id": "0"}),
            pa.field(layout.TOMBSTONE, pa.bool_(), nullable=False),
        ],
        metadata={
            "writer_epoch": str(claim.writer_epoch),
            "generation": str(claim.manifest.current_generation),
        },
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_table(pa.table([[key], [False]], schema=schema))
    path = layout.wal_entry_path(SHARD, claim.next_position)
    address.objects().put_if_absent(path, sink.getvalue().to_pybytes())


@pytest.mark.integration
def test_our_sentinel_is_one_to_pylance(local: Address) -> None:
    """Its next writer passes over it, and goes on above."""
    one_row(local).close()
    ShardFencing(local.objects()).claim(SHARD)
    with lance.dataset(local.uri).mem_wal_writer(SHARD, max_wal_flush_interval_ms=1) as writer:
        writer.put(rows_of(2))
    latest = ShardManifests(local.objects()).latest(SHARD)
    assert latest is not None
    assert [g.generation for g in latest.flushed_generations] == [1, 2]
    wal = WalEntries(local.objects())
    entries = wal.describe(SHARD, wal.list_entries(SHARD))
    assert [(e.position, e.writer_epoch, e.fence_sentinel) for e in entries] == [
        (1, 1, False),
        (2, 2, True),
        (3, 3, True),
        (4, 3, False),
    ]
