"""Stores that break S3's rules: who writes is refused in time, and who reads reads it all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal.ingest.apply
from memwal.cli.app import app
from memwal.errors import StoreUnavailable, Unsupported
from memwal.ingest import open_writer
from memwal.ports import Clock, Objects
from memwal.read import open_table
from memwal.store.objects import opening
from tests.support import builders
from tests.support import garbage_runs as runs
from tests.support.builders import Put, Table
from tests.support.s3server import S3Server
from tests.support.wal_tables import abandon

pytestmark = pytest.mark.integration

COLLECT = ("--execute", "--wal", "--retention", "0s", "--grace", "0s", "--allow-short-retention")
SOURCE = "SOURCE"
SHARD = "SHARD"  # named: no shard here says which values it has
# ---- a store that ignores `If-None-Match`

WRITING = (
    ("garbage", *COLLECT),
    ("merge",),
    ("merge", "--no-lease"),
    ("rescue", "--yes", "--idle", "0s"),
    ("ingest", SOURCE, "--shard", SHARD),
    ("lease", "break", "--reason", "the host is gone"),
)
# These go by the same gate as `merge` and `ingest`.
WRITING_TOO = (
    ("snapshot",),
    ("index-catchup",),
    ("compaction",),
    ("maintain", *COLLECT),
    ("backfill",),
    ("ingest", SOURCE, "--shard", SHARD, "--merge", "--id", "again"),
)
SPARK = (("merge", "--engine", "spark"), ("ingest", SOURCE, "--shard", SHARD, "--engine", "spark"))
JVM = (pytest.mark.nightly, pytest.mark.spark)
READING = (
    ("status",),
    ("read",),
    ("verify",),
    ("runs",),
    ("merge", "--dry-run"),
    ("garbage",),
    ("ingest", SOURCE, "--shard", SHARD, "--dry-run"),
)
LACKING = "does not keep put-if-absent"


@pytest.fixture(scope="module")
def unsound(s3_server: S3Server) -> Table:
    """Shards with generations to merge and to delete, rows to index, and a WAL to rescue."""
    uri = f"s3://{s3_server.make_bucket('conditions')}/t"
    table = runs.collectable(uri, shards=2, generations=1, options=s3_server.storage_options)
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put([400 + place], 1000))
    for done in table.merge_all():
        assert done.error is None
    table.flush(table.shards[0], Put([460], 2000))
    abandon(table, table.add_shard(), Put([500], 3000))
    return table


def arguments(table: Table, words: tuple[str, ...], tmp_path: Path) -> list[str]:
    """The command's words, on the table."""
    file = tmp_path / "rows.parquet"
    rows = [table.row(key, 7000 + key) for key in (600, 601)]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.dataset.schema), file)
    job = words[:2] if words[0] == "lease" else words[:1]
    stand_ins = {SOURCE: str(file), SHARD: table.shards[0]}
    given = [stand_ins.get(word, word) for word in words[len(job) :]]
    options = [f"--storage-option={k}={v}" for k, v in table.options.items()]
    return [*job, table.uri, *given, *options, "--json"]


def stored(table: Table) -> dict[str, tuple[int, int]]:
    return {i.path: (i.size_bytes, i.modified_at_nanos) for i in table.stores.objects.list("")}


@pytest.mark.parametrize(
    "words",
    [
        *WRITING,
        *(pytest.param(words, marks=pytest.mark.nightly) for words in WRITING_TOO),
        *(pytest.param(words, marks=JVM) for words in SPARK),
    ],
    ids=" ".join,
)
def test_every_command_that_writes_is_refused(
    unsound: Table, words: tuple[str, ...], tmp_path: Path
) -> None:
    held = unsound.stores.leases.acquire("merge")  # where nobody holds it, nothing is broken
    before = stored(unsound)
    done = CliRunner().invoke(app, arguments(unsound, words, tmp_path))
    report = json.loads(done.stdout)
    assert (done.exit_code, report["outcome"]) == (7, "refused"), report
    assert LACKING in str(report)
    assert "run records could not be written" not in str(report)
    assert stored(unsound) == before
    unsound.stores.leases.release(held)


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_what_only_reads_still_does(unsound: Table, words: tuple[str, ...], tmp_path: Path) -> None:
    before = stored(unsound)
    done = CliRunner().invoke(app, arguments(unsound, words, tmp_path))
    assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout).get("requests", {}).get("put", 0) == 0
    assert stored(unsound) == before


