"""The command, from its arguments to its report."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import cast

import lance
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal.ingest.apply
import memwal.ingest.progress.pace
from memwal.cli.app import app
from memwal.config import Config, resolve_table
from memwal.errors import Refused
from memwal.ingest import open_writer
from memwal.ingest.job import run_ingest
from memwal.ingest.plan import IngestOptions
from memwal.ingest.progress.pace import Backlog
from memwal.ingest.request import IngestRequest
from memwal.ingest.track import Track
from memwal.ingest.values.shape import Shape
from memwal.rows.policy import STORED_KEY
from memwal.run.stores import Stores, open_stores
from memwal.testing import ManualClock
from tests.support.ingest_tables import KEY, MemWalTable, make, rows_of, wal_rows
from tests.support.progress import Quiet
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration

SPEC = {"bucket_column": "id", "num_buckets": 3}


def run(*arguments: str) -> dict:
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert report["tables"], (report["error"], done.stderr)
    return {"exit_code": done.exit_code, "report": report, **report["tables"][0]}


def content(rows: pa.Table) -> dict[int, tuple[object, ...]]:
    return {row["id"]: (row["n"], row["note"]) for row in rows.to_pylist()}


def test_formats_side_by_side_and_what_came_since(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    source = tmp_path / "source"
    source.mkdir()
    pq.write_table(rows_of(range(100)), source / "a.parquet")
    pacsv.write_csv(rows_of(range(90, 120), 1), source / "b.csv")
    lance.write_dataset(rows_of(range(115, 130), 2), str(tmp_path / "c.lance"))
    asked = ["ingest", table.uri, str(source), str(tmp_path / "c.lance")]

    foreseen = run(*asked, "--dry-run")
    assert (foreseen["outcome"], foreseen["rows"], len(foreseen["shards"])) == ("done", 145, 3)
    assert all(shard["is_new"] for shard in foreseen["shards"])
    assert not (tmp_path / "t" / "_maintenance").exists()

    done = run(*asked)
    assert (done["exit_code"], done["outcome"], done["rows_written"]) == (0, "done", 145)
    assert {s["shard_id"]: s["rows"] for s in done["shards"]} == {
        s["shard_id"]: s["rows"] for s in foreseen["shards"]
    }
    summed = ("entries", "generations", "bytes_written")
    assert {k: sum(s[k] for s in done["shards"]) for k in summed} == {k: done[k] for k in summed}
    assert (done["entries"], done["generations"]) == (9, 3)
    assert done["bytes_read"] >= done["bytes_written"] * 0.9 > 0
    wanted = content(rows_of(range(100))) | content(rows_of(range(90, 120), 1))
    wanted |= content(rows_of(range(115, 130), 2))
    assert table.read(with_wal=False) == wanted

    assert run(*asked)["outcome"] == "nothing_to_do"
    pq.write_table(rows_of([500]), source / "c.parquet")
    more = run(*asked)
    assert [s["uri"].rpartition("/")[2] for s in more["sources"]] == ["c.parquet"]
    assert run(*asked)["outcome"] == "nothing_to_do"
    assert table.read() == wanted | content(rows_of([500]))
    again = run(*asked, "--again")
    assert again["rows_written"] == 146


def test_a_table_without_a_spec_and_one_named_shard(tmp_path) -> None:
    table = make(tmp_path / "t")
    pq.write_table(rows_of(range(10)), tmp_path / "a.parquet")
    first = run("ingest", table.uri, str(tmp_path / "a.parquet"))
    assert len(first["shards"]) == 1
    named = "0a7cbb0e-3f5e-4a2c-8a37-3f4d0b6d9a55"
    pq.write_table(rows_of([90]), tmp_path / "b.parquet")
    second = run("ingest", table.uri, str(tmp_path / "b.parquet"), "--shard", named)
    assert [shard["shard_id"] for shard in second["shards"]] == [named]
    assert sorted(table.read()) == [*range(10), 90]


@pytest.mark.parametrize("keys", [(), ("name", "id")], ids=str)
def test_other_keys(tmp_path, keys) -> None:
    """No primary key, and one of two columns, sharded by text."""
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("name", pa.string(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), 2)),
        ]
    )
    for name in keys:
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_metadata(KEY))
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(schema.empty_table(), uri)
    dataset.initialize_mem_wal(bucket_column="name", num_buckets=4)
    rows = [{"id": n, "name": f"n{n % 5}", "vector": [float(n), float("nan")]} for n in range(60)]
    source = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), source)
    asked = ["ingest", uri, str(source), "--rows-per-chunk", "7"]
    assert run(*asked)["rows_written"] == 60
    assert run(*asked)["outcome"] == "nothing_to_do"
    stores = open_stores(uri, {})
    written = [
        (row["id"], row["name"], row["vector"][0])
        for shard in stores.views.table().shards
        for position, _ in stores.wal.list_entries(shard.shard_id)
        for batch in stores.wal.rows(shard.shard_id, position).batches
        for row in batch.to_pylist()
    ]
    assert sorted(written) == [(n, f"n{n % 5}", float(n)) for n in range(60)]


def test_a_spec_that_may_move_a_key_is_warned_of(tmp_path, caplog) -> None:
    pq.write_table(rows_of([1]), tmp_path / "a.parquet")
    warned = {
        column: run(
            "ingest",
            make(tmp_path / column, identity_column=column).uri,
            str(tmp_path / "a.parquet"),
            "--dry-run",
        )["warnings"]
        for column in ("id", "note")
    }
    assert warned["id"] == []
    assert "depends on note, outside the primary key" in warned["note"][0]
    for column in ("id", "note"):
        with open_writer(str(tmp_path / column)) as writer:
            writer.write(rows_of([1]))
            writer.write(rows_of([2]))
    [logged] = caplog.messages
    assert logged.endswith(f"note: {warned['note'][0]}")


def test_the_policy_of_the_configuration(tmp_path) -> None:
    """It is stored before the first operand, so that no merge takes one for a value."""
    table = make(tmp_path / "t", **SPEC)
    pq.write_table(rows_of([1, 2, 1], 5), tmp_path / "a.parquet")
    config = tmp_path / "memwal.toml"
    asked = ["ingest", "t", str(tmp_path / "a.parquet"), "--config", str(config)]

    def configured(operator: str) -> None:
        policy = f'[tables.t.policy.columns]\nn = "{operator}"\n'
        config.write_text(f'[tables.t]\nuri = "{table.uri}"\n{policy}')

    configured("sum")
    assert run(*asked, "--dry-run")["outcome"] == "done"
    assert STORED_KEY not in table.dataset.config()
    done = run(*asked)
    assert (done["exit_code"], done["outcome"]) == (0, "done")
    assert done["report"]["engine"]["name"] == "local"
    assert run("merge", table.uri, "--engine", "local")["exit_code"] == 0  # knows no configuration
    assert {key: row[0] for key, row in table.read().items()} == {1: 10, 2: 5}

    configured("max")
    for more in (["--again"], ["--again", "--dry-run"]):
        refused = run(*asked, *more)
        assert (refused["exit_code"], refused["outcome"]) == (5, "refused")
    assert {key: row[0] for key, row in table.read().items()} == {1: 10, 2: 5}


class Views:
    """A table of which so many generations wait, and a clock."""

    def __init__(self, pending: int) -> None:
        self.pending = pending
        self.views = self
        self.uri = "memory://table"
        self.clock = ManualClock()

    def table(self) -> SimpleNamespace:
        return SimpleNamespace(shards=[SimpleNamespace(pending=range(self.pending))])


def backlog(stores: Views, merge: Callable[[], bool] | None) -> Backlog:
    return Backlog(
        stores=cast(Stores, stores),
        generations_max=3,
        merge=merge,
        say=lambda text: None,
    )


def test_a_backlog_is_merged_before_more_comes() -> None:
    stores = Views(8)

    def merge() -> bool:
        stores.pending -= 3
        return True

    held = backlog(stores, merge)
    held()
    assert (held.merges, stores.pending) == (2, 2)
    stores.pending = 9
    held()
    assert held.merges == 2  # it looks now and then only
    stores.clock.advance(5)
    held()
    assert held.merges == 4


def test_a_backlog_is_merged_beside_others_who_write(monkeypatch) -> None:
    monkeypatch.setattr(memwal.ingest.progress.pace, "BACKLOG_CHECK_SECONDS", 0.001)
    stores, merged = Views(8), Event()

    def merge() -> bool:
        stores.pending = 0
        merged.set()
        return True

    with backlog(stores, merge).watch():
        assert merged.wait(60)
    assert stores.pending == 0

    def broken() -> bool:
        merged.set()
        raise Refused("MW-H01", "a hole in the numbers")

    stores.pending = 8
    merged.clear()
    with pytest.raises(Refused, match="a hole"), backlog(stores, broken).watch():
        assert merged.wait(60)


def test_a_backlog_that_nobody_merges() -> None:
    stores = Views(8)
    with pytest.raises(Refused, match="nobody merges them fast enough"):
        backlog(stores, None)()
    assert sum(stores.clock.slept_seconds) == 600


def test_a_merge_that_another_run_kept_away_is_told(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    pq.write_table(rows_of([1]), tmp_path / "a.parquet")
    leases = table.stores.leases
    claim = leases.acquire("compaction")
    asked = ["ingest", table.uri, str(tmp_path / "a.parquet"), "--merge"]
    done = run(*asked)
    assert (done["exit_code"], done["outcome"], done["merges"]) == (0, "done", 0)
    assert "what came last is not merged" in done["warnings"][0]
    leases.release(claim)
    done = run(*asked, "--again")
    assert (done["merges"], done["warnings"]) == (2, [])  # before and after
    assert table.dataset.count_rows() == 1


def test_too_many_generations_wait(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path / "t", max_memtable_rows=50)
    pq.write_table(rows_of(range(400)), tmp_path / "a.parquet")
    pq.write_table(rows_of(range(900, 910)), tmp_path / "b.parquet")
    first = run("ingest", table.uri, str(tmp_path / "a.parquet"), "--rows-per-chunk", "50")
    assert first["exit_code"] == 0
    asked = ["ingest", table.uri, str(tmp_path / "b.parquet"), "--backlog-generations-max", "3"]
    monkeypatch.setattr(memwal.ingest.progress.pace, "BACKLOG_WAIT_SECONDS_MAX", 0.0)
    held = run(*asked)
    assert held["exit_code"] == 5
    assert "nobody merges them fast enough" in held["error"]
    assert run(*asked, "--merge")["exit_code"] == 0
    [rows] = wal_rows(table).values()
    assert len(rows) == 410
    assert len(content(table.dataset.to_table())) == 410


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["missing.parquet"], 2, "no such source"),
        (["wrong.parquet"], 2, "the table has no column 'x'"),
        (["rows.parquet", "--delete-column", "gone"], 2, "no column 'gone' to delete by"),
        (["t"], 2, "can't be ingested into itself"),
        (["nulls.parquet", "--missing-as-null"], 2, "may not be NULL"),
        (["nulls.parquet"], 2, "without columns 'n', 'note', NULL"),
        (["rows.parquet", "--delete-column", "id"], 2, "column 'id' is the table's key"),
        (["rows.parquet", "--delete-column", "n"], 2, "'n' to delete by is int64"),
    ],
)
def test_what_is_refused(tmp_path, arguments, code, text) -> None:
    table = make(tmp_path / "t")
    pq.write_table(rows_of([1]), tmp_path / "rows.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "wrong.parquet")
    pq.write_table(pa.table({"id": pa.array([None], pa.int64())}), tmp_path / "nulls.parquet")
    report = run("ingest", table.uri, str(tmp_path / arguments[0]), *arguments[1:])
    assert report["exit_code"] == code
    assert text in report["error"]


def test_a_dry_run_counts_what_the_run_does(tmp_path) -> None:
    """Types are those of the table there as well: the bucket of a number depends on its type."""
    table = make(tmp_path / "t", **SPEC)
    rows = pa.table(
        {"id": pa.array(range(50), pa.int32()), "gone": [n % 3 == 0 for n in range(50)]}
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id,gone\n60,1\nno row\n61,0\n")
    files = [str(tmp_path / name) for name in ("a.parquet", "b.csv")]
    asked = ["ingest", table.uri, *files, "--delete-column", "gone"]
    asked += ["--bad-rows", str(tmp_path / "bad.jsonl")]
    for more in (["--dry-run"], []):
        assert "without columns 'n', 'note', NULL" in run(*asked, *more)["error"]
    asked.append("--missing-as-null")
    foreseen, done = run(*asked, "--dry-run"), run(*asked)
    assert (done["rows"], done["rows_deleted"], done["rows_rejected"]) == (53, 18, 1)
    assert foreseen["rows_rejected"] == 1
    for told in ("rows", "rows_deleted"):
        assert foreseen[told] == done[told]
        assert {s["shard_id"]: s[told] for s in foreseen["shards"]} == {
            s["shard_id"]: s[told] for s in done["shards"]
        }
    assert [s["rows"] for s in foreseen["sources"]] == [50, 3]
    assert len(table.read()) == 34


def test_an_ingest_that_began_when_null_was_taken_for_granted(
    tmp_path, monkeypatch, stalled
) -> None:
    """It is finished once somebody says that NULL is meant."""
    table = make(tmp_path / "t", **SPEC)
    pq.write_table(rows_of(range(30)).drop_columns(["n"]), tmp_path / "a.parquet")
    asked = ["ingest", table.uri, str(tmp_path / "a.parquet"), "--rows-per-chunk", "5"]
    with monkeypatch.context() as older:
        older.setattr(Shape, "check_missing", lambda *given, **named: None)
        older.setattr(memwal.ingest.apply, "Track", partial(Track, steps=Stopper(9)))
        assert CliRunner().invoke(app, [*asked, "--json"]).exit_code == 1
    refused = run(*asked)
    assert refused["exit_code"] == 2 and "without column 'n', NULL" in refused["error"]
    done = run(*asked, "--missing-as-null")
    assert (done["exit_code"], done["resumed"]) == (0, True)
    rows = [row for shard in wal_rows(table).values() for row in shard]
    assert sorted(rows) == [(False, n, None, f"{n}-0") for n in range(30)]


def test_people_see_a_table(tmp_path) -> None:
    table = make(tmp_path / "t")
    pq.write_table(rows_of(range(10)), tmp_path / "a.parquet")
    done = CliRunner().invoke(app, ["ingest", table.uri, str(tmp_path / "a.parquet")])
    assert done.exit_code == 0
    assert "10 rows at" in done.stdout and "(new)" in done.stdout


@pytest.mark.nightly
def test_on_s3(make_s3_uri, s3_server, tmp_path, monkeypatch) -> None:
    options = s3_server.storage_options
    monkeypatch.setenv("MEMWAL_STORAGE_OPTIONS", json.dumps(options))
    table = make(make_s3_uri(), options, **SPEC)
    pq.write_table(rows_of(range(30)), tmp_path / "a.parquet")
    assert run("ingest", table.uri, str(tmp_path / "a.parquet"))["exit_code"] == 0
    assert run("ingest", table.uri, str(tmp_path / "a.parquet"))["outcome"] == "nothing_to_do"
    assert MemWalTable(uri=table.uri, options=options).read() == content(rows_of(range(30)))


class DurableRows(Quiet):
    """Compares each count with the rows of all WAL entries."""

    def __init__(self, table: MemWalTable) -> None:
        self.table = table
        self.counts: list[int] = []

    def done(self, count: int, bytes_done: int = 0) -> None:
        self.counts.append(count)
        assert count <= sum(map(len, wal_rows(self.table).values()))


def test_what_is_shown_as_done_is_durable(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    source = tmp_path / "a.parquet"
    pq.write_table(rows_of(range(300)), source)
    progress = DurableRows(table)
    report = run_ingest(
        IngestOptions(
            tables=[resolve_table(table.uri, Config(), {})],
            request=IngestRequest(sources=(str(source),), rows_per_chunk=20),
        ),
        progress,
    )
    assert report.outcome == "done", report
    assert progress.counts == sorted(set(progress.counts))
    assert progress.counts[-1] == 300
