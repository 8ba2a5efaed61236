"""pylance's own planners: where the merging read agrees with them, and why it does not use them."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.mem_wal import (
    LsmPointLookupPlanner,
    LsmScanner,
    LsmVectorSearchPlanner,
    ShardSnapshot,
)

from memwal.jobs.merge.request import MergeRequest
from memwal.read import Nearest, ReadRequest, open_table
from memwal.read.job import explain
from tests.support import builders, lsm_reads
from tests.support.builders import Delete, Put, Table

pytestmark = pytest.mark.integration

VECTOR = [1000.0, 500.0, -1000.0, 0.5]


def snapshots(table: Table, *, merged: bool = False) -> list[ShardSnapshot]:
    """What pylance's planners are fed with: what is pending, or everything listed."""
    found = []
    for shard in table.stores.views.table().shards:
        snapshot = ShardSnapshot(shard.shard_id)
        for generation in shard.manifest.flushed_generations if merged else shard.pending:
            snapshot = snapshot.with_sstable(generation.generation, generation.path)
        found.append(snapshot)
    return found


def rows_of(table: Table, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = open_table(table.uri).read(**asked).read_all().to_pylist()
    return found


def nearest_of_pylance(table: Table, k: int, *, merged: bool = False) -> list[int]:
    planner = LsmVectorSearchPlanner(table.dataset, snapshots(table, merged=merged), "vector")
    plan = planner.plan_search(pa.array(VECTOR, pa.float32()), k=k, columns=["n"])
    return [int(n) for n in plan.to_table()["n"].to_pylist()]


def nearest_by_hand(table: Table, k: int) -> list[int]:
    found = sorted(
        (sum((a - b) ** 2 for a, b in zip(VECTOR, row["vector"], strict=True)), row["n"])
        for row in table.truth().values()
        if row["vector"] is not None
    )
    return [n for _, n in found[:k]]


def indexed_table(folder: Path, rows: int = 300) -> Table:
    table = builders.make_table(folder / "t", rows=range(rows))
    table.dataset.create_index("vector", "IVF_FLAT", num_partitions=1, name="vector_idx")
    return table


# ---- agreement


@pytest.mark.parametrize("text", [None, "n < 1000", "text IS NULL", "nested.a > 30"])
@pytest.mark.parametrize("seed", range(3))
def test_scans_agree_where_pylance_is_fed_what_is_pending(
    tmp_path: Path, seed: int, text: str | None
) -> None:
    rng = random.Random(seed)
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2)
    for turn in range(3):
        for place, shard in enumerate(table.shards):
            keys = rng.sample(range(place, 30, 2), 6)
            table.flush(shard, Put(keys, 100 * turn), Delete(keys[:2]))
        if turn == 0:
            table.merge_all()
    scanner = LsmScanner.from_snapshots(table.dataset, snapshots(table))
    theirs = (scanner.filter(text) if text else scanner).to_table().to_pylist()
    assert sorted(map(repr, rows_of(table, filter=text))) == sorted(map(repr, theirs))


def test_lookups_agree_on_names_in_lower_case(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(10))
    (shard,) = table.shards
    table.flush(shard, Put([2, 20], 100), Delete([3]))
    table.flush(shard, Put([2], 300))
    planner = LsmPointLookupPlanner(table.dataset, snapshots(table))
    for number in (2, 3, 5, 20, 77):
        (key,) = table.kind.key(number)
        theirs = planner.plan_lookup(pa.array([key], pa.int64())).to_table().to_pylist()
        assert rows_of(table, key={"k": key}) == theirs


# ---- why they are not used: when one of these fails, pylance has learnt it


def test_the_scanner_hides_what_changed_under_merged_generations(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(3))
    table.flush(table.shards[0], Put([2], 1))
    table.merge_all()
    table.dataset.update({"n": "77"}, where="n = 1")
    fed_all = LsmScanner.from_snapshots(table.dataset, snapshots(table, merged=True))
    assert 77 not in fed_all.to_table()["n"].to_pylist()
    assert 77 in [row["n"] for row in rows_of(table)]


def test_the_scanner_needs_a_private_index_in_each_generation(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(3))
    (shard,) = table.shards
    generation = builders.hand_written(table, shard, [table.row(2, 1)])
    builders.list_generations(table, shard, generation)
    with pytest.raises(OSError, match="_pk_index"):
        LsmScanner.from_snapshots(table.dataset, snapshots(table)).to_table()
    assert [row["n"] for row in rows_of(table, filter="n < 1000")] == [1]


def test_the_scanner_believes_a_private_index_that_lacks_rows(tmp_path: Path) -> None:
    """As pylance leaves it, at times, when a MemTable is flushed in the background."""
    table = builders.make_table(tmp_path / "t", rows=range(5))
    (shard,) = table.shards
    table.flush(shard, Put([0], 50))
    table.flush(shard, Put([0, 1, 2], 100), Delete([3]))
    (view,) = table.stores.views.table().shards
    listed = view.manifest.flushed_generations
    whole, short = (Path(table.uri) / lsm_reads.folder_of(shard, g) for g in reversed(listed))
    assert [lsm_reads.indexed_rows(str(g)) for g in (short, whole)] == [1, 4]
    assert table.lsm_rows() == table.truth()

    shutil.rmtree(whole / "_pk_index")
    shutil.copytree(short / "_pk_index", whole / "_pk_index")

    theirs = LsmScanner.from_snapshots(table.dataset, snapshots(table)).to_table()
    numbers = [table.kind.key(n)[0] for n in (0, 1, 1, 2, 2, 3, 4)]
    assert sorted(theirs["k"].to_pylist()) == sorted(numbers)
    builders.same_rows(table.keyed(open_table(table.uri).read().read_all()), table.truth(), "ours")
    assert table.lsm_rows() == table.truth()


