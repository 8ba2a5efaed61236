"""Shards found by one listing, on every store: the same as by their hints, for fewer requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from memwal.errors import Corruption
from memwal.format import codec, layout
from memwal.model import ShardId, ShardManifest
from memwal.ports import Objects
from memwal.store.shards.listing import (
    list_shards,
    manifest_versions,
    newest_manifest,
    wal_entries,
)
from memwal.store.shards.manifests import ManifestMemory, ShardManifests
from memwal.testing import MemoryObjects
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.stores import Address

OpenStore = Callable[[], Objects]

ONE = ShardId("11111111-1111-4111-8111-111111111111")
TWO = ShardId("22222222-2222-4222-8222-222222222222")


def put_manifests(objects: Objects, shard: ShardId, versions: int) -> None:
    for version in range(1, versions + 1):
        manifest = ShardManifest(
            shard_id=shard, version=version, writer_epoch=version, current_generation=1
        )
        data = codec.encode_shard_manifest(manifest)
        objects.put(layout.shard_manifest_path(shard, version), data)


def read_newest(objects: Objects, shard: ShardId) -> ShardManifest | None:
    file = newest_manifest(shard, objects.list(layout.MEM_WAL))
    return ShardManifests(objects).newest(shard, file, ManifestMemory())


def test_a_listing_tells_shards_strangers_manifests_and_wals(open_store: OpenStore) -> None:
    objects = open_store()
    put_manifests(objects, ONE, 3)
    objects.put(layout.wal_entry_path(ONE, 2), b"two")
    objects.put(layout.wal_entry_path(ONE, 1), b"one")
    objects.put(f"{layout.wal_folder(ONE)}/not-an-entry", b"")
    objects.put(f"{layout.manifest_folder(ONE)}/deeper/{'0' * 64}.binpb", b"")
    objects.put(layout.version_hint_path(TWO), b"{}")
    objects.put(f"{layout.MEM_WAL}/elsewhere/file", b"")
    objects.put(f"{layout.MEM_WAL}/ABCDEF00-0000-4000-8000-000000000000/manifest/1", b"")
    objects.put(f"{layout.MEM_WAL}/no-folder", b"")
    for listing in (list_shards(objects, folders_only=True), list_shards(objects)):
        assert listing.shards == [ONE, TWO]
        assert listing.strangers == ["ABCDEF00-0000-4000-8000-000000000000", "elsewhere"]
    assert listing.is_whole == (objects.page_objects > 0)
    files = listing.files(ONE)
    assert sorted(manifest_versions(ONE, files)) == [1, 2, 3]
    assert [(p, i.size_bytes) for p, i in wal_entries(ONE, files)] == [(1, 3), (2, 3)]
    assert manifest_versions(TWO, listing.files(TWO)) == []
    assert read_newest(objects, ONE) == ShardManifests(objects).read(ONE, 3)
    assert read_newest(objects, TWO) is None


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_what_may_not_be_a_whole_page_is_listed_shard_by_shard(more: int) -> None:
    objects = MemoryObjects()
    put_manifests(objects, ONE, 1)
    for position in range(1, objects.page_objects + more):
        objects.put(layout.wal_entry_path(TWO, position), b"")
    listing = list_shards(objects)
    assert listing.is_whole == (more < 0)
    assert listing.shards == [ONE, TWO]
    assert len(wal_entries(TWO, listing.files(TWO))) == objects.page_objects + more - 1


def test_a_manifest_that_is_gone_since_the_listing_is_looked_for_anew() -> None:
    """And one that is broken hides behind no older one."""
    objects = MemoryObjects()
    put_manifests(objects, ONE, 3)
    file = newest_manifest(ONE, objects.list(layout.MEM_WAL))
    objects.delete([layout.shard_manifest_path(ONE, 3)])
    shards = ShardManifests(objects)
    assert shards.newest(ONE, file, ManifestMemory()) == shards.read(ONE, 2)
    objects.put(layout.shard_manifest_path(ONE, 3), b"\xff\xff")
    with pytest.raises(Corruption):
        read_newest(objects, ONE)


@pytest.fixture
def table(address: Address) -> Table:
    """Four shards, with a generation each."""
    made = builders.make_table(
        address.uri, rows=range(3), shards=4, options=address.storage_options
    )
    for number, shard in enumerate(made.shards):
        made.flush(shard, Put([number], number))
    return made


@pytest.mark.integration
def test_a_view_costs_a_request_a_shard_and_a_few(table: Table) -> None:
    stores = table.stores
    by_hint = [stores.shard_manifests.latest(shard) for shard in sorted(table.shards)]
    counts = stores.objects.counts
    before = counts.as_dict()
    view = stores.views.table()
    asked = {name: value - before[name] for name, value in counts.as_dict().items()}
    assert [shard.manifest for shard in view.shards] == by_hint
    on_s3 = stores.objects.page_objects > 0
    # The root's folders, the shards; the version's own manifest, and one or three a shard.
    assert (asked["list"], asked["get"]) == (2, 1 + 4 * (1 if on_s3 else 3))
    before = counts.as_dict()
    assert stores.views.table(probed=True) == view
    # The version's own manifest is known.
    assert counts.get - before["get"] == 4 * 3


@pytest.mark.integration
def test_a_look_with_wals_is_the_view_and_the_listings(table: Table) -> None:
    plain = table.stores.views.table()
    for reached in (False, True):
        view, listed = table.stores.views.table_and_wal(reached=reached)
        assert view.file_bytes
        assert all(shard.oldest_pending_flushed_at_nanos for shard in view.shards)
        shards = tuple(replace(s, oldest_pending_flushed_at_nanos=None) for s in view.shards)
        assert replace(view, file_bytes=None, shards=shards) == plain
        entries = {shard: table.stores.wal.list_entries(shard) for shard in table.shards}
        assert {shard: files.wal for shard, files in listed.items()} == entries
        versions = {s.shard_id: s.manifest.version for s in view.shards}
        assert {shard: files.manifests for shard, files in listed.items()} == versions


@pytest.mark.parametrize(("shards", "is_whole"), [(40, True), (2, False)])
def test_more_pages_are_read_where_they_tell_of_many_shards(shards: int, is_whole: bool) -> None:
    objects = MemoryObjects()
    ids = [ShardId(str(UUID(int=number))) for number in range(shards)]
    for number in range(2 * objects.page_objects + 1):
        objects.put(layout.wal_entry_path(ids[number % shards], number), b"")
    listing = list_shards(objects, pages_max=lambda listed: max(1, listed // 10))
    assert listing.shards == ids
    assert listing.is_whole == is_whole
