"""`memwal inspect wal` on real tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memwal.config import ResolvedTable, Settings
from memwal.jobs.inspect import run_inspect
from memwal.model import ShardId
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.nursery import run_memwal
from tests.support.wal_tables import abandon, entry_file, rewrite

pytestmark = pytest.mark.integration


def inspected(table: Table, shard: ShardId | None = None, **options: Any) -> dict[str, Any]:
    resolved = ResolvedTable(
        name="t", uri=table.uri, settings=Settings(), storage_options=table.options
    )
    return run_inspect(
        "wal", resolved, shard=shard, version=None, untested_lance_allowed=False, **options
    ).to_json()


def columns(shard: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(entry[name] for name in names) for entry in shard["entries"]]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Generation 1 merged, 2 pending, and a writer that left two entries."""
    table = builders.make_table(tmp_path / "t", rows=[1, 2, 3])
    (shard,) = table.shards
    table.flush(shard, Put([1, 2], 10))
    table.merge_all()
    table.flush(shard, Put([4], 20), Delete([3]))
    abandon(table, shard, Put([5, 6, 6], 30), Delete([1]))
    return table


def test_each_entry_with_what_it_is_and_what_covers_it(table: Table) -> None:
    (shard,) = inspected(table)["shards"]
    names = ("position", "writer_epoch", "generation", "fence_sentinel", "rows", "standing")
    assert columns(shard, *names, "covered_by_generation", "covered_by_state") == [
        (1, 1, 1, False, 2, "covered", 1, "merged"),
        (2, 2, None, True, 0, "covered", None, None),
        (3, 2, 2, False, 1, "covered", 2, "pending"),
        (4, 2, 2, False, 1, "covered", 2, "pending"),
        (5, 3, None, True, 0, "sentinel", None, None),
        (6, 3, 3, False, 3, "unflushed", None, None),
        (7, 3, 3, False, 1, "unflushed", None, None),
    ]
    sizes = [entry_file(table, table.shards[0], p).stat().st_size for p in range(1, 8)]
    assert [bytes_ for (bytes_,) in columns(shard, "bytes")] == sizes
    assert shard["unflushed"] == {"entries": 2, "rows": 4, "bytes": sum(sizes[5:])}
    assert all(0 <= age < 300 for (age,) in columns(shard, "age_seconds"))
    assert (shard["next_position"], shard["left_out"], shard["problems"]) == (8, 0, [])


def test_the_newest_are_shown_and_all_that_is_unflushed_counts(table: Table) -> None:
    (shard,) = inspected(table, shown_max=3)["shards"]
    assert columns(shard, "position") == [(5,), (6,), (7,)]
    assert shard["left_out"] == 4
    (shard,) = inspected(table, shown_max=1)["shards"]
    assert columns(shard, "position") == [(7,)]
    assert (shard["left_out"], shard["unflushed"]["rows"]) == (6, 4)


def test_a_generation_that_nobody_lists_and_nobody_merged_is_gone(table: Table) -> None:
    builders.unlist_generation(table, table.shards[0], 2)
    (shard,) = inspected(table)["shards"]
    assert columns(shard, "position", "covered_by_state")[2:4] == [(3, "gone"), (4, "gone")]


def test_what_is_wrong_is_shown_and_hides_nothing(table: Table) -> None:
    (shard_id,) = table.shards
    torn = entry_file(table, shard_id, 1)
    torn.write_bytes(torn.read_bytes()[:900])
    rewrite(table, shard_id, 6, writer_epoch=50)
    (shard,) = inspected(table)["shards"]
    assert columns(shard, "position", "standing")[-2:] == [(6, "forged"), (7, "unflushed")]
    assert shard["problems"] == ["position 6 has writer epoch 50, above the manifest's 3"]
    assert len(shard["broken"]) == 1
    assert "position 1" in shard["broken"][0]
    entry_file(table, shard_id, 6).unlink()
    (shard,) = inspected(table)["shards"]
    assert shard["problems"] == [
        "position 6 is missing, but 7 was written: entries are lost in between"
    ]
    assert columns(shard, "position", "standing")[-1] == (7, "unreached")


def test_the_command_shows_it(table: Table) -> None:
    done = run_memwal("inspect", "wal", table.uri, "--shard", table.shards[0], "--limit", 1)
    assert done.returncode == 0, done.stderr
    assert "unflushed" in done.stdout
