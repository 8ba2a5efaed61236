"""The merging read on awkward tables: other writers, old schemas, missing generations, races."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from memwal.errors import (
    Corruption,
    NotATable,
    Refused,
    StandDown,
    StoreUnavailable,
    Unsupported,
    Usage,
)
from memwal.format import layout
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, ShardManifest, ShardStatus, TableView
from memwal.read import Nearest, ReadableTable, open_table
from memwal.read.job import explain
from memwal.read.plan.request import ReadRequest
from memwal.read.plan.sources import Incomplete
from memwal.read.store import newest_rows
from memwal.read.store.wal_rows import Moved
from memwal.store.tables.datasets import LanceTables
from tests.support import builders, garbage_runs
from tests.support.builders import Delete, Put, Row, Table

pytestmark = pytest.mark.integration


def rows_of(table: Table, **asked: Any) -> list[Row]:
    found: list[Row] = open_table(table.uri, table.options).read(**asked).read_all().to_pylist()
    return found


def numbers(table: Table, text: str | None = None) -> list[int]:
    return sorted(row["n"] for row in rows_of(table, filter=text, columns=["n"]))


def key_of(number: int) -> int:
    return int(builders.KINDS["int64"].key(number)[0])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Keys 2 to 9 in the base, with `n` from 1002 to 1009, and one shard."""
    return builders.make_table(tmp_path / "t", rows=range(2, 10))


# ---- a handle


