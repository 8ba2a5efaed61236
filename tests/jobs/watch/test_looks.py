"""What a watch sees of a table: all that a view shows, for what changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shutil import rmtree

import lance
import pyarrow as pa
import pytest

from memwal.clock import SystemClock
from memwal.config import Config, ResolvedTable, resolve_table
from memwal.errors import NotATable, StoreUnavailable
from memwal.format import codec, layout
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.watch.plan import TableLook
from memwal.jobs.watch.store import StoredLooks, find_latest
from memwal.model import Cursor, FlushedGeneration, ShardId, StoredFile
from memwal.ports import Objects
from memwal.store.objects.local import LocalObjects
from memwal.testing import MemoryBucket, MemoryObjects
from memwal.testing.objects import ManualClock
from tests.support import builders, wal_tables
from tests.support.builders import Delete, Put, Table
from tests.support.stores import Address

pytestmark = pytest.mark.integration

ONE = ShardId("11111111-1111-4111-8111-111111111111")
TWO = ShardId("22222222-2222-4222-8222-222222222222")
NOTHING = {"list": 2, "get": 0}


def resolve(uri: str, options: dict[str, str] | None = None) -> ResolvedTable:
    return resolve_table(uri, Config(), options or {}, {})


def make_table(uri: str, options: dict[str, str] | None = None, **how: object) -> Table:
    """Two shards, with a generation each."""
    table = builders.make_table(uri, rows=range(3), shards=0, options=options, **how)
    for number, shard in enumerate((ONE, TWO)):
        table.add_shard(shard)
        table.flush(shard, Put([number], number), Delete([2]))
    return table


def merge(table: Table, shard: ShardId) -> None:
    assert table.merger().run(shard, MergeRequest()).error is None


def pending(look: TableLook) -> dict[str, list[int]]:
    return {s.shard_id: [g.generation for g in s.pending] for s in look.view.shards}


class Watched:
    """A table whose files are in memory, where a test may hide and change them."""

    def __init__(self, folder: Path, page_objects: int = 1000) -> None:
        self.bucket = MemoryBucket()
        self.hidden: Callable[[str], bool] = lambda path: False
        self.on_list: Callable[[str], None] = lambda prefix: None
        self.table = make_table(str(folder))
        self.copy()
        watched = self

        class Store(MemoryObjects):
            @property
            def page_objects(self) -> int:
                return page_objects

            def list(self, prefix: str) -> Iterator[StoredFile]:
                watched.on_list(prefix)
                files = super().list(prefix)
                return (file for file in files if not watched.hidden(file.path))

        self.objects: Objects = Store(bucket=self.bucket, clock=SystemClock())
        self.looks = StoredLooks(opened=lambda table: self.objects)

    def copy(self) -> None:
        """Make the files in memory those of the folder."""
        files = LocalObjects(self.table.uri)
        there = {file.path: file for file in files.list("")}
        for path in set(self.bucket.objects) - set(there):
            del self.bucket.objects[path]
        for path, file in there.items():
            self.bucket.objects[path] = (files.get(path), file.modified_at_nanos)

    def add_files(self) -> None:
        """So many that a look does not list them all in pages of two."""
        for position in range(100, 200):
            self.bucket.objects[layout.wal_entry_path(TWO, position)] = (b"", 1)

    def look(self) -> TableLook:
        return self.looks.look(resolve("/watched"))


def test_a_look_shows_what_a_view_shows(address: Address) -> None:
    table = make_table(address.uri, address.storage_options)
    looks, resolved = StoredLooks(), resolve(address.uri, address.storage_options)
    for _ in range(2):
        look, view = looks.look(resolved), table.stores.views.table()
        requests = replace(look.view.manifest, requests=view.manifest.requests)
        told = replace(look.view, columns=view.columns, manifest=requests)
        assert told == view
        for shard in view.shards:
            for generation in shard.manifest.flushed_generations:
                flushed = look.flushed_at_nanos[shard.shard_id, generation.generation]
                exact = table.stores.views.flushed_at_nanos(shard.shard_id, generation)
                assert abs(flushed - exact) < 2 * 10**9
        table.flush(ONE, Put([7], 7))
        merge(table, TWO)
    assert pending(looks.look(resolved)) == {ONE: [1, 2, 3], TWO: []}


def test_a_look_costs_what_changed(address: Address) -> None:
    table = make_table(address.uri, address.storage_options)
    looks, resolved = StoredLooks(), resolve(address.uri, address.storage_options)
    on_s3 = table.stores.objects.page_objects > 0

    def look(wanted: dict[str, int], *, changed: bool) -> TableLook:
        found = looks.look(resolved)
        assert found.changed == changed
        if on_s3:
            assert found.requests == wanted
        return found

    look({"list": 3, "get": 3}, changed=True)
    first = look(NOTHING, changed=False)
    table.flush(ONE, Put([5], 5))
    look({"list": 2, "get": 1}, changed=True)
    merge(table, ONE)
    assert pending(look({"list": 2, "get": 1}, changed=True)) == {ONE: [], TWO: [1]}
    assert look(NOTHING, changed=False).view.version > first.view.version
    looks.forget(resolved.name)
    look({"list": 3, "get": 3}, changed=True)


def test_the_key_and_the_rows_are_those_that_lance_tells(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", "utf8+int32", rows=range(5), shards=0)
    table.dataset.delete("n = 1003")
    view = StoredLooks().look(resolve(table.uri)).view
    assert (view.primary_key, view.rows, view.shards) == (table.kind.names, 4, ())


@pytest.mark.parametrize("named", ["V1", "V2"])
def test_the_latest_version_is_no_detached_one(tmp_path: Path, named: str) -> None:
    table = make_table(str(tmp_path / "t"), enable_v2_manifest_paths=named == "V2")
    watched = Watched(tmp_path / "other")
    watched.table = table
    for _ in range(9):
        table.dataset.update_config({"some": "thing"})
    watched.copy()
    looks = StoredLooks()
    for found in (looks.look(resolve(table.uri)), watched.look()):
        assert found.view.version == int(table.dataset.version)
    if named == "V1":
        return  # such a table can have none
    lance.LanceDataset.commit(
        table.uri,
        lance.LanceOperation.Append([]),
        read_version=int(table.dataset.version),
        detached=True,
    )
    watched.copy()
    for found in (looks.look(resolve(table.uri)), watched.look()):
        assert not found.changed
        assert found.view.version == int(table.dataset.version)


def files_named(*names: str) -> list[StoredFile]:
    paths = [f"{layout.VERSIONS}/{name}" for name in names]
    return [StoredFile(path=path, size_bytes=1, modified_at_nanos=1) for path in paths]


def v2(*versions: int) -> list[str]:
    return [layout.table_manifest_names(version)[0] for version in versions]


@pytest.mark.parametrize(
    ("names", "latest", "read"),
    [
        (v2(9, 8, 7, 6), 9, 3),
        ([*v2(3, 2, 1), f"d{2**63 + 5}.manifest"], 3, 3),
        (["1.manifest", "10.manifest", "2.manifest", "11.manifest"], 11, 4),
        (v2(5, 7, 6, 9), 9, 4),  # a store that lists in no order
        ([f"d{2**63 + 5}.manifest", "latest_version_hint.json", "x/1.manifest"], None, 3),
    ],
)
def test_one_page_is_read_where_it_shows_the_newest(
    names: list[str], latest: int | None, read: int
) -> None:
    files = iter(files_named(*names))
    found = find_latest(files, page_objects=3)
    assert (None if found is None else found[0]) == latest
    assert len(names) - len(list(files)) == read


def test_a_version_that_is_kept_while_the_next_expires_is_not_taken_for_the_latest(
    tmp_path: Path,
) -> None:
    table = make_table(str(tmp_path / "t"))
    looks, resolved = StoredLooks(), resolve(str(tmp_path / "t"))
    before = looks.look(resolved).view.version
    table.dataset.tags.create("kept", before)
    for n in (1, 2):
        table.dataset.update_config({"n": str(n)})
    at_once = timedelta(0)
    table.dataset.cleanup_old_versions(at_once, error_if_tagged_old_versions=False)
    assert [v["version"] for v in table.dataset.versions()] == [before, before + 2]
    assert before + 2 in [looks.look(resolved).view.version for _ in range(12)]


def test_a_host_without_threads_is_a_look_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    looks, table = StoredLooks(), resolve("/nowhere")
    looks.start(table)
    (end,) = looks.collect()
    assert end.table is table
    assert "can't start new thread" in str(end.error)


@pytest.mark.parametrize("page_objects", [0, 1000])
def test_it_is_noticed_between_two_looks(tmp_path: Path, page_objects: int) -> None:
    watched = Watched(tmp_path / "t", page_objects)
    merge(watched.table, ONE)
    watched.copy()
    before = watched.look()
    rmtree(tmp_path / "t")
    watched.table = make_table(str(tmp_path / "t"))
    merge(watched.table, TWO)
    watched.copy()
    after = watched.look()
    assert after.changed
    assert after.view.version == before.view.version
    assert pending(before) == {ONE: [], TWO: [1]}
    assert pending(after) == {ONE: [1], TWO: []}


@pytest.mark.parametrize("page_objects", [0, 1000])
def test_a_manifest_of_the_same_name_is_not_taken_for_the_one_before(
    tmp_path: Path, page_objects: int
) -> None:
    watched = Watched(tmp_path / "t", page_objects)
    before = watched.look().view.shards[0].manifest
    path = layout.shard_manifest_path(ONE, before.version)
    data, modified = watched.bucket.objects[path]
    for age, epoch in ((0, 7), (1, 8)):  # by its content, then by its age as well
        other = codec.encode_shard_manifest(replace(before, writer_epoch=epoch))
        assert len(other) == len(data)
        watched.bucket.objects[path] = (other, modified + age)
        found = watched.look()
        assert found.changed
        assert found.view.shards[0].manifest.writer_epoch == epoch
    assert not watched.look().changed


def test_a_listing_that_lags_shows_less_and_memory_adds_nothing(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "t")
    old = watched.look()
    watched.table.flush(ONE, Put([8], 8))
    merge(watched.table, ONE)
    watched.copy()
    newest = {file.path for file in LocalObjects(watched.table.uri).list("")}
    new = watched.look()
    assert pending(new) == {ONE: [], TWO: [1]}
    version = layout.table_manifest_names(new.view.version)[0]
    watched.hidden = lambda path: path.endswith(version)
    behind = watched.look()
    assert behind.view.version < new.view.version
    assert behind.view.mem_wal.merged == old.view.mem_wal.merged
    known = {path for path in newest if path.startswith(layout.manifest_folder(ONE))}
    last = layout.shard_manifest_path(ONE, new.view.shards[0].manifest.version)
    assert last in known
    watched.hidden = lambda path: path == last
    shard = watched.look().view.shards[0]
    assert shard.manifest.version == new.view.shards[0].manifest.version - 1
    watched.hidden = lambda path: path.startswith(layout.shard_folder(TWO))
    assert [s.shard_id for s in watched.look().view.shards] == [ONE]
    watched.hidden = lambda path: False
    assert watched.look().view == new.view


@pytest.mark.parametrize("page_objects", [0, 1])
def test_a_broken_manifest_is_its_shards_own_trouble(tmp_path: Path, page_objects: int) -> None:
    watched = Watched(tmp_path / "t", page_objects)
    good = watched.look().view
    version = good.shards[0].manifest.version + 1
    path = layout.shard_manifest_path(ONE, version)
    for data in (b"\xff\xff", b"", codec.encode_shard_manifest(good.shards[1].manifest)):
        watched.bucket.objects[path] = (data, 5)
        found = watched.look()
        assert [s.shard_id for s in found.view.shards] == [TWO]
        assert [b.shard_id for b in found.view.broken] == [ONE]
        assert ONE in str(found.view.broken[0].error)
    assert not watched.look().changed
    del watched.bucket.objects[path]
    assert watched.look().view == good


def test_a_first_look_asks_for_few_times_however_many_generations_there_are(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "t", page_objects=2)
    merge(watched.table, ONE)
    many = range(2, 500)
    copies = [FlushedGeneration(generation=n, path=f"00000000_gen_{n}") for n in many]
    builders.list_generations(watched.table, ONE, *copies)
    watched.copy()
    watched.add_files()
    found = watched.look()
    assert len(pending(found)[ONE]) == len(many)
    assert found.requests["get"] < 250
    dated = [at for (shard, _), at in found.flushed_at_nanos.items() if shard == ONE]
    assert len(dated) == len(many)  # what was merged long ago has none, and needs none
    assert watched.look().requests["get"] < 20


def test_a_generation_that_is_dropped_during_a_look_is_no_hole(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "t")
    watched.look()

    def merge_and_drop(prefix: str) -> None:
        if prefix == layout.MEM_WAL:
            watched.on_list = lambda prefix: None
            merge(watched.table, ONE)
            watched.copy()
            manifests = watched.table.stores.shard_manifests
            current = manifests.latest(ONE)
            assert current is not None
            manifests.commit(current, replace(current, flushed_generations=()))
            watched.copy()

    watched.on_list = merge_and_drop
    found = watched.look()
    assert found.view.shards[0].merged_generation == 1
    assert pending(found) == {ONE: [], TWO: [1]}


def test_without_a_time_in_the_listing_a_generation_is_as_old_as_its_manifest(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path / "t")
    watched.hidden = lambda path: "_gen_" in path
    look = watched.look()
    path = layout.shard_manifest_path(ONE, look.view.shards[0].manifest.version)
    assert look.flushed_at_nanos[ONE, 1] == watched.bucket.objects[path][1]
    watched.hidden = lambda path: False
    assert watched.look().flushed_at_nanos == look.flushed_at_nanos


def test_what_is_no_table_says_so_at_every_look(tmp_path: Path) -> None:
    looks = StoredLooks()
    with pytest.raises(NotATable, match="no such table"):
        looks.look(resolve(str(tmp_path / "nothing")))
    table = make_table(str(tmp_path / "t"))
    looks.look(resolve(table.uri))
    rmtree(tmp_path / "t" / "_versions")
    with pytest.raises(NotATable, match="not a Lance table"):
        looks.look(resolve(table.uri))


def test_a_plain_table_is_one_and_one_that_lost_its_mem_wal_is_not(tmp_path: Path) -> None:
    looks = StoredLooks()
    rows = pa.table({"k": [1]})
    plain = lance.write_dataset(rows, tmp_path / "plain")
    assert not looks.look(resolve(plain.uri)).view.has_mem_wal
    table = make_table(str(tmp_path / "t"))
    lance.write_dataset(rows, table.uri, mode="overwrite")
    for _ in range(2):
        with pytest.raises(NotATable, match="but _mem_wal/ has"):
            looks.look(resolve(table.uri))


def test_a_store_that_is_away_is_no_broken_shard(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "t")

    class Away(MemoryObjects):
        def get(self, path: str, size_bytes_max: int = 0) -> bytes:
            raise StoreUnavailable("away")

    store, watched.objects = watched.objects, Away(bucket=watched.bucket)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="away"):
            watched.look()
    watched.objects = store
    watched.looks.forget("/watched")
    assert not watched.look().view.broken


@pytest.mark.parametrize("page_objects", [1000, 1])
def test_rows_in_a_wal_are_seen_in_time_and_cost_one_more_request(
    tmp_path: Path, page_objects: int
) -> None:
    """Where not all files are listed, each shard's WAL is; the entry's head is read once."""
    watched = Watched(tmp_path / "t")
    wal_tables.abandon(watched.table, ONE, Put([5], 5))
    watched.copy()
    now = SystemClock().now_nanos()
    clock = ManualClock(start_nanos=now + 2 * 3600 * 10**9)

    class Store(MemoryObjects):
        @property
        def page_objects(self) -> int:
            return page_objects

    objects = Store(bucket=watched.bucket, clock=clock)
    looks = StoredLooks(clock, opened=lambda table: objects)
    resolved = resolve("/watched")
    found = looks.look(resolved)
    assert found.abandoned_shards == 1
    assert found.unflushed_at_nanos is not None
    assert found.unflushed_at_nanos.keys() == {ONE}
    assert abs(found.unflushed_at_nanos[ONE] - now) < 600 * 10**9
    before = looks.look(resolved)
    clock.advance(16)  # a quarter of a minute's freshness
    again = looks.look(resolved)
    assert again.unflushed_at_nanos == before.unflushed_at_nanos == found.unflushed_at_nanos
    assert again.requests["get"] == before.requests["get"]
    assert again.requests["list"] - before.requests["list"] == (0 if page_objects > 1 else 2)
    watched.table.flush(ONE, Put([6], 6))
    watched.copy()
    assert looks.look(resolved).unflushed_at_nanos == {}, "its manifest is another one"
    clock.advance(16)
    assert looks.look(resolved).abandoned_shards == 0


def test_cursors_are_listed_now_and_then_and_stay_known(tmp_path: Path) -> None:
    table = make_table(str(tmp_path / "t"))
    clock = ManualClock(start_nanos=SystemClock().now_nanos())
    looks, resolved = StoredLooks(clock), resolve(table.uri)

    def look() -> dict[str, int]:
        return {cursor.name: cursor.version for cursor in looks.look(resolved).cursors}

    def move(name: str, version: int) -> None:
        table.stores.cursors.put(Cursor(name=name, version=version, moved_at_nanos=1, holder="me"))

    assert look() == {}
    move("mart", 1)
    assert look() == {}
    clock.advance(601)
    move("late", 2)
    assert look() == {"late": 2, "mart": 1}
    torn = tmp_path / "t" / layout.cursor_path("mart")
    torn.write_bytes(b"{")
    clock.advance(601)
    assert look() == {"late": 2, "mart": 1}, "what can't be read stays as it was"
    torn.unlink()
    clock.advance(601)
    assert look() == {"late": 2}
