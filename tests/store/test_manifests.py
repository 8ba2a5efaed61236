"""Manifests of shards and of table versions, in memory, in files and on S3."""

from __future__ import annotations

import random
import struct
import time
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
from tests.support.stores import Address

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
OTHER = ShardId("00000000-0000-4000-8000-000000000000")
HINT = layout.version_hint_path(SHARD)
WRITERS = 8
WAIT_SECONDS_MAX = 30

OpenStore = Callable[[], Objects]


@pytest.fixture
def objects(open_store: OpenStore) -> Objects:
    return open_store()


@pytest.fixture
def shards(objects: Objects) -> ShardManifests:
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


def test_a_shard_without_a_manifest_has_none(objects: Objects, shards: ShardManifests) -> None:
    assert latest_version(shards) is None
    objects.put(f"_mem_wal/{SHARD}/wal/{'0' * 64}.arrow", b"x")
    objects.put(f"_mem_wal/{SHARD}/manifest/notes.txt", b"x")
    assert latest_version(shards) is None


@pytest.mark.parametrize(
    ("hint", "requests_max"),
    [
        (b'{"version":5}', 3),  # idle: hint, manifest, and nothing behind it
        (b'{"version":4}', 4),
        (b'{"version":1}', 7),
        (b'{"version":6}', 4),  # ahead: the listing tells
        (b'{"version":99}', 4),
        (b'{"version":0}', 3),
        (b"{garbage", 3),
        (b"", 4),  # an empty object could be the mark of a folder: boto3 lists it again
        (None, 3),
    ],
)
def test_the_latest_manifest_is_found_whatever_the_hint_says(
    objects: Objects, shards: ShardManifests, hint: bytes | None, requests_max: int
) -> None:
    store_versions(objects, 1, 2, 3, 4, 5)
    if hint is not None:
        objects.put(HINT, hint)
    before = reads(objects)

    assert latest_version(shards) == 5
    assert reads(objects) - before <= requests_max


def test_a_hint_far_behind_costs_a_listing_instead_of_a_probe_each(objects: Objects) -> None:
    store_versions(objects, *range(1, 40))
    objects.put(HINT, layout.encode_version_hint(2))
    before = reads(objects)

    assert latest_version(ShardManifests(objects, probes_max=4)) == 39
    assert reads(objects) - before <= 2 + 4 + 2


def test_with_a_hint_nothing_is_listed(objects: Objects, shards: ShardManifests) -> None:
    stored = shards.claim(SHARD)
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


@pytest.mark.parametrize("hint", [None, 1, 2, 3])
@pytest.mark.parametrize("data", [b"", b"\x08", b"garbage", None], ids=repr)
def test_a_broken_newest_manifest_is_corruption_and_hides_behind_no_older_one(
    objects: Objects, shards: ShardManifests, hint: int | None, data: bytes | None
) -> None:
    store_versions(objects, 1, 2)
    if data is None:  # torn in the middle
        data = objects.get(layout.shard_manifest_path(SHARD, 2))[:-5]
    path = layout.shard_manifest_path(SHARD, 3)
    objects.put(path, data)
    if hint is not None:
        objects.put(HINT, layout.encode_version_hint(hint))

    with pytest.raises(Corruption) as found:
        shards.latest(SHARD)
    for part in (objects.uri, SHARD, path):
        assert part in str(found.value)
    for writing in (
        lambda: shards.claim(SHARD),
        lambda: shards.verify_epoch(SHARD, 1),
    ):
        with pytest.raises(Corruption):
            writing()
    assert shards.versions(SHARD) == [1, 2, 3]


def test_a_manifest_in_another_one_s_place_is_corruption(
    objects: Objects, shards: ShardManifests
) -> None:
    store_versions(objects, 1)
    first = objects.get(layout.shard_manifest_path(SHARD, 1))
    objects.put(layout.shard_manifest_path(SHARD, 2), first)
    objects.put(layout.shard_manifest_path(OTHER, 1), first)

    with pytest.raises(Corruption, match="holds version 1 instead of 2"):
        shards.latest(SHARD)
    with pytest.raises(Corruption, match=f"belongs to shard {SHARD}"):
        shards.latest(OTHER)