class _CountingTables(LanceTables):
    """Notes which generations are opened."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, {})
        self.opened: list[int] = []

    def generation(self, shard_id: ShardId, generation: FlushedGeneration) -> Any:
        self.opened.append(generation.generation)
        return super().generation(shard_id, generation)


def test_a_handle_opens_a_generation_once_and_sees_new_ones(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    table.flush(shard, Put([3], 2))
    handle = open_table(table.uri)
    tables = _CountingTables(table.uri)
    handle.generations = replace(handle.generations, tables=tables)

    def look_up(number: int) -> list[int]:
        rows = handle.read(key={"k": key_of(number)}, columns=["n"]).read_all()
        return [row["n"] for row in rows.to_pylist()]

    assert [look_up(2), look_up(3), look_up(4)] == [[1], [2], [1004]]
    assert sorted(tables.opened) == [1, 2]
    table.flush(shard, Delete([2]))
    assert [look_up(2), look_up(3)] == [[], [2]]
    assert sorted(tables.opened) == [1, 2, 3]
    table.merge_all()
    lance.dataset(table.uri).drop_columns(["nested"])
    assert [look_up(2), look_up(3), look_up(4)] == [[], [2], [1004]]
    assert sorted(tables.opened) == [1, 2, 3]
    table.flush(shard, Put([4], 5))
    assert [look_up(3), look_up(4)] == [[2], [5]]


def test_a_table_opened_anew_has_what_another_opened_but_not_what_was_replaced(
    table: Table, tmp_path: Path
) -> None:
    (shard,) = table.shards
    other = replace(table, uri=str(shutil.copytree(table.uri, tmp_path / "other")))
    for one, count in ((table, 1), (other, 7)):
        one.flush(shard, Put([2], count))

    def look_up() -> list[int]:
        handle = open_table(table.uri)
        handle.generations = replace(handle.generations, tables=tables)
        (row,) = handle.read(key={"k": key_of(2)}, columns=["n"]).read_all().to_pylist()
        every = handle.read(columns=["k", "n"]).read_all().to_pylist()
        assert row["n"] in [other["n"] for other in every if other["k"] == key_of(2)]
        return [row["n"]]

    tables = _CountingTables(table.uri)
    assert [look_up(), look_up(), tables.opened] == [[1], [1], [1]]
    # What no flush does: the same name, and other rows.
    (kept,), (put,) = (Path(one.uri, "_mem_wal", shard).glob("*_gen_1") for one in (table, other))
    shutil.rmtree(kept)
    put.rename(kept)
    tables = _CountingTables(table.uri)
    assert [look_up(), look_up(), tables.opened] == [[7], [7], [1]]


# ---- who wins


def test_a_filter_does_not_bring_an_older_row_back(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    table.flush(shard, Put([2], 2))
    for stale in ("n = 1002", "n = 1"):
        assert numbers(table, stale) == []
    assert numbers(table, "n = 2") == [2]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("abs(n) = 7", [7]),
        ("`n` IN (7, 500)", [7]),
        ("N = 7 OR n = 1002", [7]),
        ("n = 7 AND nested.a = 99999", []),
        ("true", [1, 7, *range(1003, 1010)]),
    ],
)
def test_filters_choose_among_newest_rows(table: Table, text: str, wanted: list[int]) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 500))
    table.flush(shard, Put([2], 7), Put([20], 1))
    assert numbers(table, text) == wanted


def test_payload_of_rows_that_a_filter_leaves(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 700), Delete([3]))
    table.flush(shard, Put([20], 800))
    wanted = [row for row in table.truth().values() if row["n"] >= 700]
    found = open_table(table.uri).read(filter="n >= 700").read_all().to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_the_highest_row_address_of_a_generation_wins(table: Table) -> None:
    """Another writer may leave several rows of a key; pylance's own scanner can't read those."""
    (shard,) = table.shards
    rows = [table.row(2, 1), table.row(30, 3), table.row(2, 2), table.row(30, 4)]
    builders.list_generations(
        table, shard, builders.hand_written(table, shard, rows, rows_per_file=1)
    )
    assert numbers(table, "n < 1000") == [2, 4]
    assert numbers(table, "n IN (1, 3, 1002)") == []


def test_a_generation_without_tombstones_is_read(table: Table) -> None:
    (shard,) = table.shards
    generation = builders.hand_written(table, shard, [table.row(2, 1)], tombstone_column=False)
    builders.list_generations(table, shard, generation)
    assert numbers(table, "n < 1003") == [1]


def test_a_tombstone_hides_the_key_until_it_is_written_again(table: Table) -> None:
    (shard,) = table.shards
    rows = [table.row(2, 1), table.row(2, 2), table.row(30, 3), table.row(30, 4)]
    first = builders.hand_written(table, shard, rows, tombstones=[False, True, True, False])
    builders.list_generations(table, shard, first)
    assert numbers(table, "n < 1003") == [4]
    table.flush(shard, Put([2], 5), Delete([30]))
    assert numbers(table, "n < 1003") == [5]
    assert rows_of(table, key={"k": key_of(30)}) == []


def test_shards_are_not_compared_but_all_hide_the_base(tmp_path: Path) -> None:
    """A key belongs to one shard; what a broken writer put into two comes out of both."""
    table = builders.make_table(tmp_path / "t", rows=[2, 3], shards=2)
    left, right = table.shards
    table.flush(left, Put([2], 1))
    table.flush(right, Put([2], 2))
    table.flush(right, Delete([3]))
    table.flush(left, Put([3], 4))
    assert numbers(table) == [1, 2, 4]


def test_a_merged_generation_that_is_still_listed_hides_nothing(table: Table) -> None:
    """The base was changed since the merge; a reader of merged generations would hide that."""
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    table.merge_all()
    table.dataset.update({"n": "77"}, where=f"k = {key_of(2)}")
    assert table.stores.shard_manifests.latest(shard).flushed_generations  # type: ignore[union-attr]
    assert numbers(table, "n < 1000") == [77]


def test_a_sealed_shard_is_read(table: Table) -> None:
    """No merge touches it any more, but its rows are there until the table is dropped."""
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    builders.set_status(table, shard, ShardStatus.SEALED)
    assert numbers(table, "n < 1003") == [1]


def test_a_table_without_a_key_gives_every_row(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(pa.table({"a": [1, 2]}), uri)
    dataset.initialize_mem_wal()
    with dataset.mem_wal_writer(str(uuid.uuid4()), max_wal_flush_interval_ms=1) as writer:
        writer.put(pa.table({"a": [2, 2, 3]}))
    reads = open_table(uri)
    assert sorted(reads.read().read_all()["a"].to_pylist()) == [1, 2, 2, 2, 3]
    assert reads.read(filter="a = 2", limit=2).read_all()["a"].to_pylist() == [2, 2]
    with pytest.raises(Usage, match="no primary key"):
        reads.read(key={"a": 1})


# ---- schemas


def test_a_generation_is_older_than_a_column(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 3, 20], 100))
    table.dataset.add_columns(pa.field("x", pa.int64()))
    table.flush(shard, Put([4], 200, {"x": 7}))
    assert len(rows_of(table)) == 9
    assert numbers(table, "x IS NULL AND n < 1000") == [100, 101, 102]
    assert numbers(table, "X = 7") == [200]
    assert sorted(row["x"] or 0 for row in rows_of(table, columns=["x"])) == [0] * 8 + [7]
    near = Nearest(column="vector", vector=(100.0, 50.0, -100.0, 0.5), k=1)
    (found,) = rows_of(table, filter="x IS NULL", nearest=near, columns=["n", "x"])
    assert (found["n"], found["x"], found["_distance"]) == (100, None, 0.0)


def test_a_search_on_a_column_that_a_generation_lacks(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 100))
    field = pa.field("v2", pa.list_(pa.float32(), 2))
    table.dataset.add_columns(field)
    table.flush(shard, Put([3], 200, {"v2": [1.0, 2.0]}))
    near = Nearest(column="v2", vector=(1.0, 2.0), k=5)
    assert [row["n"] for row in rows_of(table, nearest=near)] == [200]


def test_a_dropped_column_does_not_come_back(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 3], 100))
    table.dataset.drop_columns(["text"])
    assert "text" not in rows_of(table)[0]
    table.dataset.add_columns(pa.field("text", pa.string()))
    assert {row["text"] for row in rows_of(table, columns=["text"])} == {None}
    assert numbers(table, "text = 'text 100'") == []
    assert numbers(table, "text IS NULL AND n < 1000") == [100, 101]


def test_names_in_mixed_case_need_no_quotes(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", "utf8+int32", rows=range(3))
    table.flush(table.shards[0], Put([1], 5))
    for name in ("userId", "`userId`"):
        assert numbers(table, f"{name} = ''''") == [5]
    assert [row["n"] for row in rows_of(table, key={"userId": "'", "order": -3})] == [5]


@pytest.mark.parametrize("number", [2, 3])
def test_blobs_are_read_as_bytes(tmp_path: Path, number: int) -> None:
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([*builders.KINDS["int64"].fields, blob])
    uri = str(tmp_path / "t")
    data = pa.table([[2, 3], [b"base 2", b"base 3"]], schema=schema)
    lance.write_dataset(data, uri, data_storage_version="2.1").initialize_mem_wal()
    with lance.dataset(uri).mem_wal_writer(str(uuid.uuid4()), max_wal_flush_interval_ms=1) as w:
        w.put(pa.table([[3, 4], [b"new 3", b"new 4"]], schema=schema))
    found = open_table(uri).read(key={"k": number}).read_all()
    assert found["blob"].to_pylist() == [{2: b"base 2", 3: b"new 3"}[number]]


# ---- what is missing


def test_a_lost_generation_is_an_error(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    table.flush(shard, Put([3], 2))
    listed = table.stores.shard_manifests.latest(shard)
    assert listed is not None
    shutil.rmtree(Path(table.uri) / layout.shard_folder(shard) / listed.flushed_generations[0].path)
    with pytest.raises(Corruption, match="its rows are lost"):
        rows_of(table)
    builders.unlist_generation(table, shard, 1)
    with pytest.raises(Incomplete, match="generation 1 is neither merged"):
        rows_of(table)
    assert 1 not in [row["n"] for row in rows_of(table, allow_holes=True)]


def test_an_old_version_needs_its_generations(table: Table) -> None:
    """Dropped and deleted, as the garbage job does; retained versions usually prevent it."""
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    before = int(table.dataset.version)
    table.merge_all()
    assert sorted(row["n"] for row in rows_of(table, version=before, filter="n < 9")) == [1]
    listed = table.stores.shard_manifests.latest(shard)
    assert listed is not None
    shutil.rmtree(Path(table.uri) / layout.shard_folder(shard) / listed.flushed_generations[0].path)
    with pytest.raises(Refused, match="read a later version"):
        rows_of(table, version=before)
    builders.unlist_generation(table, shard, 1)
    with pytest.raises(Refused, match=r"generation 1 .*read a later version"):
        rows_of(table, version=before)
    assert numbers(table, "n < 9") == [1]


def test_versions_that_are_not_there(table: Table) -> None:
    with pytest.raises(Usage, match="no version 99"):
        rows_of(table, version=99)
    assert len(rows_of(table, version=1)), "nothing waits, so it is a plain table's"
    table.flush(table.shards[0], Put([1], 1))
    with pytest.raises(NotATable, match="version 1 has no MemWAL index"):
        rows_of(table, version=1)


def test_a_table_that_was_initialised_again_does_not_show_dead_rows(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    lance.write_dataset(table.dataset.to_table(), table.uri, mode="overwrite")
    table.dataset.initialize_mem_wal()
    with pytest.raises(Refused, match="would bring dead rows back"):
        rows_of(table)
    assert 1 in [row["n"] for row in rows_of(table, allow_reinitialised=True)]


def test_a_broken_shard_is_not_passed_over(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    file = Path(table.uri) / layout.shard_manifest_path(shard, manifest.version)
    file.write_bytes(b"\xff" * 10)
    with pytest.raises(Corruption):
        rows_of(table)


def test_null_keys_are_refused(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=[2])
    (shard,) = table.shards
    loose = pa.schema([pa.field("k", pa.int64()), *builders.PAYLOAD])
    rows = pa.Table.from_pylist([table.row(3, 1), {**table.row(4, 2), "k": None}], schema=loose)
    builders.list_generations(table, shard, builders.hand_written(table, shard, rows))
    with pytest.raises(Refused, match=r"NULL in the key column 'k'"):
        rows_of(table)


# ---- races


def drop(table: Table, shard: ShardId) -> None:
    """Take merged generations away whole, as two garbage passes do."""
    listed = table.stores.shard_manifests.latest(shard)
    assert listed is not None
    for generation in listed.flushed_generations:
        builders.unlist_generation(table, shard, generation.generation)
        shutil.rmtree(Path(table.uri) / layout.shard_folder(shard) / generation.path)


class Raced(ReadableTable):
    """Something happens to the table between the view and the opening of its generations."""

    def __init__(self, table: Table, *happenings: Callable[[], object]) -> None:
        super().__init__(table.uri)
        self.happenings = list(happenings)
        self.taken = 0
        look = self.views.at

        def at(version: int | None) -> TableView:
            found = look(version)
            self.taken += 1
            if self.happenings:
                self.happenings.pop(0)()
            return found

        self.views.at = at  # type: ignore[method-assign]


def test_a_generation_collected_after_the_view_leads_to_a_fresh_view(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1), Delete([3]))

    def collected() -> None:
        table.merge_all()
        drop(table, shard)

    reads = Raced(table, collected)
    builders.same_rows(table.keyed(reads.read().read_all()), table.truth(), "the read")
    assert reads.taken == 2


def test_a_generation_collected_within_the_view_leads_to_a_fresh_view(table: Table) -> None:
    """The version is older than the merge, the manifest newer than the garbage pass after it."""
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1), Delete([3]))
    reads = open_table(table.uri)
    look, old = reads.views.at, reads.views.at(None)
    table.merge_all()
    drop(table, shard)
    (seen,) = look(None).shards
    views = [replace(old, shards=(replace(seen, merged_generation=0),)), look(None)]
    reads.views.at = lambda version: views.pop(0)  # type: ignore[method-assign]
    builders.same_rows(table.keyed(reads.read().read_all()), table.truth(), "the read")
    assert views == []


def test_a_table_that_never_holds_still_is_an_error_in_the_end(table: Table) -> None:
    (shard,) = table.shards

    def again() -> None:
        table.flush(shard, Put([2], 1))
        listed = table.stores.shard_manifests.latest(shard)
        assert listed is not None
        newest = listed.flushed_generations[-1].path
        shutil.rmtree(Path(table.uri) / layout.shard_folder(shard) / newest)

    again()
    reads = Raced(table, *[again] * 9)
    with pytest.raises(Corruption):
        reads.read()
    assert reads.taken == 5


def test_what_goes_away_under_a_reader_is_an_error_not_a_wrong_answer(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_rows, "_HELD_BYTES_MAX", 0)  # else it has been read by then
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1))
    reader = open_table(table.uri).read()
    shutil.rmtree(Path(table.uri) / layout.shard_folder(shard))
    with pytest.raises(
        Corruption, match="the latest version needs it, so that it was not collected"
    ):
        reader.read_all()


def test_no_row_that_is_deleted_in_a_flush_is_read(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1), Put([2], 5))
    (generation,) = (Path(table.uri) / layout.shard_folder(shard)).glob("*_gen_*")
    (fragment,) = lance.dataset(str(generation)).get_fragments()
    assert fragment.deletion_file() is not None
    (found,) = (row["n"] for row in rows_of(table) if row["k"] == key_of(2))
    assert found == rows_of(table, key={"k": key_of(2)})[0]["n"]


def test_a_larger_generation_is_read_whole_only_for_all_its_rows(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1))
    monkeypatch.setattr(newest_rows, "_SMALL_BYTES", 1)
    reads = open_table(table.uri)
    asked = (ReadRequest(), ReadRequest(limit=1), ReadRequest(filter="n > 0"))
    ways = [explain(reads, request)["way"] for request in asked]
    assert ["held" in way for way in ways] == [True, False, False]
    assert numbers(table, "n > 1003") == [n for n in numbers(table) if n > 1003]


def test_of_a_large_generation_narrow_columns_are_held(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 1))
    monkeypatch.setattr(newest_rows, "_HELD_BYTES_MAX", 60)
    reads = open_table(table.uri)
    asked = (ReadRequest(), ReadRequest(columns=("k", "n")))
    ways = [explain(reads, request)["way"] for request in asked]
    assert ["held" in way for way in ways] == [False, True]
    assert rows_of(table, columns=["k", "n"]) == [
        {name: row[name] for name in ("k", "n")} for row in rows_of(table)
    ]


def test_reads_beside_merges_and_garbage(tmp_path: Path) -> None:
    """Readers in a thread; nothing is written, so that every read has to give the same rows."""
    table = builders.make_table(tmp_path / "t", rows=range(40), shards=2)
    for turn in range(6):
        for place, shard in enumerate(table.shards):
            mine = range(place, 40, 2)[2 * turn : 2 * turn + 8]
            table.flush(shard, Put(mine, 100 * turn), Delete(mine[:2]))
    truth = table.truth()
    stop, wrong, done = threading.Event(), [], []

    def read() -> None:
        reads = open_table(table.uri)
        while not stop.is_set():
            try:
                builders.same_rows(table.keyed(reads.read().read_all()), truth, "beside")
                stale = reads.read(filter="n < 300", columns=["n"]).read_all()
                assert sorted(stale["n"].to_pylist()) == sorted(
                    row["n"] for row in truth.values() if row["n"] < 300
                )
            except StoreUnavailable as error:
                # A version that expired under a reader: no answer, and no wrong one.
                assert "read again" in str(error)
                continue
            except Exception as error:
                wrong.append(error)
                return
            done.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    for until in range(1, 7):
        for shard in table.shards:
            table.merger().run(shard, MergeRequest(until_generation=until))
        garbage_runs.garbage(table, retention=0.001)
    garbage_runs.collect(table, retention=0.001)
    stop.set()
    thread.join(60)
    assert wrong == []
    assert done
    assert table.progress() == dict.fromkeys(table.shards, 6)
    left = [table.stores.shard_manifests.latest(shard) for shard in table.shards]
    assert [manifest and manifest.flushed_generations for manifest in left] == [(), ()]


# ---- elsewhere


@pytest.mark.nightly
def test_on_s3(make_s3_uri: Callable[[], str], s3_server: Any) -> None:
    options = s3_server.storage_options
    table = builders.make_table(make_s3_uri(), rows=range(10), shards=2, options=options)
    left, right = table.shards
    table.flush(left, Put([2, 20], 1), Delete([4]))
    table.merge_all()
    table.flush(left, Put([2], 3))
    table.flush(right, Put([3, 5], 5))
    reads = open_table(table.uri, options)
    for version in table.versions()[1:]:
        found = table.keyed(reads.read(version=version).read_all())
        builders.same_rows(found, table.truth(), f"version {version}")
    assert [row["n"] for row in rows_of(table, key={"k": key_of(2)})] == [3]
    near = Nearest(column="vector", vector=(5.0, 2.5, -5.0, 0.5), k=1)
    assert [row["n"] for row in rows_of(table, nearest=near)] == [5]


def test_rows_that_are_in_the_wal_only(table: Table) -> None:
    (shard,) = table.shards
    table.flush(shard, Put([2], 1))
    writer = table.writer(shard)
    schema = table.dataset.schema
    rows = [table.row(2, 2), table.row(30, 3)]
    writer.put(pa.Table.from_pylist(rows, schema=schema))
    writer.delete(pa.table({"k": pa.array([key_of(3)], pa.int64())}))
    assert numbers(table, "n < 1004") == [1, 1003]
    reads = open_table(table.uri)
    for asked in ({}, {"limit": 100}):
        found = reads.read(filter="n < 1004", with_wal=True, columns=["n"], **asked).read_all()
        assert sorted(found["n"].to_pylist()) == [2, 3]
    assert len(reads.read(with_wal=True).read_all()) == 8
    assert reads.read(key={"k": key_of(3)}, with_wal=True).read_all().num_rows == 0
    writer.close()


# ---- pruning


def test_a_shard_whose_recorded_values_can_not_match_is_not_read(tmp_path: Path) -> None:
    """pylance records no shard values; another writer does, in the shard's manifest."""
    table = sharded(tmp_path, ["a", "b"])
    reads = open_table(table.uri)
    keyed = ReadRequest(keys=reads.check_keys({"userId": "b", "order": 1}))
    plan = reads.use_read(keyed, lambda opened: opened.plan)
    assert [s.shard_id for s in plan.shards] == table.shards[1:]
    assert [s.shard_id for s in plan.pruned] == table.shards[:1]
    assert "which no key has" in plan.pruned[0].reason
    assert reads.read(key={"userId": "b", "order": 2}).read_all()["n"].to_pylist() == [2]
    filtered = ReadRequest(filter="userId = 'a'")
    assert reads.use_read(filtered, lambda opened: opened.plan).pruned == ()


