"""`memwal quiesce`: it says that the write spec may be changed only when nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwal.format import layout
from memwal.model import ShardStatus
from tests.support import builders
from tests.support.builders import Delete, Put, Table
from tests.support.command import run_here
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration

SHORT = ("--retention", "0s", "--grace", "0s", "--allow-short-retention")
GONE = ("--idle", "0s", "--yes")


def quiesce(table: Table, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = run_here("quiesce", table.uri, *arguments, "--json")
    return done.returncode, json.loads(done.stdout)["tables"][0]


def obstacles(found: dict[str, Any]) -> set[str]:
    return {obstacle["kind"] for obstacle in found["in_the_way"]}


def outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {job["job"]: job["outcome"] for job in found["jobs"]}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(
        tmp_path / "t", rows=range(20), shards=2, indexed=True, maintained=True
    )
    for n, shard in enumerate(table.shards):
        table.flush(shard, Put([2 * n, 30 + n], n))
    return table


def listed(table: Table) -> int:
    return sum(len(s.manifest.flushed_generations) for s in table.stores.views.table().shards)


def test_a_table_comes_to_rest(table: Table) -> None:
    abandon(table, table.shards[0], Put([9, 40], 5), Delete([1]))
    code, found = quiesce(table, *SHORT, *GONE)
    assert (code, found["outcome"], found["safe"], found["in_the_way"]) == (0, "done", True, [])
    assert outcomes(found) == dict.fromkeys(["rescue", "merge", "index-catchup", "garbage"], "done")
    assert listed(table) == 0
    builders.check_merged(table)
    assert table.stores.leases.current().released  # type: ignore[union-attr]
    # What the run itself left behind is no sign of a writer.
    code, found = quiesce(table, *SHORT)
    assert (code, found["safe"]) == (0, True)


def test_a_live_writer_s_rows_are_in_the_way_and_nobody_is_fenced(table: Table) -> None:
    shard = table.shards[0]
    with table.writer(shard) as writer:
        builders.apply(table, writer, table.dataset.schema, Put([9], 5), {})
        before = table.stores.shard_manifests.latest(shard)
        code, found = quiesce(table, *SHORT, "--yes")
        assert (code, found["outcome"], found["safe"]) == (5, "refused", False)
        assert obstacles(found) == {"wal_rows"}
        assert "a writer may be alive" in found["error"]
        after = table.stores.shard_manifests.latest(shard)
        assert before is not None
        assert after is not None
        assert after.writer_epoch == before.writer_epoch
        builders.apply(table, writer, table.dataset.schema, Put([10], 6), {})
    assert quiesce(table, *SHORT)[1]["safe"]


@pytest.mark.parametrize("first_claim", [True, False])
def test_a_writer_that_has_put_nothing_is_in_the_way(table: Table, first_claim: bool) -> None:
    shard = table.add_shard() if first_claim else table.shards[0]
    with table.writer(shard):
        code, found = quiesce(table, *SHORT, "--yes")
        assert (code, obstacles(found)) == (5, {"live_writer"})
        assert shard in found["in_the_way"][0]["detail"]
    assert quiesce(table, *SHORT, "--idle", "0s")[0] == 0


def test_rows_of_a_writer_that_is_gone_are_claimed_only_when_confirmed(table: Table) -> None:
    abandon(table, table.shards[0], Put([9], 5))
    code, found = quiesce(table, *SHORT, "--idle", "0s")
    assert (code, outcomes(found)) == (2, {"rescue": "failed"})
    assert "pass --yes" in found["error"]
    assert "wal_rows" in obstacles(found)


def test_a_sealed_shard_is_in_the_way(table: Table) -> None:
    builders.set_status(table, table.shards[0], ShardStatus.SEALED)
    code, found = quiesce(table, *SHORT)
    assert (code, found["outcome"], found["safe"]) == (5, "refused", False)
    assert "sealed" in obstacles(found)
    # The others are merged all the same.
    assert table.progress() == {table.shards[1]: 1}


def test_a_version_that_needs_a_generation_is_in_the_way(table: Table) -> None:
    code, found = quiesce(table)
    assert (code, obstacles(found)) == (5, {"listed"})
    assert "is retained and has merged up to 0 only" in found["error"]
    assert listed(table) == 2
    table.dataset.tags.create("kept", table.dataset.version)
    table.flush(table.shards[0], Put([9], 5))
    code, found = quiesce(table, *SHORT)
    assert (code, obstacles(found)) == (5, {"listed"})
    table.dataset.tags.delete("kept")
    assert quiesce(table, *SHORT)[1]["safe"]


def test_an_index_that_is_behind_is_named(table: Table) -> None:
    table.merge_all()
    code, found = quiesce(table, *SHORT, "--dry-run")
    assert code == 0
    (index,) = [o for o in found["in_the_way"] if o["kind"] == "index"]
    assert (index["index"], index["stays"]) == ("key_idx", False)


def test_a_missing_generation_is_in_the_way(table: Table) -> None:
    builders.unlist_generation(table, table.shards[0], 1)
    code, found = quiesce(table, *SHORT)
    assert (code, obstacles(found)) == (5, {"missing"})


def test_a_broken_shard_is_in_the_way(table: Table) -> None:
    shard = table.shards[0]
    manifest = table.stores.shard_manifests.latest(shard)
    assert manifest is not None
    (Path(table.uri) / layout.shard_manifest_path(shard, manifest.version)).write_bytes(b"\xff" * 9)
    code, found = quiesce(table, *SHORT)
    assert (code, found["safe"]) == (8, False)
    assert "broken" in obstacles(found)


def test_a_dry_run_changes_nothing_and_fails_for_what_stays(table: Table) -> None:
    abandon(table, table.shards[0], Put([9], 5))

    def everything() -> dict[str, int]:
        return {str(p): p.stat().st_mtime_ns for p in Path(table.uri).rglob("*")}

    before = everything()
    code, found = quiesce(table, *SHORT, "--dry-run", "--idle", "0s")
    assert (code, found["safe"]) == (0, False)
    assert obstacles(found) == {"wal_rows", "pending"}
    assert not any(o["stays"] for o in found["in_the_way"])
    code, found = quiesce(table, *SHORT, "--dry-run")
    assert code == 5
    assert [o["kind"] for o in found["in_the_way"] if o["stays"]] == ["wal_rows"]
    assert everything() == before


def test_people_see_what_is_in_the_way(table: Table) -> None:
    seen = run_here("quiesce", table.uri)
    assert seen.returncode == 5
    assert seen.stdout.count("not safe to change the write spec:") == 1
    assert "--retention 0s --allow-short-retention" in seen.stdout
    assert "safe to change the write spec\n" in run_here("quiesce", table.uri, *SHORT).stdout
