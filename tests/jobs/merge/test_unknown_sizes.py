"""Generations whose writer recorded no sizes, as older Lance does not: they are found out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwal.cli import main
from memwal.format import layout
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.plan import MergeLimits, group_shards
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId
from memwal.run.engines.choice import JVM_SECONDS, LOCAL_BYTES_PER_SECOND
from memwal.store.tables.datasets import LanceTables
from tests.support import builders
from tests.support.builders import Put, Table

pytestmark = pytest.mark.integration

GENERATIONS = 6
ROWS = 100


def forget_sizes(table: Table) -> None:
    for shard in table.shards:
        manifests = table.stores.shard_manifests
        current = manifests.latest(shard)
        assert current is not None
        bare = [
            FlushedGeneration(generation=g.generation, path=g.path)
            for g in current.flushed_generations
        ]
        # Entries that were there before keep what they had, so there are none.
        manifests.commit(
            replace(current, raw=b""), replace(current, raw=b"", flushed_generations=tuple(bare))
        )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(5))
    for number in range(GENERATIONS):
        table.flush(table.shards[0], Put(range(number, number + ROWS), number))
    return table


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The generations that were looked into."""
    done: list[int] = []
    original = LanceTables.generation_size

    def counted(self: LanceTables, shard: Any, generation: FlushedGeneration) -> Any:
        done.append(generation.generation)
        return original(self, shard, generation)

    monkeypatch.setattr(LanceTables, "generation_size", counted)
    return done


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(table: Table, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(name: str, *options: str) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            main([name, table.uri, "--json", *options])
        document = json.loads(capsys.readouterr().out)
        assert ended.value.code == 0, document
        return {**document, **document["tables"][0]}

    return run


def test_sizes_that_are_known_are_not_looked_up(table: Table, run: Run, lookups: list[int]) -> None:
    (shard,) = run("status")["shards"]
    assert (shard["pending_rows"], shard["sizes_estimated"]) == (GENERATIONS * ROWS, False)
    run("merge")
    assert lookups == []


def test_status_tells_rows_and_about_the_bytes(table: Table, run: Run, lookups: list[int]) -> None:
    (known,) = run("status")["shards"]
    forget_sizes(table)
    (found,) = run("status")["shards"]
    assert lookups == list(range(1, GENERATIONS + 1))
    assert (found["pending_rows"], found["sizes_estimated"]) == (known["pending_rows"], True)
    assert known["pending_bytes"] / 3 < found["pending_bytes"] < known["pending_bytes"] * 3
    listed = table.stores.shard_manifests.latest(table.shards[0]).flushed_generations
    assert {g.in_memory_bytes for g in listed} == {None}, "nothing is stored of it"


def test_a_merge_groups_them_and_needs_no_jvm(table: Table, run: Run) -> None:
    forget_sizes(table)
    as_full = GENERATIONS * MergeLimits().bytes_per_commit_max
    assert as_full / LOCAL_BYTES_PER_SECOND > JVM_SECONDS, "which would start one"
    shard = run("merge", "--dry-run")["shards"][0]
    assert (shard["generations"], shard["commits"]) == (GENERATIONS, 1)
    assert shard["planned"]["physical_rows"] == GENERATIONS * ROWS
    report = run("merge")
    assert report["engine"]["name"] == "local"
    assert [s["commits"] for s in report["shards"]] == [1]
    builders.check_merged(table)


def test_what_is_estimated_is_not_held_in_memory(table: Table) -> None:
    """A file may pack what unfolds to far more: so it is streamed, and shares no commit."""
    stores, (shard,) = table.stores, table.shards

    def plan() -> tuple[bool, tuple[tuple[ShardId, ...], ...]]:
        view = stores.views.shards([shard, other])
        fold = open_merge_table(stores).fold(view, shard, view.shards[0].pending)
        return fold.streams, group_shards(view, view.shards, MergeRequest(), MergeLimits())

    other = table.add_shard()
    table.flush(other, Put([1], 1))
    assert plan() == (False, ((shard, other),))
    forget_sizes(table)
    assert plan() == (True, ((shard,), (other,)))


def test_the_bytes_of_a_commit_keep_their_limit(table: Table, run: Run) -> None:
    forget_sizes(table)
    (shard,) = table.stores.views.table(pending_sizes=True).shards
    sizes = [g.in_memory_bytes or 0 for g in shard.pending]
    assert all(sizes)
    report = run("merge", "--bytes-per-commit-max", str(sizes[0] + sizes[1]))
    assert [s["commits"] for s in report["shards"]] == [GENERATIONS // 2]


def test_packed_columns_of_fixed_width_count_as_what_they_take_in_memory(tmp_path: Path) -> None:
    """A file packs equal values, so that its size would say nothing."""
    table = builders.make_table(tmp_path / "t")
    (shard,) = table.shards
    rows = [{**table.row(key, 1), "text": None, "nested": None} for key in range(20_000)]
    builders.list_generations(table, shard, builders.hand_written(table, shard, rows))
    (found,) = table.stores.views.shard(shard).shards
    (generation,) = found.pending
    files = Path(table.uri) / layout.shard_folder(shard) / generation.path
    stored = sum(f.stat().st_size for f in files.rglob("*.lance"))
    assert generation.physical_rows == 20_000
    # k, n, four floats of the vector; a bit of the tombstone, rounded down.
    assert generation.in_memory_bytes == 20_000 * (8 + 8 + 16) > stored


def test_what_can_not_be_looked_up_stays_unknown(table: Table, run: Run) -> None:
    forget_sizes(table)
    (shard,) = table.stores.views.table().shards
    folder = layout.generation_folder(shard.shard_id, shard.pending[2].path, 3)
    shutil.rmtree(Path(table.uri) / folder)
    (found,) = run("status")["shards"]
    assert (found["pending_rows"], found["pending_bytes"]) == (None, None)


def test_a_view_looks_up_a_bounded_number_and_none_twice(
    table: Table, lookups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwal.store.tables.view._SIZES_MAX", 4)
    forget_sizes(table)
    views = table.stores.views
    assert [len(views.shard(table.shards[0]).shards[0].sized) for _ in range(3)] == [4, 6, 6]
    assert sorted(lookups) == [1, 2, 3, 4, 5, 6]
