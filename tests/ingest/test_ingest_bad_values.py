"""Bad values in a source: what stops at them, and goes on past them.

Rows are operands of a sum, so that one that is lost, or written twice, shows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import memwal.ingest.apply
import memwal.ingest.check
from memwal.cli.app import app
from memwal.ingest.track import Track, TrackLimits
from tests.support.ingest_tables import MemWalTable, make, wal_rows
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration

SPEC = {"bucket_column": "id", "num_buckets": 2}
ROWS = 50
BAD = {0: 0, 1: 27, 2: ROWS - 1}
"""The row with the bad value in each of three files: the first, one between, and the last."""


BAD_VALUES = {"csv": "x", "jsonl": "x", "parquet": 2**64 - 1}


def write(
    folder: Path, kind: str, bad: dict[int, int | None], value: Any = None, rows: int = ROWS
) -> list[str]:
    """Three files; in each, the row that is named has a value that the table can't take."""
    folder.mkdir(exist_ok=True)
    paths = []
    for part in range(3):
        values: list[Any] = [part * ROWS + n for n in range(rows)]
        if bad.get(part) is not None:
            values[bad[part]] = BAD_VALUES[kind] if value is None else value
        table = {
            "id": [n % 7 for n in range(rows)],
            "n": values,
            "note": [f"{part}-{n}" for n in range(rows)],
        }
        path = folder / f"part-{part}.{kind}"
        paths.append(str(path))
        if kind == "parquet":
            arrays = pa.table({**table, "n": pa.array(values, pa.uint64())})
            pq.write_table(arrays, path, row_group_size=16)
            continue
        lines = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        shown = [json.dumps(line) for line in lines]
        if kind == "csv":
            shown = ["id,n,note", *(f"{row['id']},{row['n']},{row['note']}" for row in lines)]
        path.write_text("\n".join(shown))
    return paths


def run(
    table: MemWalTable, *arguments: str, words: Sequence[str] = ("--rows-per-chunk", "10")
) -> dict:
    done = CliRunner().invoke(
        app,
        ["ingest", table.uri, *arguments, "--json", *words],
        catch_exceptions=False,
    )
    document = json.loads(done.stdout)
    return {"exit_code": done.exit_code, **(document["tables"] or [document])[0]}


def numbers(table: MemWalTable) -> list[int]:
    """The value of every row that is written, in order of value."""
    return sorted(row[2] for rows in wal_rows(table).values() for row in rows)


def all_but(bad: dict[int, int | None]) -> list[int]:
    gone = {part * ROWS + n for part, n in bad.items() if n is not None}
    return [n for n in range(3 * ROWS) if n not in gone]


KINDS = pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])


@KINDS
def test_a_check_names_every_value_and_the_first_rows_are_looked_at(tmp_path, kind) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", kind, BAD)
    report = run(table, *paths, "--check")
    assert (report["exit_code"], report["outcome"], report["rows"]) == (2, "failed", 150)
    found = [(f["source"], f["row"], f["column"], f["value"]) for f in report["findings"]]
    assert found == [(paths[part], n + 1, "n", BAD_VALUES[kind]) for part, n in BAD.items()]
    assert run(table, *write(tmp_path / "in", kind, {}), "--check")["exit_code"] == 0
    assert not (tmp_path / "t" / "_maintenance").exists()
    report = run(table, *write(tmp_path / "in", kind, {2: 0}))
    assert report["exit_code"] == 2
    assert f"{paths[2]}: row 1: column 'n' is " in report["error"]
    assert numbers(table) == []


