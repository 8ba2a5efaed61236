"""A LanceDB client and memwal write the same keys, in turn, and all agree on the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from tests.support.lancedb_process import lancedb_client

pytestmark = pytest.mark.nightly

MAINTAIN = [
    "maintain",
    "--execute",
    "--grace",
    "0s",
    "--retention",
    "0s",
    "--wal",
    "--allow-short-retention",
]
KEYS = 30
SPECS = [["bucket", "id", 4], ["unsharded"], ["identity", "tenant"]]

Row = dict[str, Any]


def memwal(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stdout
    return json.loads(done.stdout)["tables"][0]


def row(key: int, n: int) -> Row:
    return {"id": key, "tenant": f"tenant {key % 3}", "n": n}


def by_id(rows: list[Row]) -> dict[int, Row]:
    found = {one["id"]: one for one in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec[0])
def test_both_write_the_same_keys_in_turn(tmp_path, spec) -> None:
    """Nothing is merged between the two: whose row is newer, one shard has to tell."""
    uri = str(tmp_path / "t.lance")
    wanted: dict[int, Row] = {}
    shards: set[str] = set()
    with lancedb_client(tmp_path) as lancedb:
        lancedb("create", spec=spec)
        for turn in range(6):
            rows = [row(key * 7 % KEYS, turn) for key in range(turn, turn + 12)]
            wanted |= by_id(rows)
            if turn % 2:
                source = tmp_path / f"{turn}.parquet"
                pq.write_table(pa.Table.from_pylist(rows), source)
                memwal("ingest", uri, str(source))
            else:
                lancedb("put", rows=rows)
            assert by_id(lancedb("read")) == wanted
            assert by_id(memwal("read", uri)["rows"]) == wanted
            shards |= {shard["shard_id"] for shard in memwal("status", uri)["shards"]}
            if turn in (2, 5):  # after LanceDB's turn, and after memwal's
                for _ in range(2):
                    memwal(*MAINTAIN, uri)
                assert by_id(lance.dataset(uri).to_table().to_pylist()) == wanted
                assert by_id(lancedb("read")) == wanted
                assert by_id(memwal("read", uri)["rows"]) == wanted
        assert memwal("verify", uri)["outcome"] == "done"
    assert len(shards) == {"bucket": 4, "unsharded": 1, "identity": 3}[spec[0]]


CHANGES = {
    "column": (["bucket", "id", 2], ["bucket", "tenant", 4], None),
    "sharding": (["unsharded"], ["identity", "tenant"], None),
    "index": (["bucket", "id", 2], ["bucket", "id", 2], "n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_write_spec_is_changed_after_a_quiesce(tmp_path, change) -> None:
    """No key waits in two shards, nothing looks missing, and no flag is needed."""
    uri = str(tmp_path / "t.lance")
    before, after, index = CHANGES[change]
    with lancedb_client(tmp_path) as lancedb:
        lancedb("create", spec=before)
        wanted = by_id([row(key, 0) for key in range(8)])
        lancedb("put", rows=list(wanted.values()))
        found = memwal("quiesce", uri, "--retention", "0s", "--allow-short-retention")
        assert found["safe"]
        lancedb("change_spec", spec=after, index=index)
        assert by_id(lancedb("read")) == wanted
        assert memwal("verify", uri)["outcome"] == "done"
        rows = [row(key, 1) for key in range(4, 12)]
        wanted |= by_id(rows)
        lancedb("put", rows=rows)
        assert memwal("verify", uri)["outcome"] == "done"
        source = tmp_path / "rows.parquet"
        rows = [row(key, 2) for key in range(2, 6)]
        wanted |= by_id(rows)
        pq.write_table(pa.Table.from_pylist(rows), source)
        memwal("ingest", uri, str(source))
        assert by_id(lancedb("read")) == by_id(memwal("read", uri)["rows"]) == wanted
        for _ in range(2):
            memwal(*MAINTAIN, uri)
        assert by_id(lance.dataset(uri).to_table().to_pylist()) == wanted
        assert by_id(lancedb("read")) == wanted
        assert memwal("verify", uri)["outcome"] == "done"


def test_deletes_and_updates_reach_the_base_only(tmp_path) -> None:
    uri = str(tmp_path / "t.lance")
    with lancedb_client(tmp_path) as lancedb:
        lancedb("create", spec=["unsharded"])
        assert len(lancedb("unsupported")) == 4
        lancedb("put", rows=[row(key, 0) for key in range(4)])
        lancedb("delete", where="id = 0")
        lancedb("update", where="id = 1", values={"n": 9})
        assert by_id(lancedb("read")) == by_id([row(key, 0) for key in range(4)])
        memwal("merge", uri)
        assert by_id(lancedb("read")) == by_id([row(key, 0) for key in range(4)])
        # Once rows are merged and dropped, both do what they say.
        assert memwal("quiesce", uri, "--retention", "0s", "--allow-short-retention")["safe"]
        lancedb("delete", where="id = 0")
        lancedb("update", where="id = 1", values={"n": 9})
        assert by_id(lancedb("read")) == by_id([row(1, 9), row(2, 0), row(3, 0)])
        assert by_id(memwal("read", uri)["rows"]) == by_id(lancedb("read"))


def test_both_find_the_same_texts(tmp_path: Path) -> None:
    """LanceDB ranks each table by its own scores, so that only what is found is compared."""
    words = ["apple", "pie", "universities", "running", "crust", "the", "fox"]
    uri = str(tmp_path / "texts.lance")
    with lancedb_client(tmp_path) as lancedb:
        lancedb("create_texts", texts=[f"{words[n % 7]} {words[n % 5]}" for n in range(20)])
        for turn in range(3):
            keys = range(5 * turn, 5 * turn + 8)
            lancedb("put_texts", texts={n: f"{words[n % 3 + turn]} {words[n % 7]}" for n in keys})
        for step in ("pending", "merged", "caught up"):
            for query in ("apples", "university run", "fox pie crust"):
                for where in (None, "id > 6"):
                    options = [] if where is None else ["--filter", where]
                    found = memwal("read", uri, "--search", f"text={query}", *options)["rows"]
                    theirs = lancedb("search", query=query, where=where)
                    assert sorted(row["id"] for row in found) == sorted(theirs), (step, query)
            if step == "pending":
                memwal("merge", uri)
            else:
                memwal("index-catchup", uri)