def test_an_ingest_that_another_process_began_is_refused(
    unsound: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = arguments(unsound, ("ingest", SOURCE, "--shard", SHARD), tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(opening, "_proven", {unsound.stores.objects.store})
        patch.setattr(memwal.ingest.apply.Track, "run", _fails)
        assert CliRunner().invoke(app, words).exit_code == 1
    before = stored(unsound)
    assert any(path.endswith("/plan.json") for path in before)
    assert CliRunner().invoke(app, words).exit_code == 7
    assert stored(unsound) == before


def _fails(track: object) -> None:
    raise StoreUnavailable("the process ends here")


def test_a_run_that_failed_before_it_wrote_leaves_no_record(unsound: Table, tmp_path: Path) -> None:
    before = stored(unsound)
    words = ("merge", "--shard", "00000000-0000-4000-8000-000000000000")
    assert CliRunner().invoke(app, arguments(unsound, words, tmp_path)).exit_code == 2
    assert stored(unsound) == before


def test_a_program_s_writer_is_refused(s3_server: S3Server) -> None:
    uri = f"s3://{s3_server.make_bucket('conditions')}/t"
    table = builders.make_table(uri, rows=range(3), options=s3_server.storage_options)
    before = stored(table)
    with pytest.raises(Unsupported, match=LACKING):
        open_writer(uri, table.options)
    assert stored(table) == before


def test_a_pass_with_nothing_to_do_pays_nothing(s3_server: S3Server) -> None:
    uri = f"s3://{s3_server.make_bucket('conditions')}/t"
    table = builders.make_table(uri, rows=range(3), options=s3_server.storage_options)
    table.flush(table.shards[0], Put([1], 10))
    assert table.merge_all()[0].error is None
    options = [f"--storage-option={k}={v}" for k, v in table.options.items()]
    done = CliRunner().invoke(app, ["merge", table.uri, *options, "--json"])
    report = json.loads(done.stdout)
    assert (done.exit_code, report["outcome"]) == (0, "nothing_to_do"), report
    assert (report["requests"]["put"], report["requests"]["delete"]) == (0, 0)


def test_a_process_proves_a_store_once(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables of a store, one of another: four requests for each store."""
    proofs: list[str] = []
    prove = opening.prove_put_if_absent

    def counted(objects: Objects, clock: Clock) -> None:
        before = sum(objects.counts.as_dict()[kind] for kind in ("put", "get", "list", "delete"))
        prove(objects, clock)
        after = sum(objects.counts.as_dict()[kind] for kind in ("put", "get", "list", "delete"))
        proofs.append(f"{objects.store}: {after - before}")

    monkeypatch.setattr(opening, "_proven", set())
    monkeypatch.setattr(opening, "prove_put_if_absent", counted)
    one, other = s3_server.make_bucket(), s3_server.make_bucket()
    uris = [f"s3://{one}/a", f"s3://{one}/b", f"s3://{other}/c"]
    for uri in uris:
        table = builders.make_table(uri, rows=range(3), options=s3_server.storage_options)
        table.flush(table.shards[0], Put([1], 10))
    options = [f"--storage-option={k}={v}" for k, v in s3_server.storage_options.items()]
    done = CliRunner().invoke(app, ["merge", *uris, *options, "--json"])
    assert done.exit_code == 0, done.stdout
    assert sorted(proofs) == [f"{s3_server.endpoint}/{bucket}: 4" for bucket in (one, other)]


# ---- a store that answers ranges and listings wrongly


@pytest.fixture(scope="module")
def misleading(s3_server: S3Server) -> Table:
    uri = f"s3://{s3_server.make_bucket('suffixes', 'folders')}/t"
    table = builders.make_table(uri, rows=range(5), shards=3, options=s3_server.storage_options)
    for place, shard in enumerate(table.shards):
        table.flush(shard, Put([10 + place], 100))
    return table


def shards_of(words: str, report: dict[str, Any]) -> int:
    """How many shards a command's document tells of."""
    (found,) = report.get("tables", [report])
    if words.startswith("garbage"):
        return len({item["shard_id"] for item in found["items"]})
    return len(found["shards"])


@pytest.mark.parametrize(
    "words",
    ["status", "merge --dry-run", "garbage", "inspect shard", "inspect wal", "merge"],
)
def test_all_commands_find_the_same_shards(misleading: Table, words: str) -> None:
    *job, last = words.split()
    named = [*job, last, misleading.uri] if "--" not in last else [*job, misleading.uri, last]
    options = [f"--storage-option={k}={v}" for k, v in misleading.options.items()]
    done = CliRunner().invoke(app, [*named, *options, "--json"])
    assert done.exit_code == 0, done.stdout
    assert shards_of(words, json.loads(done.stdout)) == 3


@pytest.mark.parametrize("version", [None, 2])
def test_a_read_misses_no_shard_s_rows(misleading: Table, version: int | None) -> None:
    found = open_table(misleading.uri, misleading.options).read(version=version).read_all()
    assert misleading.keyed(found.select([f.name for f in misleading.dataset.schema])).keys() == (
        misleading.truth().keys()
    )


def test_healthy_data_is_not_called_corrupt(misleading: Table) -> None:
    options = [f"--storage-option={k}={v}" for k, v in misleading.options.items()]
    done = CliRunner().invoke(app, ["verify", misleading.uri, *options, "--json"])
    assert (done.exit_code, json.loads(done.stdout)["outcome"]) == (0, "done"), done.stdout
