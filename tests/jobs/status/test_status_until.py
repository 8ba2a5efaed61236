"""`memwal status --until` on real tables, beside the jobs that it waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwal.format import layout
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.command import run_here

pytestmark = pytest.mark.integration

SHORT = ("--execute", "--retention", "0s", "--grace", "0s", "--allow-short-retention")


def wait(uri: str, until: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the table's report with how the wait ended, and stderr."""
    done = run_here("status", uri, "--until", until, "--json", *arguments)
    (found,) = json.loads(done.stdout)["tables"]
    return done.returncode, {**found, **(found.get("until") or {})}, done.stderr


def job(*arguments: str) -> None:
    assert run_here(*arguments).returncode == 0


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for number, shard in enumerate(table.shards, start=2):
        for key in range(number):
            table.flush(shard, Put([100 * number + key], 1))
    return table


def test_from_flushed_to_collected(table: Table) -> None:
    one, two = table.shards
    target = {one: 2, two: 3}
    before = sorted(p for p in Path(table.uri).rglob("*"))
    for until in ("merged", "indexed", "collected"):
        code, found, err = wait(table.uri, until, "--timeout", "0s")
        assert (code, found["outcome"], found["reached"]) == (4, "held", False)
        assert (found["step"], found["target"]) == (until, target)
        assert found["missing"] == {one: 0, two: 0}
        assert f"shard {two} at 0 of 3" in found["error"]
        assert f"{until}: 0 of 2 shards" in err
    assert sorted(p for p in Path(table.uri).rglob("*")) == before

    job("merge", table.uri, "--shard", one)
    code, found, _ = wait(table.uri, "merged", "--timeout", "0s")
    assert (code, found["missing"]) == (4, {two: 0})
    job("merge", table.uri)
    assert wait(table.uri, "merged", "--timeout", "0s")[0] == 0
    assert wait(table.uri, "indexed", "--timeout", "0s")[0] == 4
    job("index-catchup", table.uri)
    code, found, _ = wait(table.uri, "indexed", "--timeout", "0s")
    assert (code, found["outcome"], found["reached"]) == (0, "done", True)
    assert (found["target"], found["missing"], found["error"]) == (target, {}, None)
    job("garbage", table.uri, *SHORT)  # drops them from the manifests
    assert wait(table.uri, "collected", "--timeout", "0s")[0] == 4
    job("garbage", table.uri, *SHORT)  # deletes their folders
    assert wait(table.uri, "collected", "--timeout", "0s")[0] == 0


def test_a_named_generation_is_the_whole_target(table: Table) -> None:
    one, two = table.shards
    job("merge", table.uri, "--shard", one)
    code, found, _ = wait(table.uri, "merged", "--generation", f"{one}=2", "--timeout", "0s")
    assert (code, found["target"]) == (0, {one: 2})
    both = ("--generation", f"{one}=3", "--generation", f"{two}=1")
    code, found, _ = wait(table.uri, "merged", *both, "--timeout", "0s")
    assert (code, found["missing"]) == (4, {one: 2, two: 0})


@pytest.mark.parametrize(
    "arguments",
    [
        ("--until", "nope"),
        ("--generation", "00000000-0000-4000-8000-000000000000=1"),
        ("--until", "merged", "--generation", "x=1"),
        ("--until", "merged", "--generation", "00000000-0000-4000-8000-000000000000=0"),
        ("--until", "merged", *["--generation", "00000000-0000-4000-8000-000000000000=1"] * 2),
    ],
)
def test_a_wrong_request_is_said_at_once(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run_here("status", tmp_path, "--json", *arguments)
    assert (done.returncode, json.loads(done.stdout)["outcome"]) == (2, "failed")


def test_no_table_and_a_broken_shard(table: Table, tmp_path: Path) -> None:
    assert wait(str(tmp_path / "nothing"), "merged")[0] == 2
    one, two = table.shards
    manifest = table.stores.shard_manifests.latest(one)
    assert manifest is not None
    Path(table.uri, layout.shard_manifest_path(one, manifest.version)).write_bytes(b"torn")
    code, found, _ = wait(table.uri, "merged", "--timeout", "30s")
    assert (code, one in found["error"]) == (8, True)
    job("merge", table.uri, "--shard", two)
    assert wait(table.uri, "merged", "--generation", f"{two}=3", "--timeout", "0s")[0] == 0
