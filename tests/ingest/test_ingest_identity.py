"""What is ingested once: told by content, order and what was appended."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal.ingest.apply
from memwal.cli.app import app
from memwal.ingest.progress.identity import is_same
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.track import Track
from memwal.store.records.ingests import Begun, Rounds
from tests.support.ingest_tables import MemWalTable, make, rows_of, wal_rows
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration


def run(*arguments: object, stdin: bytes | None = None) -> dict[str, Any]:
    done = CliRunner().invoke(
        app, [*map(str, arguments), "--json"], input=stdin, catch_exceptions=False
    )
    report = json.loads(done.stdout)
    [table] = report["tables"] or [{"error": report["error"]}]
    return {**table, "exit_code": done.exit_code}


def touch(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


@pytest.fixture
def table(tmp_path: Path) -> MemWalTable:
    return make(tmp_path / "t")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.parquet"
    pq.write_table(rows_of(range(40)), path)
    return path


def test_a_touched_file_is_not_new(table, source) -> None:
    asked = ("ingest", table.uri, source)
    assert run(*asked)["rows_written"] == 40
    touch(source)
    assert run(*asked, "--dry-run")["outcome"] == "nothing_to_do"
    assert run(*asked)["outcome"] == "nothing_to_do"
    data = source.read_bytes()
    source.write_bytes(data[:4] + bytes([data[4] ^ 1]) + data[5:])  # as large, and something else
    touch(source)
    assert run(*asked, "--dry-run")["outcome"] != "nothing_to_do"


def test_a_run_that_wakes_up_before_its_round_writes_nothing_again(
    table, source, tmp_path, monkeypatch
) -> None:
    """Meanwhile others finished that round, and the next, after which nothing is known of it."""
    later = tmp_path / "b.parquet"
    pq.write_table(rows_of(range(40, 50)), later)
    begin, slept = Rounds.begin, list[str]()

    def sleep(rounds: Rounds, *what: Any) -> Begun:
        if not slept:
            slept.append(rounds.run_id)
            assert run("ingest", table.uri, source, "--id", "x")["rows_written"] == 40
            assert run("ingest", table.uri, source, later, "--id", "x")["rows_written"] == 10
        return begin(rounds, *what)

    monkeypatch.setattr(Rounds, "begin", sleep)
    woken = run("ingest", table.uri, source, "--id", "x")
    assert "another run of this ingest finished it" in woken["error"]
    assert sorted(row[1] for rows in wal_rows(table).values() for row in rows) == list(range(50))
    asked = ("ingest", table.uri, source, later, "--id", "x")
    assert run(*asked)["outcome"] == "nothing_to_do"


def test_one_that_was_touched_before_it_was_finished(table, source, monkeypatch, stalled) -> None:
    asked = ("ingest", table.uri, source, "--rows-per-chunk", "5")
    with monkeypatch.context() as dying:
        dying.setattr(memwal.ingest.apply, "Track", partial(Track, steps=Stopper(9)))
        assert CliRunner().invoke(app, [*map(str, asked), "--json"]).exit_code == 1
    touch(source)
    done = run(*asked)
    assert (done["exit_code"], done["resumed"], done["rows"]) == (0, True, 40)
    assert len(table.read()) == 40


def test_the_order_of_the_sources_is_part_of_what_is_asked(table, tmp_path) -> None:
    for n, name in enumerate(("a1", "a2")):
        pq.write_table(rows_of([1, 2], n), tmp_path / f"{name}.parquet")
    first, second = tmp_path / "a1.parquet", tmp_path / "a2.parquet"
    assert run("ingest", table.uri, first, second)["rows_written"] == 4
    assert table.read()[1] == (1, "1-1")
    assert run("ingest", table.uri, second, first)["rows_written"] == 4
    assert table.read()[1] == (0, "1-0")
    for one, other in ((first, second), (second, first)):
        assert run("ingest", table.uri, one, other)["outcome"] == "nothing_to_do"


def test_a_file_that_returns_to_what_it_was_is_new(table, source) -> None:
    asked = ("ingest", table.uri, source)
    assert run(*asked)["rows_written"] == 40
    first = source.read_bytes()
    pq.write_table(rows_of(range(50), 1), source)
    assert run(*asked)["rows_written"] == 50
    source.write_bytes(first)
    assert run(*asked)["rows_written"] == 40
    assert table.read()[1] == (0, "1-0")


def test_a_lance_source_is_ingested_once(table, tmp_path) -> None:
    uri = str(tmp_path / "s.lance")
    lance.write_dataset(rows_of(range(30)), uri, max_rows_per_file=10)
    asked = ("ingest", table.uri, uri)
    assert run(*asked)["rows_written"] == 30
    lance.dataset(uri).create_scalar_index("id", "BTREE")  # a version, with the same rows
    assert run(*asked)["outcome"] == "nothing_to_do"
    lance.write_dataset(rows_of(range(25, 35), 1), uri, mode="append")
    refused = run(*asked)
    assert refused["exit_code"] == 5
    assert "has changed since it was ingested" in refused["error"]
    assert run(*asked, "--again")["rows_written"] == 40
    assert run(*asked)["outcome"] == "nothing_to_do"


def test_a_lance_source_that_grows_before_it_is_finished(
    table, tmp_path, monkeypatch, stalled
) -> None:
    uri = str(tmp_path / "s.lance")
    lance.write_dataset(rows_of(range(30)), uri)
    asked = ("ingest", table.uri, uri, "--rows-per-chunk", "5")
    with monkeypatch.context() as dying:
        dying.setattr(memwal.ingest.apply, "Track", partial(Track, steps=Stopper(9)))
        assert CliRunner().invoke(app, [*asked, "--json"]).exit_code == 1
    lance.write_dataset(rows_of(range(30, 35)), uri, mode="append")
    assert run(*asked)["rows"] == 30
    assert run(*asked)["exit_code"] == 5
    assert len(table.read()) == 30


def test_a_lance_source_under_its_ingest_is_another_table_now(
    table, tmp_path, monkeypatch, stalled
) -> None:
    uri = str(tmp_path / "s.lance")
    lance.write_dataset(rows_of(range(30)), uri)
    asked = ("ingest", table.uri, uri, "--rows-per-chunk", "5")
    with monkeypatch.context() as dying:
        dying.setattr(memwal.ingest.apply, "Track", partial(Track, steps=Stopper(9)))
        assert CliRunner().invoke(app, [*asked, "--json"]).exit_code == 1
    Path(uri).rename(tmp_path / "gone")
    lance.write_dataset(rows_of(range(30)), uri)
    refused = run(*asked)
    assert refused["exit_code"] == 5
    assert "was written anew" in refused["error"]


def test_standard_input_is_known_by_its_content(table, source) -> None:
    asked = ("ingest", table.uri, "-", "--format", "parquet")
    data = source.read_bytes()
    assert run(*asked, stdin=data)["rows_written"] == 40
    assert run(*asked, stdin=data)["outcome"] == "nothing_to_do"
    csv = ("ingest", table.uri, "-", "--format", "csv")
    assert run(*csv, stdin=b"id,n,note\n90,1,x\n")["rows_written"] == 1
    lines = b'{"id": 91, "n": 1, "note": null}\n'
    assert run("ingest", table.uri, "-", "--format", "jsonl", stdin=lines)["rows_written"] == 1
    assert len(table.read()) == 42
    told = run("ingest", table.uri, "-", stdin=data)
    assert (told["exit_code"], "needs --format" in told["error"]) == (2, True)
    spark = run(*asked, "--engine", "spark", stdin=data)
    assert (spark["exit_code"], "--engine local" in spark["error"]) == (7, True)


def test_standard_input_of_a_killed_run_is_gone_on_with(
    table, source, monkeypatch, stalled
) -> None:
    asked = ("ingest", table.uri, "-", "--format", "parquet", "--rows-per-chunk", "5")
    data = source.read_bytes()
    with monkeypatch.context() as dying:
        dying.setattr(memwal.ingest.apply, "Track", partial(Track, steps=Stopper(9)))
        stopped = CliRunner().invoke(app, [*asked, "--json"], input=data)
        assert stopped.exit_code == 1
    done = run(*asked, stdin=data)
    assert (done["exit_code"], done["resumed"], done["rows"]) == (0, True, 40)
    assert sum(map(len, wal_rows(table).values())) == 40


def test_etags_tell_files_of_one_time_and_size_apart(source) -> None:
    """A store's times may be whole seconds."""
    files = SourceFiles({})
    [now] = files.find([str(source)])
    before = now.model_copy(update={"etag": "1", "digest": files.read_digest(now)})
    other = before.model_copy(update={"digest": "sha256:00"})
    assert is_same(files, before, now.model_copy(update={"etag": "2", "stamp": "0"}))
    assert not is_same(files, other, now.model_copy(update={"etag": "2"}))
    assert is_same(files, other, now.model_copy(update={"etag": "1", "stamp": "0"}))
    assert not is_same(files, before, now.model_copy(update={"size_bytes": 1}))