def sharded(folder: Path, values: Sequence[str]) -> Table:
    """A shard for each value of `userId`, recorded in its manifest; rows n = 1, 2 in each."""
    kind = builders.KINDS["utf8+int32"]
    uri = str(folder / "t")
    schema = pa.schema([*kind.fields, pa.field("n", pa.int64())])
    dataset = lance.write_dataset(schema.empty_table(), uri)
    dataset.initialize_mem_wal(identity_column="userId")
    table = Table(uri=uri, kind=kind, shards=[])
    for value in values:
        shard = table.add_shard()
        with table.writer(shard) as writer:
            rows = [{"userId": value, "order": n, "n": n} for n in (1, 2)]
            writer.put(pa.Table.from_pylist(rows, schema=schema))
        manifests = table.stores.shard_manifests
        current = manifests.latest(shard)
        assert isinstance(current, ShardManifest)
        state = table.stores.views.mem_wal(int(table.dataset.version))
        (spec,) = state.shard_specs
        entry = (spec.fields[0].field_id, value.encode())
        proposed = replace(current, shard_field_entries=(entry,), shard_spec_id=spec.spec_id)
        manifests.commit(current, proposed)
    return table


def test_moved_rows_are_asked_for_again_and_again_but_not_for_ever(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = open_table(table.uri)
    asked: list[object] = []

    def moving(*given: object) -> None:
        asked.append(given)
        raise Moved("rows moved")

    monkeypatch.setattr(reads, "_with_wal", moving)
    with pytest.raises(StandDown):
        reads.read(with_wal=True)
    assert len(asked) == 5


def test_a_column_that_lance_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": [1], "b`c": [2]}), uri).initialize_mem_wal()
    with pytest.raises(Unsupported, match="b`c"):
        open_table(uri).read()
