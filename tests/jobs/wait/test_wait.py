"""`memwal wait` on real tables, beside the jobs that it waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memwal.format import layout
from tests.support import builders
from tests.support.builders import Put, Table
from tests.support.nursery import Started, run_memwal, start_memwal

pytestmark = pytest.mark.integration

SHORT = ("--execute", "--retention", "0s", "--grace", "0s", "--allow-short-retention")


def wait(table: Table, until: str, *arguments: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the table's report, and stderr."""
    return ended(start_memwal("wait", table.uri, "--until", until, "--json", *arguments))


def ended(process: Started) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    report = json.loads(out)
    assert report["job"] == "wait"
    (found,) = report["tables"]
    assert report["outcome"] == found["outcome"]
    return process.returncode, found, err


def job(*arguments: str) -> None:
    done = run_memwal(*arguments)
    assert done.returncode == 0, done.stderr


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
        code, found, err = wait(table, until, "--timeout", "0s")
        assert (code, found["outcome"], found["reached"]) == (4, "held", False)
        assert (found["until"], found["target"]) == (until, target)
        assert found["missing"] == {one: 0, two: 0}
        assert f"shard {two} at 0 of 3" in found["error"]
        assert f"{until}: 0 of 2 shards" in err
    assert sorted(p for p in Path(table.uri).rglob("*")) == before

    job("merge", table.uri, "--shard", one)
    code, found, _ = wait(table, "merged", "--timeout", "0s")
    assert (code, found["missing"]) == (4, {two: 0})
    job("merge", table.uri)
    assert wait(table, "merged", "--timeout", "0s")[0] == 0
    assert wait(table, "indexed", "--timeout", "0s")[0] == 4
    job("index-catchup", table.uri)
    code, found, _ = wait(table, "indexed", "--timeout", "0s")
    assert (code, found["outcome"], found["reached"]) == (0, "done", True)
    assert (found["target"], found["missing"], found["error"]) == (target, {}, None)
    job("garbage", table.uri, *SHORT)  # drops them from the manifests
    assert wait(table, "collected", "--timeout", "0s")[0] == 4
    job("garbage", table.uri, *SHORT)  # deletes their folders
    assert wait(table, "collected", "--timeout", "0s")[0] == 0


def test_it_ends_when_a_merge_elsewhere_gets_there(table: Table) -> None:
    waiting = start_memwal("wait", table.uri, "--until", "merged", "--timeout", "2m", "--json")
    assert waiting.stderr is not None
    assert "merged: 0 of 2 shards" in waiting.stderr.readline()
    # What is flushed after it began is not waited for.
    table.flush(table.shards[0], Put([900], 1))
    job("merge", table.uri, "--until-generation", "2")
    assert waiting.poll() is None
    job("merge", table.uri, "--shard", table.shards[1])
    code, found, _ = ended(waiting)
    assert (code, found["reached"]) == (0, True)
    assert found["version_after"] > found["version_before"]
    assert table.progress()[table.shards[0]] == 2


def test_a_named_generation_is_the_whole_target(table: Table) -> None:
    one, two = table.shards
    job("merge", table.uri, "--shard", one)
    code, found, _ = wait(table, "merged", "--generation", f"{one}=2", "--timeout", "0s")
    assert (code, found["target"]) == (0, {one: 2})
    code, found, _ = wait(
        table, "merged", "--generation", f"{one}=3", "--generation", f"{two}=1", "--timeout", "0s"
    )
    assert (code, found["missing"]) == (4, {one: 2, two: 0})


@pytest.mark.parametrize(
    "arguments",
    [
        ("--until", "nope"),
        ("--until", "merged", "--timeout", "soon"),
        ("--until", "merged", "--generation", "1"),
        ("--until", "merged", "--generation", "x=1"),
        ("--until", "merged", "--generation", "00000000-0000-4000-8000-000000000000=0"),
        ("--until", "merged", "--generation", "00000000-0000-4000-8000-000000000000=1"),
        ("--until", "merged", *["--generation", "00000000-0000-4000-8000-000000000000=1"] * 2),
    ],
)
def test_a_wrong_request_is_said_at_once(table: Table, arguments: tuple[str, ...]) -> None:
    process = start_memwal("wait", table.uri, "--json", *arguments)
    out, err = process.communicate(timeout=60)
    report = json.loads(out)
    assert (process.returncode, report["outcome"]) == (2, "failed")
    assert "Traceback" not in err


def test_no_table_and_a_broken_shard(table: Table, tmp_path: Path) -> None:
    missing = start_memwal("wait", str(tmp_path / "nothing"), "--until", "merged", "--json")
    assert ended(missing)[0] == 2
    one, two = table.shards
    manifest = table.stores.shard_manifests.latest(one)
    assert manifest is not None
    Path(table.uri, layout.shard_manifest_path(one, manifest.version)).write_bytes(b"torn")
    code, found, _ = wait(table, "merged", "--timeout", "30s")
    assert (code, found["reached"], one in found["error"]) == (8, False, True)
    job("merge", table.uri, "--shard", two)
    assert wait(table, "merged", "--generation", f"{two}=3", "--timeout", "0s")[0] == 0


def test_people_see_what_is_missing(table: Table) -> None:
    process = start_memwal("wait", table.uri, "--until", "merged", "--timeout", "0s")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    row = next(line for line in out.splitlines() if line.startswith(table.shards[1]))
    assert row.split() == [table.shards[1], "0", "3"]
