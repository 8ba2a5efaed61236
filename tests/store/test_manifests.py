"""Manifests of shards and of table versions, in memory, in files and on S3."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal import invariants
from memwal.errors import (
    AlreadyExists,
    Corruption,
    LostRace,
    Missing,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
)
from memwal.format import codec, layout
from memwal.invariants import InvariantBroken
from memwal.model import FlushedGeneration, ShardId, ShardManifest, ShardStatus
from memwal.ports import Objects
from memwal.store.shards.manifests import Fenced, ShardManifests
from memwal.store.tables.manifests import TableManifests
from memwal.testing import Fault, FaultyObjects, MemoryObjects
from tests.support.fencing import claim_epoch, verify_epoch
from tests.support.stores import Address

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
OTHER = ShardId("00000000-0000-4000-8000-000000000000")
HINT = layout.version_hint_path(SHARD)
WRITERS = 4
WAIT_SECONDS_MAX = 30

OpenStore = Callable[[], Objects]


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def shards(objects: MemoryObjects) -> ShardManifests:
    return ShardManifests(objects)


def manifest(version: int, **changes: Any) -> ShardManifest:
    first = ShardManifest(shard_id=SHARD, version=version, writer_epoch=1, current_generation=1)
    return replace(first, **changes)


def store_versions(objects: Objects, *versions: int) -> None:
    """Manifests without a hint, each with its version as its WAL position."""
    for version in versions:
        data = codec.encode_shard_manifest(
            manifest(version, replay_after_wal_entry_position=version)
        )
        objects.put_if_absent(layout.shard_manifest_path(SHARD, version), data)


def reads(objects: Objects) -> int:
    return objects.counts.list + objects.counts.get


def latest_version(shards: ShardManifests) -> int | None:
    found = shards.latest(SHARD)
    assert found is None or found.replay_after_wal_entry_position == found.version
    return None if found is None else found.version


# ---- the latest manifest of a shard


def test_a_shard_without_a_manifest_has_none(open_store: OpenStore) -> None:
    objects = open_store()
    objects.put(f"_mem_wal/{SHARD}/wal/{'0' * 64}.arrow", b"x")
    objects.put(f"_mem_wal/{SHARD}/manifest/notes.txt", b"x")
    assert latest_version(ShardManifests(objects)) is None


@pytest.mark.parametrize(
    ("hint", "requests_max"),
    [
        (b'{"version":5}', 3),  # idle: hint, manifest, and nothing behind it
        (b'{"version":1}', 7),
        (b'{"version":6}', 4),  # ahead: the listing tells
        (b"{garbage", 3),
        (b"", 4),  # an empty object could be the mark of a folder: boto3 lists it again
        (None, 3),
    ],
)
def test_the_latest_manifest_is_found_whatever_the_hint_says(
    open_store: OpenStore, hint: bytes | None, requests_max: int
) -> None:
    objects = open_store()
    store_versions(objects, 1, 2, 3, 4, 5)
    if hint is not None:
        objects.put(HINT, hint)
    before = reads(objects)

    assert latest_version(ShardManifests(objects)) == 5
    assert reads(objects) - before <= requests_max


def test_a_hint_far_behind_costs_a_listing_instead_of_a_probe_each(objects: Objects) -> None:
    store_versions(objects, *range(1, 40))
    objects.put(HINT, layout.encode_version_hint(2))
    before = reads(objects)

    assert latest_version(ShardManifests(objects, probes_max=4)) == 39
    assert reads(objects) - before <= 2 + 4 + 2


def test_with_a_hint_nothing_is_listed(objects: Objects, shards: ShardManifests) -> None:
    stored = claim_epoch(shards, SHARD)
    for _ in range(3):
        stored = shards.commit(stored, stored)
    objects.put(HINT, b'{"version":2}')
    unlisted = Fault(operation="list", path="*", nth=None, error=StoreUnavailable("no listing"))
    assert ShardManifests(FaultyObjects(objects, unlisted)).latest(SHARD) == stored


def test_versions_that_were_deleted_are_not_missed(
    objects: Objects, shards: ShardManifests
) -> None:
    store_versions(objects, 7, 8)  # the older ones were collected
    assert latest_version(shards) == 8
    objects.put(HINT, layout.encode_version_hint(3))
    assert latest_version(shards) == 8
    assert shards.versions(SHARD) == [7, 8]
    with pytest.raises(Missing, match=SHARD):
        shards.read(SHARD, 3)


@pytest.mark.parametrize("hint", [None, 1, 3])
def test_a_broken_newest_manifest_is_corruption_and_hides_behind_no_older_one(
    objects: MemoryObjects, shards: ShardManifests, hint: int | None
) -> None:
    store_versions(objects, 1, 2)
    path = layout.shard_manifest_path(SHARD, 3)
    objects.put(path, objects.get(layout.shard_manifest_path(SHARD, 2))[:-5])
    if hint is not None:
        objects.put(HINT, layout.encode_version_hint(hint))

    with pytest.raises(Corruption) as found:
        shards.latest(SHARD)
    for part in (objects.uri, SHARD, path):
        assert part in str(found.value)
    for writing in (lambda: claim_epoch(shards, SHARD), lambda: verify_epoch(shards, SHARD, 1)):
        with pytest.raises(Corruption):
            writing()
    assert shards.versions(SHARD) == [1, 2, 3]


# ---- commits


def test_a_commit_that_lost_its_race_changes_nothing(open_store: OpenStore) -> None:
    one, other = ShardManifests(open_store()), ShardManifests(open_store())
    first = one.commit(None, manifest(1))
    won = one.commit(first, replace(first, current_generation=2))

    with pytest.raises(LostRace, match="manifest version 2 was written by someone else"):
        other.commit(first, replace(first, current_generation=3))

    assert other.latest(SHARD) == won


@pytest.mark.parametrize(
    "reply", [StoreUnavailable("the reply was lost"), AlreadyExists("a retry found it")], ids=repr
)
def test_a_put_that_landed_without_a_reply_counts_as_won(
    objects: Objects, reply: Exception
) -> None:
    first = ShardManifests(objects).commit(None, manifest(1))
    lost = Fault(operation="put_if_absent", when="after", error=reply)
    proposed = replace(first, current_generation=2)

    won = ShardManifests(FaultyObjects(objects, lost)).commit(first, proposed)

    assert won.version == 2
    assert ShardManifests(objects).latest(SHARD) == won


def test_a_put_that_never_arrived_is_no_win(objects: MemoryObjects) -> None:
    """And where someone else has the name by then, the race is lost."""
    shards = ShardManifests(objects)
    first = shards.commit(None, manifest(1))
    second = replace(first, current_generation=2)
    dead = Fault(operation="put_if_absent", error=StoreUnavailable("gone"))
    with pytest.raises(StoreUnavailable, match="gone"):
        ShardManifests(FaultyObjects(objects, dead)).commit(first, second)
    assert shards.latest(SHARD) == first
    beaten = replace(dead, hook=lambda: shards.commit(first, second) and None)
    with pytest.raises(LostRace):
        ShardManifests(FaultyObjects(objects, beaten)).commit(
            first, replace(first, current_generation=3)
        )


def test_an_outcome_that_cannot_be_looked_up_is_said_to_be_unknown(objects: Objects) -> None:
    first = ShardManifests(objects).commit(None, manifest(1))
    faults = [
        Fault(operation="put_if_absent", when="after", error=StoreUnavailable("no reply")),
        Fault(operation="get", nth=None, error=StoreUnavailable("nor this time")),
    ]

    with pytest.raises(OutcomeUnknown, match=SHARD):
        ShardManifests(FaultyObjects(objects, *faults)).commit(
            first, replace(first, current_generation=2)
        )


def test_commits_follow_one_another_and_every_new_version_is_hinted_at(
    objects: MemoryObjects, shards: ShardManifests
) -> None:
    current = None
    for version in range(1, 5):
        proposed = manifest(77, replay_after_wal_entry_position=version)
        current = shards.commit(current, proposed)
        assert current.version == version
        assert shards.latest(SHARD) == current
        assert objects.get(HINT) == layout.encode_version_hint(version)
    assert shards.versions(SHARD) == [1, 2, 3, 4]
    claim_epoch(shards, SHARD)
    assert objects.get(HINT) == layout.encode_version_hint(5)


def test_a_hint_that_cannot_be_written_does_not_matter(objects: Objects) -> None:
    failing = Fault(operation="put", path=HINT, nth=None, error=StoreUnavailable("gone"))
    shards = ShardManifests(FaultyObjects(objects, failing))

    second = shards.commit(shards.commit(None, manifest(1)), manifest(1, current_generation=2))

    assert shards.latest(SHARD) == second


def test_a_commit_that_breaks_an_invariant_is_refused_as_the_spec_is_set_once(
    shards: ShardManifests,
) -> None:
    first = shards.commit(None, manifest(1, current_generation=5, shard_spec_id=1))
    for name, value, why in (
        ("current_generation", 4, "current_generation"),
        ("shard_spec_id", 0, "shard spec 1"),
        ("shard_spec_id", 2, "shard spec 1"),
    ):
        with pytest.raises(InvariantBroken, match=why):
            shards.commit(first, replace(first, **{name: value}))
    assert shards.latest(SHARD) == first
    assert claim_epoch(shards, SHARD).shard_spec_id == 1


# ---- epochs


def test_epochs_only_rise(shards: ShardManifests) -> None:
    stored = [claim_epoch(shards, SHARD) for _ in range(3)][-1]
    for epoch in range(stored.writer_epoch):
        # Whatever else the manifest says, and though its writer read the newest one.
        lower = replace(stored, writer_epoch=epoch, current_generation=9)
        with pytest.raises(Fenced, match=f"{epoch} was superseded by 3"):
            shards.commit(stored, lower)
        with pytest.raises(InvariantBroken, match="writer_epoch falls"):
            invariants.check_shard_manifest(stored, replace(lower, version=4))
    shards.commit(stored, replace(stored, current_generation=9))
    claim_epoch(shards, SHARD)
    epochs = [shards.read(SHARD, version).writer_epoch for version in shards.versions(SHARD)]
    assert epochs == [1, 2, 3, 3, 4]


def test_each_claim_is_the_next_epoch_and_keeps_everything_else(shards: ShardManifests) -> None:
    generation = FlushedGeneration(generation=1, path="0a1b2c3d_gen_1")
    before = shards.commit(
        None, manifest(1, flushed_generations=(generation,), current_generation=2)
    )
    after = claim_epoch(shards, SHARD)
    assert replace(after, writer_epoch=1, version=1, raw=before.raw) == before
    assert [claim_epoch(shards, SHARD).writer_epoch for _ in range(2)] == [3, 4]
    assert claim_epoch(shards, OTHER).writer_epoch == 1


def test_a_sealed_shard_is_not_claimed(shards: ShardManifests) -> None:
    claimed = claim_epoch(shards, SHARD)
    shards.commit(claimed, replace(claimed, version=2, status=ShardStatus.SEALED))
    with pytest.raises(Refused, match="is SEALED: no writer may claim it"):
        claim_epoch(shards, SHARD)
    found = shards.latest(SHARD)
    assert found is not None
    assert (found.version, found.writer_epoch) == (2, 1)


def test_a_claim_that_is_overtaken_gets_an_epoch_of_its_own(
    objects: MemoryObjects, shards: ShardManifests
) -> None:
    """Both propose the same bytes, so the bytes do not tell whose the stored ones are."""
    theirs: list[ShardManifest] = []
    overtake = Fault(
        operation="put_if_absent", hook=lambda: theirs.append(claim_epoch(shards, SHARD))
    )

    mine = claim_epoch(ShardManifests(FaultyObjects(objects, overtake)), SHARD)

    assert (theirs[0].writer_epoch, mine.writer_epoch) == (1, 2)


def test_a_claim_that_landed_without_a_reply_is_claimed_again(objects: Objects) -> None:
    retried = Fault(operation="put_if_absent", when="after", error=AlreadyExists("by a retry"))
    lost = Fault(operation="put_if_absent", when="after", error=StoreUnavailable("no reply"))

    # Epoch 1 may be anyone's; one that nobody holds costs nothing.
    assert claim_epoch(ShardManifests(FaultyObjects(objects, retried)), SHARD).writer_epoch == 2
    with pytest.raises(StoreUnavailable, match="no reply"):
        claim_epoch(ShardManifests(FaultyObjects(objects, lost)), SHARD)
    assert claim_epoch(ShardManifests(objects), SHARD).writer_epoch == 4


def test_racing_claims_all_get_different_epochs(open_store: OpenStore) -> None:
    start = Barrier(WRITERS)
    # One claim can't lose more often than there are others.
    most = 3 * WRITERS
    stores = [ShardManifests(open_store()) for _ in range(WRITERS)]

    def claim(shards: ShardManifests) -> list[int]:
        start.wait()
        return [claim_epoch(shards, SHARD, most).writer_epoch for _ in range(3)]

    with ThreadPoolExecutor(WRITERS) as threads:
        epochs = [epoch for found in threads.map(claim, stores) for epoch in found]

    assert sorted(epochs) == list(range(1, 3 * WRITERS + 1))


def test_claims_that_keep_losing_end(objects: MemoryObjects, shards: ShardManifests) -> None:
    always = Fault(
        operation="put_if_absent", nth=None, hook=lambda: claim_epoch(shards, SHARD) and None
    )
    loser = ShardManifests(FaultyObjects(objects, always))

    with pytest.raises(LostRace, match=r"lost the race for its epoch 3 times"):
        claim_epoch(loser, SHARD, 3)


def test_an_epoch_is_verified(shards: ShardManifests) -> None:
    with pytest.raises(Corruption, match="epoch 1 was never stored"):
        verify_epoch(shards, SHARD, 1)
    mine = claim_epoch(shards, SHARD)
    assert verify_epoch(shards, SHARD, mine.writer_epoch) == mine
    with pytest.raises(Corruption, match="epoch 2 was never stored"):
        verify_epoch(shards, SHARD, 2)

    newer = claim_epoch(shards, SHARD)
    with pytest.raises(Fenced, match="writer epoch 1 was superseded by 2") as fenced:
        verify_epoch(shards, SHARD, mine.writer_epoch)
    assert (fenced.value.exit_code, fenced.value.outcome) == (4, "held")
    assert verify_epoch(shards, SHARD, newer.writer_epoch) == newer

    with pytest.raises(LostRace):
        shards.commit(mine, replace(mine, current_generation=2))
    with pytest.raises(Fenced):
        shards.commit(newer, replace(newer, writer_epoch=mine.writer_epoch))
    assert shards.latest(SHARD) == newer


# ---- versions of a table that pylance wrote

KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=KEY), pa.field("v", pa.int64())]
)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": ids}, schema=SCHEMA)


def make_table(address: Address, ids: range = range(2), **options: Any) -> Any:
    dataset = lance.write_dataset(
        rows(*ids), address.uri, storage_options=address.storage_options, **options
    )
    dataset.initialize_mem_wal()
    return dataset


def mark(dataset: Any, shard: ShardId, generation: int, *ids: int) -> None:
    builder = dataset.merge_insert(["id"]).when_matched_update_all().when_not_matched_insert_all()
    builder.mark_sstables_as_compacted([lance.mem_wal.CompactedSsTable(shard, generation)])
    builder.execute(rows(*ids))


@pytest.mark.integration
@pytest.mark.parametrize("v2", [True, False])
def test_every_version_is_read_under_both_naming_schemes(address: Address, v2: bool) -> None:
    dataset = make_table(address, enable_v2_manifest_paths=v2)
    mark(dataset, SHARD, 1, 1, 5)
    dataset.create_scalar_index("id", "BTREE")
    mark(dataset, OTHER, 4, 6)
    objects = address.objects()
    manifests = TableManifests(objects)
    expected = [None, {}, {SHARD: 1}, {SHARD: 1}, {SHARD: 1, OTHER: 4}]

    assert manifests.versions() == [1, 2, 3, 4, 5] == [v["version"] for v in dataset.versions()]
    assert layout.table_manifest_names(5)[0 if v2 else 1] in {
        info.path.rpartition("/")[2] for info in objects.list("_versions")
    }
    manifests.read(5)  # learns the naming scheme
    for version, merged in enumerate(expected, 1):
        before = reads(objects)
        found = manifests.read(version)
        assert reads(objects) - before == found.requests <= 3
        assert found.version == version
        assert (found.mem_wal and dict(found.mem_wal.merged)) == merged
        assert [entry.name for entry in found.indexes] == (["id_idx"] if version >= 4 else [])
    stamps = [manifests.read(version).timestamp_nanos for version in range(1, 6)]
    assert stamps == sorted(stamps)
    state = manifests.read(5).mem_wal
    # The index was built at a version that had the first merge only.
    assert state is not None and dict(state.index_catchup["id_idx"]) == {SHARD: 1, OTHER: 0}
    with pytest.raises(Missing, match="version 6 has no manifest"):
        manifests.read(6)


@pytest.mark.integration
def test_branches_have_versions_and_progress_of_their_own(address: Address) -> None:
    dataset = make_table(address, enable_v2_manifest_paths=False)
    branch = dataset.create_branch("dev/x")
    mark(branch, SHARD, 9, 7)
    manifests = TableManifests(address.objects())

    assert manifests.versions() == [1, 2]
    # A branch has V2 names, whatever the table has.
    assert manifests.versions("dev/x") == [2, 3]
    assert manifests.versions("dev") == manifests.versions("nothing") == []
    found = manifests.read(3, branch="dev/x")
    assert (found.branch, found.mem_wal and dict(found.mem_wal.merged)) == ("dev/x", {SHARD: 9})
    main = manifests.read(2)
    assert (main.branch, main.mem_wal and dict(main.mem_wal.merged)) == (None, {})
    assert manifests.read(2, branch="dev/x").branch == "dev/x"
    with pytest.raises(Missing, match="tree/dev/x/_versions"):
        manifests.read(4, branch="dev/x")


@pytest.mark.integration
def test_detached_versions_are_listed_and_read(address: Address) -> None:
    dataset = make_table(address)
    options = {"storage_options": address.storage_options}
    fragment = lance.fragment.LanceFragment.create(address.uri, rows(8), **options)
    detached = lance.LanceDataset.commit(
        address.uri,
        lance.LanceOperation.Append([fragment]),
        read_version=dataset.version,
        detached=True,
        **options,
    )
    manifests = TableManifests(address.objects())

    assert manifests.versions() == [1, 2, detached.version]
    assert layout.is_detached(detached.version)
    found = manifests.read(detached.version)
    assert found.version == detached.version
    assert found.mem_wal is not None
    with pytest.raises(Missing):
        manifests.read(detached.version ^ 1)


@pytest.mark.integration
def test_a_large_manifest_costs_at_most_three_requests(address: Address) -> None:
    tail_bytes = 64
    dataset = make_table(address, range(20), max_rows_per_file=1)
    dataset.create_scalar_index("id", "BTREE")
    mark(dataset, SHARD, 3, *range(20, 23))
    objects = address.objects()
    manifests = TableManifests(objects, tail_bytes=tail_bytes)

    for version in manifests.versions():
        before, bytes_before = reads(objects), objects.counts.bytes_read
        found = manifests.read(version)
        assert reads(objects) - before == found.requests <= 3
        assert found.file_bytes > tail_bytes
        assert objects.counts.bytes_read - bytes_before <= found.file_bytes + tail_bytes
        whole = TableManifests(objects).read(version)
        assert replace(found, requests=0) == replace(whole, requests=0)
    assert found.mem_wal is not None and dict(found.mem_wal.merged) == {SHARD: 3}
    assert [entry.name for entry in found.indexes] == ["id_idx"]
    with pytest.raises(Corruption, match=r"_versions/.* at most 100 are read"):
        TableManifests(objects, tail_bytes=16, read_bytes_max=100).read(3)


@pytest.mark.integration
def test_a_generation_is_a_table_too(address: Address) -> None:
    dataset = make_table(address)
    with dataset.mem_wal_writer(SHARD) as writer:
        writer.put(rows(3))
    objects = address.objects()
    found = ShardManifests(objects).latest(SHARD)
    assert found is not None
    (generation,) = found.flushed_generations
    folder = layout.generation_folder(SHARD, generation.path, generation.generation)
    assert TableManifests(objects, root=folder).read(1).version == 1


# ---- torn table manifests


def real_manifest(folder: Path) -> tuple[str, bytes]:
    address = Address(uri=str(folder / "table"), storage_options={})
    mark(make_table(address), SHARD, 3, 7)
    path = f"_versions/{layout.table_manifest_names(3)[0]}"
    return path, address.objects().get(path)


@pytest.mark.integration
def test_a_torn_manifest_is_corruption(tmp_path: Path) -> None:
    path, data = real_manifest(tmp_path)
    objects = MemoryObjects()
    for torn in (b"", data[:1], data[: len(data) // 2], data[:-1], b"x" * len(data)):
        objects.put(path, torn)
        with pytest.raises(Corruption) as found:
            TableManifests(objects).read(3)
        assert objects.uri in str(found.value)
        assert path in str(found.value)
    objects.put(path, data)
    assert TableManifests(objects).read(3).mem_wal is not None
    objects.put(f"_versions/{layout.table_manifest_names(9)[0]}", data)
    with pytest.raises(Corruption, match="holds table version 3 instead of 9"):
        TableManifests(objects).read(9)


@pytest.mark.integration
def test_a_footer_that_points_nowhere_is_corruption(tmp_path: Path) -> None:
    path, data = real_manifest(tmp_path)
    objects = MemoryObjects()
    for position in (-1, 10**6, 2**62, 2**63 - 1):
        objects.put(path, data[:-16] + struct.pack("<q", position) + data[-8:])
        with pytest.raises(Corruption, match="points at offset"):
            TableManifests(objects).read(3)


@pytest.mark.integration
def test_every_manifest_that_pylance_wrote_is_read_and_written_again_byte_for_byte(
    address: Address,
) -> None:
    dataset = make_table(address)
    for at in range(3):
        with dataset.mem_wal_writer(SHARD) as writer:
            writer.put(rows(10 + at, 20 + at))
            writer.delete(pa.table({"id": [10 + at]}))
    objects = address.objects()
    shards = ShardManifests(objects)
    versions = shards.versions(SHARD)

    assert versions == list(range(1, len(versions) + 1))
    for version in versions:
        found = shards.read(SHARD, version)
        stored = objects.get(layout.shard_manifest_path(SHARD, version))
        assert found.raw == stored
        assert codec.encode_shard_manifest(found) == stored
        assert codec.encode_shard_manifest(replace(found, raw=b"")) == stored
    latest = shards.latest(SHARD)
    assert latest == found
    assert latest.writer_epoch == 3
    assert [g.generation for g in latest.flushed_generations] == [1, 2, 3]
    assert objects.get(HINT) == layout.encode_version_hint(latest.version)