def test_the_scanner_and_the_lookup_fold_names_to_lower_case(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", "utf8+int32", rows=range(3))
    table.flush(table.shards[0], Put([1], 5))
    scanner = LsmScanner.from_snapshots(table.dataset, snapshots(table))
    with pytest.raises(ValueError, match="userid"):
        scanner.filter("userId = 'a'").to_table()
    text, number = table.kind.key(1)
    key = pa.StructArray.from_arrays(
        [pa.array([text]), pa.array([number], pa.int32())], names=list(table.kind.names)
    )
    planner = LsmPointLookupPlanner(table.dataset, snapshots(table))
    with pytest.raises(OSError, match="userid"):
        planner.plan_lookup(key).to_table()
    assert [row["n"] for row in rows_of(table, key={"userId": text, "order": number})] == [5]
    assert len(table.dataset.to_table(filter="userId = ''''")) == 1


def test_the_scanner_needs_a_primary_key(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t"))
    dataset.initialize_mem_wal()
    with pytest.raises(ValueError, match="no primary key"):
        LsmScanner.from_snapshots(dataset, [])
    assert open_table(str(tmp_path / "t")).read().read_all()["a"].to_pylist() == [1]


def test_the_search_sees_nothing_without_an_index(tmp_path: Path) -> None:
    table = builders.make_table(tmp_path / "t", rows=range(20))
    table.flush(table.shards[0], Put([2, 20], 100))
    assert nearest_of_pylance(table, 3) == []
    found = rows_of(table, nearest=Nearest(column="vector", vector=VECTOR, k=3))
    assert [row["n"] for row in found] == nearest_by_hand(table, 3)


def test_the_search_leaves_out_what_was_merged_since(tmp_path: Path) -> None:
    """The gap of the spec's indexed read plan: right only with the gap's generations fed to it."""
    table = indexed_table(tmp_path)
    table.flush(table.shards[0], Put(range(300, 340), 1000))
    table.merge_all()
    by_hand = nearest_by_hand(table, 4)
    assert nearest_of_pylance(table, 4) != by_hand
    fed_the_gap = nearest_of_pylance(table, 4, merged=True)
    assert sorted(fed_the_gap) == sorted(by_hand)
    found = rows_of(table, nearest=Nearest(column="vector", vector=VECTOR, k=4))
    assert [row["n"] for row in found] == by_hand


def test_the_gaps_generations_do_not_hold_what_was_appended_since(tmp_path: Path) -> None:
    """Why this read scans the base's uncovered rows and not the gap's generations."""
    table = indexed_table(tmp_path)
    table.flush(table.shards[0], Put(range(300, 340), 1000))
    table.merge_all()
    lance.write_dataset(
        pa.Table.from_pylist([{**table.row(900, 1000), "n": 5}], schema=table.dataset.schema),
        table.uri, mode="append",
    )  # fmt: skip
    assert 5 not in nearest_of_pylance(table, 400, merged=True)
    found = rows_of(table, nearest=Nearest(column="vector", vector=VECTOR, k=400))
    assert 5 in [row["n"] for row in found]


def test_the_search_gives_wrong_rows_when_the_nearest_were_written_again(tmp_path: Path) -> None:
    table = indexed_table(tmp_path)
    table.flush(table.shards[0], Put(range(60), 500_000))
    assert nearest_of_pylance(table, 5) != nearest_by_hand(table, 5)
    found = rows_of(table, nearest=Nearest(column="vector", vector=VECTOR, k=5))
    assert [row["n"] for row in found] == nearest_by_hand(table, 5)


# ---- explain


def gap_table(folder: Path) -> Table:
    """Two merged generations that the indexes do not cover, and one pending."""
    table = builders.make_table(folder / "t", rows=range(300))
    table.dataset.create_index("vector", "IVF_FLAT", num_partitions=1, name="vector_idx")
    table.dataset.create_scalar_index("n", "BTREE", name="n_idx")
    (shard,) = table.shards
    for turn in range(3):
        table.flush(shard, Put(range(300, 320), 2000 + 100 * turn))
    table.merger().run(shard, MergeRequest(until_generation=2))
    return table


def test_explain_shows_what_lance_does_with_a_scalar_filter(tmp_path: Path) -> None:
    table = gap_table(tmp_path)
    reads = open_table(table.uri)
    found = explain(reads, ReadRequest(filter="n = 2203"))
    assert "]@n_idx(BTree)" in found["base"]["lance_plan"]
    (shard,) = found["shards"]
    assert [g["generation"] for g in shard["generations"]] == [3]
    assert (shard["merged_generation"], shard["skipped_as_merged"]) == (2, [1, 2])


def test_explain_shows_what_lance_does_with_a_search(tmp_path: Path) -> None:
    table = gap_table(tmp_path)
    reads = open_table(table.uri)
    found = explain(reads, ReadRequest(nearest=Nearest(column="vector", vector=VECTOR)))
    assert "ANNSubIndex: name=vector_idx" in found["base"]["lance_plan"]


def test_explain_tells_of_a_generation_without_the_filtered_column(tmp_path: Path) -> None:
    table = gap_table(tmp_path)
    table.dataset.add_columns(pa.field("x", pa.int64()))
    reads = open_table(table.uri)

    def plan(predicate: str) -> str | None:
        (shard,) = explain(reads, ReadRequest(filter=predicate))["shards"]
        return shard["generations"][0]["lance_plan"]

    small = plan("x = 3")
    assert small is not None
    assert "full_filter=--" in small, "it is read whole, and filtered in memory"
    assert plan("abs(x) = 3") is None, "it is lined up in memory first, as a call may need an index"