# ---- commits


def test_commits_follow_one_another(objects: Objects, shards: ShardManifests) -> None:
    current = None
    for version in range(1, 5):
        proposed = manifest(77, replay_after_wal_entry_position=version)
        current = shards.commit(current, proposed)
        assert current.version == version
        assert shards.latest(SHARD) == current
        assert objects.get(HINT) == layout.encode_version_hint(version)
    assert shards.versions(SHARD) == [1, 2, 3, 4]


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


def test_a_put_that_never_arrived_is_no_win(objects: Objects) -> None:
    first = ShardManifests(objects).commit(None, manifest(1))
    dead = Fault(operation="put_if_absent", error=StoreUnavailable("gone"))

    with pytest.raises(StoreUnavailable, match="gone"):
        ShardManifests(FaultyObjects(objects, dead)).commit(
            first, replace(first, current_generation=2)
        )

    assert ShardManifests(objects).latest(SHARD) == first


def test_a_put_without_a_reply_that_someone_else_beat_is_lost(open_store: OpenStore) -> None:
    objects, other = open_store(), ShardManifests(open_store())
    first = other.commit(None, manifest(1))
    beaten = Fault(
        operation="put_if_absent",
        hook=lambda: other.commit(first, replace(first, current_generation=3)) and None,
        error=StoreUnavailable("gone"),
    )

    with pytest.raises(LostRace):
        ShardManifests(FaultyObjects(objects, beaten)).commit(
            first, replace(first, current_generation=2)
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


def test_every_new_version_is_hinted_at(objects: Objects, shards: ShardManifests) -> None:
    first = shards.commit(None, manifest(1))
    assert objects.get(HINT) == b'{"version":1}'
    shards.commit(first, first)
    assert objects.get(HINT) == b'{"version":2}'
    shards.claim(SHARD)
    assert objects.get(HINT) == b'{"version":3}'


def test_a_hint_that_cannot_be_written_does_not_matter(objects: Objects) -> None:
    failing = Fault(operation="put", path=HINT, nth=None, error=StoreUnavailable("gone"))
    shards = ShardManifests(FaultyObjects(objects, failing))

    second = shards.commit(shards.commit(None, manifest(1)), manifest(1, current_generation=2))

    assert shards.latest(SHARD) == second


@pytest.mark.parametrize(
    "lowered", ["current_generation", "replay_after_wal_entry_position"], ids=str
)
def test_counters_never_fall(shards: ShardManifests, lowered: str) -> None:
    first = shards.commit(
        None, manifest(1, current_generation=5, replay_after_wal_entry_position=5)
    )
    with pytest.raises(InvariantBroken, match=lowered):
        shards.commit(first, replace(first, **{lowered: 4}))
    assert shards.latest(SHARD) == first


@pytest.mark.parametrize("later", [0, 2])
def test_a_shard_s_spec_is_set_when_it_is_made(shards: ShardManifests, later: int) -> None:
    first = shards.commit(None, manifest(1, shard_spec_id=1))
    with pytest.raises(InvariantBroken, match="shard spec 1"):
        shards.commit(first, replace(first, shard_spec_id=later))
    assert shards.claim(SHARD).shard_spec_id == 1


# ---- epochs


def test_epochs_only_rise(shards: ShardManifests) -> None:
    stored = [shards.claim(SHARD) for _ in range(3)][-1]
    for epoch in range(stored.writer_epoch):
        # Whatever else the manifest says, and though its writer read the newest one.
        lower = replace(stored, writer_epoch=epoch, current_generation=9)
        with pytest.raises(Fenced, match=f"{epoch} was superseded by 3"):
            shards.commit(stored, lower)
        with pytest.raises(InvariantBroken, match="writer_epoch falls"):
            invariants.check_shard_manifest(stored, replace(lower, version=4))
    shards.commit(stored, replace(stored, current_generation=9))
    shards.claim(SHARD)
    epochs = [shards.read(SHARD, version).writer_epoch for version in shards.versions(SHARD)]
    assert epochs == [1, 2, 3, 3, 4]


def test_each_claim_is_the_next_epoch(shards: ShardManifests) -> None:
    assert [shards.claim(SHARD).writer_epoch for _ in range(3)] == [1, 2, 3]
    assert shards.claim(OTHER).writer_epoch == 1


def test_a_claim_keeps_everything_else(shards: ShardManifests) -> None:
    generation = FlushedGeneration(generation=1, path="0a1b2c3d_gen_1")
    before = shards.commit(
        None, manifest(1, flushed_generations=(generation,), current_generation=2)
    )

    after = shards.claim(SHARD)

    assert replace(after, writer_epoch=1, version=1, raw=before.raw) == before


def test_a_sealed_shard_is_not_claimed(shards: ShardManifests) -> None:
    claimed = shards.claim(SHARD)
    shards.commit(claimed, replace(claimed, version=2, status=ShardStatus.SEALED))
    with pytest.raises(Refused, match="is SEALED: no writer may claim it"):
        shards.claim(SHARD)
    found = shards.latest(SHARD)
    assert found is not None
    assert (found.version, found.writer_epoch) == (2, 1)


def test_a_claim_that_is_overtaken_gets_an_epoch_of_its_own(open_store: OpenStore) -> None:
    """Both propose the same bytes, so the bytes do not tell whose the stored ones are."""
    other = ShardManifests(open_store())
    theirs: list[ShardManifest] = []
    overtake = Fault(operation="put_if_absent", hook=lambda: theirs.append(other.claim(SHARD)))

    mine = ShardManifests(FaultyObjects(open_store(), overtake)).claim(SHARD)

    assert (theirs[0].writer_epoch, mine.writer_epoch) == (1, 2)


def test_a_claim_that_landed_without_a_reply_is_claimed_again(objects: Objects) -> None:
    retried = Fault(operation="put_if_absent", when="after", error=AlreadyExists("by a retry"))
    lost = Fault(operation="put_if_absent", when="after", error=StoreUnavailable("no reply"))

    # Epoch 1 may be anyone's; one that nobody holds costs nothing.
    assert ShardManifests(FaultyObjects(objects, retried)).claim(SHARD).writer_epoch == 2
    with pytest.raises(StoreUnavailable, match="no reply"):
        ShardManifests(FaultyObjects(objects, lost)).claim(SHARD)
    assert ShardManifests(objects).claim(SHARD).writer_epoch == 4


def test_racing_claims_all_get_different_epochs(open_store: OpenStore) -> None:
    start = Barrier(WRITERS)
    # One claim can't lose more often than there are others.
    most = 3 * WRITERS
    stores = [ShardManifests(open_store(), claim_attempts_max=most) for _ in range(WRITERS)]

    def claim(shards: ShardManifests) -> list[int]:
        start.wait()
        return [shards.claim(SHARD).writer_epoch for _ in range(3)]

    with ThreadPoolExecutor(WRITERS) as threads:
        epochs = [epoch for found in threads.map(claim, stores) for epoch in found]

    assert sorted(epochs) == list(range(1, 3 * WRITERS + 1))


def test_claims_that_keep_losing_end(open_store: OpenStore) -> None:
    other = ShardManifests(open_store())
    always = Fault(operation="put_if_absent", nth=None, hook=lambda: other.claim(SHARD) and None)
    shards = ShardManifests(FaultyObjects(open_store(), always), claim_attempts_max=3)

    with pytest.raises(LostRace, match=r"lost the race for its epoch 3 times"):
        shards.claim(SHARD)


def test_an_epoch_is_verified(shards: ShardManifests) -> None:
    mine = shards.claim(SHARD)
    assert shards.verify_epoch(SHARD, mine.writer_epoch) == mine

    newer = shards.claim(SHARD)

    with pytest.raises(Fenced, match="writer epoch 1 was superseded by 2") as fenced:
        shards.verify_epoch(SHARD, mine.writer_epoch)
    assert (fenced.value.exit_code, fenced.value.outcome) == (4, "held")
    assert shards.verify_epoch(SHARD, newer.writer_epoch) == newer


def test_an_epoch_that_was_never_stored_is_corruption(shards: ShardManifests) -> None:
    with pytest.raises(Corruption, match="epoch 1 was never stored"):
        shards.verify_epoch(SHARD, 1)
    shards.claim(SHARD)
    with pytest.raises(Corruption, match="epoch 2 was never stored"):
        shards.verify_epoch(SHARD, 2)


def test_a_fenced_writer_s_commit_is_refused(shards: ShardManifests) -> None:
    mine = shards.claim(SHARD)
    newer = shards.claim(SHARD)

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
FRAGMENTS = 1500


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


@pytest.mark.parametrize("v2", [True, False])
def test_every_version_is_read_under_both_naming_schemes(address: Address, v2: bool) -> None:
    dataset = make_table(address, enable_v2_manifest_paths=v2)
    mark(dataset, SHARD, 1, 1, 5)
    dataset.create_scalar_index("id", "BTREE")
    mark(dataset, OTHER, 4, 6)
    objects = address.objects()
    manifests = TableManifests(objects)
    expected: dict[int, dict[str, int] | None] = {
        1: None,
        2: {},
        3: {SHARD: 1},
        4: {SHARD: 1},
        5: {SHARD: 1, OTHER: 4},
    }

    assert manifests.versions() == [1, 2, 3, 4, 5] == [v["version"] for v in dataset.versions()]
    assert layout.table_manifest_names(5)[0 if v2 else 1] in {
        info.path.rpartition("/")[2] for info in objects.list("_versions")
    }
    manifests.read(5)  # learns the naming scheme
    for version, merged in expected.items():
        before = reads(objects)
        found = manifests.read(version)
        assert reads(objects) - before == found.requests <= 3
        assert found.version == version
        assert (found.mem_wal and dict(found.mem_wal.merged)) == merged
        assert [entry.name for entry in found.indexes] == (["id_idx"] if version >= 4 else [])
    stamps = [manifests.read(version).timestamp_nanos for version in expected]
    assert stamps == sorted(stamps)
    state = manifests.read(5).mem_wal
    # The index was built at a version that had the first merge only.
    assert state is not None and dict(state.index_catchup["id_idx"]) == {SHARD: 1, OTHER: 0}
    with pytest.raises(Missing, match="version 6 has no manifest"):
        manifests.read(6)


@pytest.mark.parametrize("v2", [True, False])
def test_branches_have_versions_and_progress_of_their_own(address: Address, v2: bool) -> None:
    dataset = make_table(address, enable_v2_manifest_paths=v2)
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


def test_a_large_manifest_costs_at_most_three_requests(address: Address) -> None:
    # Thousands of files are slow on the S3 server; there, a tiny tail makes a manifest large.
    local = not address.uri.startswith("s3://")
    fragments, tail_bytes = (FRAGMENTS, 64 * 1024) if local else (20, 64)
    dataset = make_table(address, range(fragments), max_rows_per_file=1)
    dataset.create_scalar_index("id", "BTREE")
    mark(dataset, SHARD, 3, *range(fragments, fragments + 3))
    objects = address.objects()
    manifests = TableManifests(objects, tail_bytes=tail_bytes)

    for version in manifests.versions():
        before, bytes_before = reads(objects), objects.counts.bytes_read
        found = manifests.read(version)
        assert reads(objects) - before == found.requests <= 3
        assert found.file_bytes > tail_bytes
        assert objects.counts.bytes_read - bytes_before <= found.file_bytes + tail_bytes
    assert found.mem_wal is not None and dict(found.mem_wal.merged) == {SHARD: 3}
    assert [entry.name for entry in found.indexes] == ["id_idx"]


@pytest.mark.parametrize("tail_bytes", [16, 17, 50, 100, 500, 10_000])
def test_the_tail_s_size_does_not_change_what_is_read(address: Address, tail_bytes: int) -> None:
    mark(make_table(address), SHARD, 3, 7)
    expected = TableManifests(address.objects()).read(3)

    with pytest.raises(Corruption, match=r"_versions/.* at most 100 are read"):
        TableManifests(address.objects(), tail_bytes=16, read_bytes_max=100).read(3)
    found = TableManifests(address.objects(), tail_bytes=tail_bytes).read(3)

    assert found.requests <= 3
    assert replace(found, requests=expected.requests) == expected


def test_strangers_among_the_versions_are_passed_over(address: Address) -> None:
    make_table(address)
    objects = address.objects()
    for name in ("readme", "3.manifest.tmp", "x.manifest", ".tmp_1.manifest_5", "d7.manifest"):
        objects.put(f"_versions/{name}", b"x")

    assert TableManifests(objects).versions() == [1, 2]


def test_a_generation_is_a_table_too(address: Address) -> None:
    dataset = make_table(address)
    with dataset.mem_wal_writer(SHARD) as writer:
        writer.put(rows(3))
    objects = address.objects()
    found = ShardManifests(objects).latest(SHARD)
    assert found is not None
    (generation,) = found.flushed_generations
    folder = layout.generation_folder(SHARD, generation.path, generation.generation)

    manifests = TableManifests(objects, root=folder)

    assert manifests.versions()[0] == 1
    assert abs(manifests.read(1).timestamp_nanos - time.time_ns()) < 600 * 10**9


# ---- torn table manifests


def real_manifest(address: Address) -> tuple[str, bytes]:
    mark(make_table(address), SHARD, 3, 7)
    path = f"_versions/{layout.table_manifest_names(3)[0]}"
    return path, address.objects().get(path)


def on_disk(folder: Path) -> Address:
    return Address(uri=str(folder / "table"), storage_options={})


def test_a_torn_manifest_is_corruption(address: Address) -> None:
    path, data = real_manifest(address)
    objects = address.objects()
    for torn in (b"", data[:1], data[: len(data) // 2], data[:-1], b"x" * len(data)):
        objects.put(path, torn)
        with pytest.raises(Corruption) as found:
            TableManifests(objects).read(3)
        assert objects.uri in str(found.value)
        assert path in str(found.value)
    objects.put(path, data)
    assert TableManifests(objects).read(3).mem_wal is not None


@pytest.mark.parametrize("tail_bytes", [16, 64 * 1024])
def test_a_manifest_torn_anywhere_is_corruption(tmp_path: Path, tail_bytes: int) -> None:
    path, data = real_manifest(on_disk(tmp_path))
    memory = MemoryObjects()
    manifests = TableManifests(memory, tail_bytes=tail_bytes)
    for length in range(len(data)):
        memory.put(path, data[:length])
        with pytest.raises(Corruption):
            manifests.read(3)


def test_flipped_bytes_raise_nothing_but_corruption(tmp_path: Path) -> None:
    path, data = real_manifest(on_disk(tmp_path))
    memory, chance = MemoryObjects(), random.Random(7)
    manifests = TableManifests(memory, tail_bytes=16)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= chance.randrange(1, 256)
        memory.put(path, bytes(flipped))
        try:
            assert manifests.read(3).version == 3
        except Corruption as error:
            assert path in str(error)


@pytest.mark.parametrize("position", [-1, 10**6, 2**62, 2**63 - 1])
def test_a_footer_that_points_nowhere_is_corruption(tmp_path: Path, position: int) -> None:
    path, data = real_manifest(on_disk(tmp_path))
    memory = MemoryObjects()
    memory.put(path, data[:-16] + struct.pack("<q", position) + data[-8:])
    with pytest.raises(Corruption, match="points at offset"):
        TableManifests(memory).read(3)


def test_another_version_s_file_is_corruption(address: Address) -> None:
    _, data = real_manifest(address)
    objects = address.objects()
    objects.put(f"_versions/{layout.table_manifest_names(9)[0]}", data)
    with pytest.raises(Corruption, match="holds table version 3 instead of 9"):
        TableManifests(objects).read(9)


# ---- side by side with pylance's writer


def wait_for_generations(shards: ShardManifests, last: int) -> ShardManifest:
    """The writer flushes in the background: wait until it has listed generation `last`."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while True:
        found = shards.latest(SHARD)
        listed = found.flushed_generations if found is not None else ()
        if found is not None and listed and listed[-1].generation >= last:
            return found
        assert time.monotonic() < deadline, f"generation {last} was not flushed: {found}"
        time.sleep(0.02)


def ids_of(address: Address, generation: FlushedGeneration) -> list[int]:
    folder = layout.generation_folder(SHARD, generation.path, generation.generation)
    opened = lance.dataset(f"{address.uri}/{folder}", storage_options=address.storage_options)
    return sorted(opened.to_table(columns=["id"])["id"].to_pylist())


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


def test_a_live_writer_goes_on_after_a_manifest_of_ours(address: Address) -> None:
    """Its flushes before, between and after our commits are all there; nothing is lost."""
    writer = make_table(address).mem_wal_writer(SHARD, max_memtable_batches=2)
    shards = ShardManifests(address.objects())
    seen: dict[int, list[int]] = {}
    put, dropped = 0, []

    for turn in range(1, 4):
        for _ in range(4):  # two generations
            put += 1
            writer.put(rows(100 + put))
        current = wait_for_generations(shards, 2 * turn - 1)
        for generation in current.flushed_generations:
            seen[generation.generation] = ids_of(address, generation)
        dropped.append(current.flushed_generations[0].generation)
        while True:
            try:
                shards.commit(
                    current, replace(current, flushed_generations=current.flushed_generations[1:])
                )
                break
            except LostRace:
                current = shards.latest(SHARD)
                assert current is not None
    writer.put(rows(99))
    writer.close()

    last = shards.latest(SHARD)
    assert last is not None
    assert last.writer_epoch == 1
    for generation in last.flushed_generations:
        seen[generation.generation] = ids_of(address, generation)
    assert sorted(seen) == list(range(1, last.current_generation))
    listed = {g.generation for g in last.flushed_generations}
    assert listed == set(seen) - set(dropped)
    assert sorted(i for ids in seen.values() for i in ids) == [99, *range(101, 101 + put)]


def test_a_claim_of_ours_fences_pylance_s_writer(address: Address) -> None:
    dataset = make_table(address)
    # A MemTable that fills up would be flushed in the background, where the refusal gets lost.
    writer = dataset.mem_wal_writer(SHARD)
    writer.put(rows(5))
    shards = ShardManifests(address.objects())

    mine = shards.claim(SHARD)
    assert mine.writer_epoch == 2
    with pytest.raises(OSError, match="fenced"):
        writer.put(rows(6))
        writer.close()
    assert shards.verify_epoch(SHARD, 2) == mine

    # And the other way round: pylance's next writer fences us, and replays what is in the WAL.
    with dataset.mem_wal_writer(SHARD):
        pass
    with pytest.raises(Fenced):
        shards.verify_epoch(SHARD, 2)
    last = shards.latest(SHARD)
    assert last is not None
    assert last.writer_epoch == 3
    assert 5 in [i for g in last.flushed_generations for i in ids_of(address, g)]


def test_pylance_goes_on_from_a_shard_that_we_claimed_first(address: Address) -> None:
    dataset = make_table(address)
    shards = ShardManifests(address.objects())
    shards.claim(SHARD)

    with dataset.mem_wal_writer(SHARD) as writer:
        writer.put(rows(5))

    last = shards.latest(SHARD)
    assert last is not None
    assert last.writer_epoch == 2
    assert [ids_of(address, g) for g in last.flushed_generations] == [[5]]