@pytest.mark.nightly
@KINDS
def test_bad_rows_are_set_aside_each_once(tmp_path, kind, monkeypatch, stalled) -> None:
    paths = write(tmp_path / "in", kind, BAD)
    file = tmp_path / "bad.jsonl"
    asked = [*paths, "--bad-rows", str(file)]
    for progress_seconds in (0.0, 1e9):
        table = make(tmp_path / str(progress_seconds), **SPEC)
        for nth in (1, 3, 5, 8, 12, 17, 23, 30, 38, 47, 300):
            limits = TrackLimits(progress_seconds=progress_seconds)
            dying = partial(Track, steps=Stopper(nth), limits=limits)
            monkeypatch.setattr(memwal.ingest.apply, "Track", dying)
            report = run(table, *asked)
            if report["exit_code"] == 0:
                break
        assert report["rows"] == 150
        assert numbers(table) == all_but(BAD)
        found = [json.loads(line) for line in file.read_text().splitlines()]
        assert [(f["source"], f["row"], f["column"], f["value"]) for f in found[-3:]] == [
            (paths[part], n + 1, "n", BAD_VALUES[kind]) for part, n in BAD.items()
        ]
        assert found[-2]["data"] == {"id": 6, "n": BAD_VALUES[kind], "note": "1-27"}
        assert run(table, *asked)["outcome"] == "nothing_to_do"
    assert len(found) == 6


def test_a_run_that_stops_counts_what_it_wrote(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t", **SPEC)
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    report = run(table, *write(tmp_path / "in", "parquet", {1: 27}))
    assert (report["exit_code"], report["rows_written"]) == (2, 70)
    assert [(s["is_new"], s["generations"]) for s in report["shards"]] == [(True, 1)] * 2
    assert sum(shard["rows"] for shard in report["shards"]) == 70
    assert (report["entries"], report["generations"]) == (14, 2)
    assert report["bytes_written"] > 0


def test_a_file_that_changed_before_its_ingest_was_finished(tmp_path, monkeypatch) -> None:
    """Only who asks for it gets its rows again, and those of files that are finished are not."""
    table = make(tmp_path / "t", **SPEC)
    asked = ("--id", "x")
    first = tmp_path / "first.csv"
    first.write_text("id,n,note\n1,1000,x\n")
    assert run(table, str(first), *asked)["exit_code"] == 0
    paths = [str(first), *write(tmp_path / "in", "csv", {1: 27})]
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    stopped = run(table, *paths, *asked)
    assert stopped["exit_code"] == 2 and "Already in: 70 rows, " in stopped["error"]
    write(tmp_path / "in", "csv", {})
    written = [*range(70), 1000]
    for more in ((), ("--dry-run",)):
        refused = run(table, *paths, *asked, *more)
        assert refused["exit_code"] == 5 and "--again" in refused["error"]
    assert numbers(table) == written
    done = run(table, *paths, *asked, "--again")
    assert (done["exit_code"], done["rows"]) == (0, 150), done["error"]
    assert numbers(table) == sorted([*range(150), *written])
    assert run(table, *paths, *asked)["outcome"] == "nothing_to_do"


def test_again_gives_up_a_file_that_an_earlier_round_had(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t", **SPEC)
    asked = (*write(tmp_path / "in", "csv", {}), "--id", "x")
    assert run(table, *asked)["rows"] == 150
    write(tmp_path / "in", "csv", {1: 27})
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    assert run(table, *asked)["exit_code"] == 2
    write(tmp_path / "in", "csv", {})  # as it was
    assert run(table, *asked)["exit_code"] == 5
    assert run(table, *asked, "--again")["rows"] == 50, "of the one that had changed"
    assert run(table, *asked)["outcome"] == "nothing_to_do"


def test_more_bad_rows_than_may_be(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", "csv", BAD)
    file = tmp_path / "bad.jsonl"
    report = run(table, *paths, "--bad-rows", str(file), "--bad-rows-max", "1")
    assert report["exit_code"] == 2
    assert "row 28: column 'n' is no int64: 'x'; --bad-rows-max 1" in report["error"]
    assert (report["rows"], report["rows_rejected"]) == (70, 1)
    assert len(file.read_text().splitlines()) == 1
    # Nobody is left without them who forgets the file.
    (tmp_path / "bad.jsonl").unlink()
    done = run(table, *paths, "--bad-rows", str(file))
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, 150, 2), "by this run"
    assert len(file.read_text().splitlines()) == 3
    assert numbers(table) == all_but(BAD)


@pytest.mark.nightly
@pytest.mark.parametrize("line", ["no row", '{"id": 1, "n": "x", "note": "y"}'])
@pytest.mark.parametrize("behind", [0, 5])
def test_a_line_behind_a_chunk_that_was_read_already(tmp_path, line, behind) -> None:
    """What is no row begins where a reader's batch, and a chunk, have ended."""
    table = make(tmp_path / "t", **SPEC)
    rows = [json.dumps({"id": n, "n": n, "note": ""}) for n in range(16 * 1024 + behind)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*rows[: 16 * 1024], line, *rows[16 * 1024 :]]))
    words = ("--rows-per-chunk", str(16 * 1024))
    stopped = run(table, str(path), words=words)
    assert (stopped["exit_code"], stopped["rows"]) == (2, 16 * 1024)
    assert "row 16385: " in stopped["error"]
    file = tmp_path / "bad.jsonl"
    done = run(table, str(path), "--bad-rows", str(file), words=words)
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, len(rows) + 1, 1)
    assert [json.loads(told)["row"] for told in file.read_text().splitlines()] == [16385]
    assert numbers(table) == list(range(len(rows)))


