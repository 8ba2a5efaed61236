"""What a process remembers of shard manifests: never more than a listing shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.format import layout
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.store.shards.manifests import ManifestMemories, ManifestMemory
from tests.support import builders
from tests.support.builders import Put
from tests.support.stores import Address

ONE = ShardId("11111111-1111-4111-8111-111111111111")
TWO = ShardId("22222222-2222-4222-8222-222222222222")


def manifest(shard: ShardId, version: int = 3) -> ShardManifest:
    return ShardManifest(shard_id=shard, version=version, writer_epoch=1, current_generation=1)


def file(shard: ShardId, version: int = 3) -> StoredFile:
    path = layout.shard_manifest_path(shard, version)
    return StoredFile(path=path, size_bytes=30, modified_at_nanos=5, etag="a")


@pytest.mark.parametrize(
    "other", [{"size_bytes": 31}, {"modified_at_nanos": 6}, {"etag": "b"}, {"path": "x"}]
)
def test_a_file_that_is_listed_otherwise_is_not_known(other: dict[str, object]) -> None:
    memory = ManifestMemory()
    memory.keep(file(ONE), manifest(ONE))
    assert memory.recall(ONE, file(ONE)) == manifest(ONE)
    assert memory.recall(ONE, replace(file(ONE), **other)) is None
    assert memory.recall(TWO, file(ONE)) is None


def test_what_a_listing_does_not_tell_from_others_is_not_known() -> None:
    """As of a table that is created again within a second, on a store without etags."""
    memory, listed = ManifestMemory(), replace(file(ONE), etag="")
    memory.keep(listed, manifest(ONE))
    assert memory.recall(ONE, listed) is None
    assert (len(memory), memory.unsaved) == (0, 0)


def test_only_the_last_manifest_of_shards_that_are_there_is_kept() -> None:
    memory = ManifestMemory()
    for version in (3, 4):
        memory.keep(file(ONE, version), manifest(ONE, version))
    memory.keep(file(TWO), manifest(TWO))
    assert len(memory) == 2
    assert memory.recall(ONE, file(ONE, 3)) is None
    memory.forget_others({TWO})
    assert len(memory) == 1
    assert memory.recall(ONE, file(ONE, 4)) is None


def test_tables_that_nobody_asks_for_are_forgotten_first() -> None:
    memories = ManifestMemories(manifests_max=2)
    first = memories.recall("s3", "a")
    first.keep(file(ONE), manifest(ONE))
    assert memories.recall("s3", "a") is first
    assert memories.recall("another", "a") is not first
    memories.recall("s3", "b").keep(file(ONE), manifest(ONE))
    memories.recall("s3", "a")
    memories.recall("s3", "c").keep(file(ONE), manifest(ONE))
    assert memories.recall("s3", "a") is first
    assert len(memories.recall("s3", "b")) == 0
    first.keep(file(TWO), manifest(TWO))
    first.keep(replace(file(TWO), path="more"), manifest(ShardId("more")))
    assert memories.recall("s3", "a") is first  # the one that is asked for stays


@pytest.mark.integration
def test_a_second_view_reads_what_is_new_and_what_is_remembered_is_no_evidence(
    address: Address,
) -> None:
    table = builders.make_table(
        address.uri, rows=range(3), shards=3, options=address.storage_options
    )
    for number, shard in enumerate(table.shards):
        table.flush(shard, Put([number], number))
    first = table.stores.views.table()
    stores = table.stores  # as a later run in the same process has them
    on_s3, counts = stores.objects.page_objects > 0, stores.objects.counts
    assert stores.views.table() == first
    # The version's own manifest, and on local files each shard's: nothing is listed there.
    assert counts.get == (1 if on_s3 else 1 + 3 * 3)
    # A look that others delete by reads each shard's manifest, whatever is known.
    before = counts.get
    assert stores.views.table(probed=True) == first
    assert counts.get - before == 3 * 3
    before = counts.get
    assert stores.views.shard(table.shards[0]).shards
    assert counts.get - before == 3
    table.flush(table.shards[0], Put([7], 7))
    before = counts.get
    found = {s.shard_id: [g.generation for g in s.pending] for s in stores.views.table().shards}
    assert found == {table.shards[0]: [1, 2], table.shards[1]: [1], table.shards[2]: [1]}
    if on_s3:
        assert counts.get - before == 1
