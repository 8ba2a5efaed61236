"""An ingest on Spark itself: every change once and in its key's order.

What becomes of staged rows when a writing unit is stopped is in test_ingest_staged.py, without a
JVM.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from memwal.cli.app import app
from tests.support.ingest_tables import MemWalTable, make, wal_rows

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ROWS = 3000
KEYS = 700


def test_each_change_is_written_once_in_its_keys_order(tmp_path) -> None:
    source = tmp_path / "rows.json"
    with source.open("w") as out:
        for n in range(ROWS):
            row = {"key": n * 7 % KEYS, "n": n, "gone": n % 10 == 9}
            out.write(json.dumps(row) + "\n")
    table = make(tmp_path / "t", bucket_column="id", num_buckets=3)
    report = ingest(table, source)
    assert (report["rows"], report["rows_deleted"]) == (ROWS, ROWS // 10)
    assert len(report["shards"]) == 3
    assert {note for _, note in table.read().values()} == {"é"}
    found: dict[int, list[object]] = {}
    for rows in wal_rows(table).values():
        for row in rows:
            found.setdefault(row[1], []).append("gone" if row[0] else row[2])
    wanted: dict[int, list[object]] = {}
    for n in range(ROWS):
        wanted.setdefault(n * 7 % KEYS, []).append("gone" if n % 10 == 9 else n)
    assert found == wanted
    # Staged rows are removed when they are written.
    assert not list((tmp_path / "t").glob("_maintenance/ingest/**/*.arrow"))


def test_bad_rows_are_set_aside_before_the_others_are_staged(tmp_path) -> None:
    sources = []
    for part, bad in enumerate((0, 27, 49)):
        path = tmp_path / f"part-{part}.csv"
        lines = [f"{n % 7},{part * 50 + n},{part}-{n}" for n in range(50)]
        lines[bad] = lines[bad].replace(f",{part * 50 + bad},", ",x,")
        path.write_text("\n".join(["id,n,note", *lines]))
        sources.append(path)
    table = make(tmp_path / "t", bucket_column="id", num_buckets=2)
    spark = ["--engine", "spark", "--master", "local[2]"]
    stopped = run(table, *sources, *spark)
    assert stopped["exit_code"] == 2 and "column 'n' is no int64" in stopped["error"]
    file = tmp_path / "bad.jsonl"
    few = run(table, *sources, *spark, "--bad-rows", file, "--bad-rows-max", 2)
    assert few["exit_code"] == 2 and wal_rows(table) == {}
    done = run(table, *sources, *spark, "--bad-rows", file)
    assert (done["exit_code"], done["rows"], done["rows_rejected"]) == (0, 150, 3), done["error"]
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((row["source"], row["row"], row["value"]) for row in told) == [
        (str(source), bad + 1, "x") for source, bad in zip(sources, (0, 27, 49), strict=True)
    ]
    written = sorted(row[2] for rows in wal_rows(table).values() for row in rows)
    assert written == [n for n in range(150) if n not in (0, 77, 149)]
    file.unlink()
    assert run(table, *sources, *spark, "--bad-rows", file)["outcome"] == "nothing_to_do"
    assert len(file.read_text().splitlines()) == 3


def run(table: MemWalTable, *arguments: object) -> dict:
    words = ["ingest", table.uri, *map(str, arguments), "--json"]
    done = CliRunner().invoke(app, words)  # here: this process may have a JVM already
    [report] = json.loads(done.stdout)["tables"]
    return {"exit_code": done.exit_code, **report}


def ingest(table: MemWalTable, source: Path) -> dict:
    renamed = ["--map", "key=id", "--default", "note=é"]
    spark = ["--engine", "spark", "--master", "local[2]", "--rows-per-chunk", "100"]
    report = run(table, source, "--delete-column", "gone", *renamed, *spark)
    assert report["exit_code"] == 0, report["error"]
    return report
