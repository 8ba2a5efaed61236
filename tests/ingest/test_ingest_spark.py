"""An ingest on Spark itself: any of its sources, every change once and in its key's order.

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


def test_a_source_that_only_spark_reads(tmp_path) -> None:
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


def ingest(table: MemWalTable, source: Path) -> dict:
    words = ["ingest", table.uri, str(source), "--format", "json", "--delete-column", "gone"]
    words += ["--map", "key=id", "--default", "note=é"]
    spark = ["--engine", "spark", "--master", "local[2]", "--rows-per-chunk", "100", "--json"]
    done = CliRunner().invoke(app, [*words, *spark])  # here: this process may have a JVM already
    assert done.exit_code == 0, done.output
    [report] = json.loads(done.stdout)["tables"]
    return report