@pytest.mark.parametrize("good", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_lines_at_the_end_of_a_file_are_set_aside_once(tmp_path, good) -> None:
    """Also where the run stops before it is through with the next file."""
    table = make(tmp_path / "t", **SPEC)
    rows = [json.dumps({"id": n, "n": n, "note": ""}) for n in range(good + 1)]
    ends, stops = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    ends.write_text("\n".join([*rows[:good], "no", "row"]))
    stops.write_text("\n".join(["nor", "this", rows[good]]))
    file = tmp_path / "bad.jsonl"
    asked = (table, str(ends), str(stops), "--bad-rows", str(file))
    words = ("--rows-per-chunk", "2")
    stopped = run(*asked, "--bad-rows-max", "3", words=words)
    assert (stopped["exit_code"], stopped["rows"], stopped["rows_rejected"]) == (2, good + 2, 2)
    assert f"all of {ends}. With --bad-rows" in stopped["error"]
    # Fewer than were set aside already.
    again = run(*asked, "--bad-rows-max", "1", words=words)
    assert again["exit_code"] == 2 and f"{stops}: row 1: is no JSON" in again["error"]
    done = run(*asked, words=words)
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, good + 5, 2)
    told = [json.loads(told) for told in file.read_text().splitlines()]
    assert [(Path(t["source"]).name, t["row"]) for t in told] == [
        ("a.jsonl", good + 1),
        ("a.jsonl", good + 2),
        ("b.jsonl", 1),
        ("b.jsonl", 2),
    ]
    assert numbers(table) == list(range(good + 1))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_of_hardly_any_rows_is_given_up(tmp_path, kind) -> None:
    """However long it is: what is none is held in memory."""
    table = make(tmp_path / "t", **SPEC)
    path = tmp_path / f"rows.{kind}"
    path.write_text("id,n,note\n" + "1,2\n" * 20_000)
    told = f"{path}: can't be read as {kind}: more than 10,000 rows close together are none; row 1"
    aside = ("--bad-rows", str(tmp_path / "bad.jsonl"), "--bad-rows-max", "90000")
    for more in ((), aside, ("--check",)):
        assert told in run(table, str(path), *more)["error"]


def test_a_stopped_run_does_not_count_what_a_killed_one_wrote(
    tmp_path, monkeypatch, stalled
) -> None:
    table = make(tmp_path / "t", **SPEC)
    paths = write(tmp_path / "in", "csv", {2: ROWS - 1})
    monkeypatch.setattr("memwal.ingest.check._LOOKED_FILES_MAX", 0)
    with monkeypatch.context() as patch:
        dying = partial(Track, steps=Stopper(20), limits=TrackLimits(progress_seconds=1e9))
        patch.setattr(memwal.ingest.apply, "Track", dying)
        assert run(table, *paths)["exit_code"] == 1
    killed = len(numbers(table))
    stopped = run(table, *paths)
    assert stopped["exit_code"] == 2 and stopped["resumed"]
    assert 0 < killed == stopped["rows"] - stopped["rows_written"]
