"""Rows that were staged: what Spark's tasks do, called as they are, and the units that write them.

The one test that brings up Spark itself is in test_ingest_spark.py.
"""

from __future__ import annotations

import json
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ingest_tables import MemWalTable, make, rows_of, wal_rows
from stopping import Stopper
from typer.testing import CliRunner

import jobs._ingest_units
from jobs import _ingest_spark as spark
from jobs._ingest_round import IngestRequest, Rounds, record_of
from jobs._ingest_table import IngestTable
from memwal.cli_app import app
from memwal.ingest.line_up import Shape
from memwal.ingest.records import PlanRecord, StagedRecord
from memwal.ingest.run import Track, TrackLimits
from memwal.store.ingest_sources import SourceFiles

pytestmark = pytest.mark.integration

SPEC = {"bucket_column": "id", "num_buckets": 3}


def staged(table: MemWalTable, source: str, monkeypatch) -> IngestRequest:
    """Stage a source as Spark's tasks do, one after the other; the request that it answers."""
    for name, value in (("_BLOCK_BYTES", 500), ("_FILE_BYTES", 2000), ("_CHUNK_ROWS", 16)):
        monkeypatch.setattr(spark, name, value)
    request = IngestRequest(sources=(source,), delete_column="gone", chunk_rows=20)
    stores = table.stores
    known = IngestTable.of(stores, stores.views.table(), None)
    rounds = Rounds(objects=stores.objects, ingest_id=request.named(), run_id="test-run")
    staging = spark.Staging(
        uri=table.uri,
        storage_options=table.options,
        folder=f"{rounds.at(1).folder}/staged/test-run",
        router=known.router(),
        shape=Shape(schema=known.schema, key=("id",), delete_column="gone"),
        name=source,
    )
    files = SourceFiles({})
    [file] = files.found([source])
    parts = tuple(spark._Part(file=file, first_row=n, rows=64) for n in range(0, 200, 64))
    blocks = []
    for number in range(len(parts)):
        task = spark._RouteFiles(staging, files, parts)
        for block in task(iter([pa.record_batch({"id": [number]})])):
            [row] = block.to_pylist()
            blocks.append({**row, "part": number})
    blocks.sort(key=lambda row: (row["shard"], row["part"], row["place"]))
    together = pa.RecordBatch.from_pylist(blocks)
    found: dict[tuple[str, str], list[dict]] = {}
    for batch in spark._Store(staging)(iter([together])):
        [row] = batch.to_pylist()
        found.setdefault((row["shard"], row["entries"]), []).append(row)
    assert any(len(files) > 1 for files in found.values())
    plan = PlanRecord(
        staged=tuple(
            StagedRecord(
                shard_id=shard,
                entries=tuple((n, v) for n, v in json.loads(entries)),
                files=tuple(row["path"] for row in rows),
                rows=sum(row["rows"] for row in rows),
            )
            for (shard, entries), rows in found.items()
        ),
        sources=(record_of(file),),
        chunk_rows=20,
        rows_per_entry_max=50,
        delete_column="gone",
        spec_id=1,
    )
    rounds.begin(None, plan)
    return request


def source_of(folder) -> str:
    rows = pa.concat_tables([rows_of([n * 7 % 40], n) for n in range(200)])
    rows = rows.append_column("gone", pa.array([n % 5 == 4 for n in range(200)]))
    pq.write_table(rows, folder / "rows.parquet", row_group_size=30)
    return str(folder / "rows.parquet")


def ingest(table: MemWalTable, source: str) -> dict:
    arguments = ["ingest", table.uri, source, "--delete-column", "gone", "--engine", "local"]
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    return {"exit_code": done.exit_code, **json.loads(done.stdout)["tables"][0]}


def staged_files(table: MemWalTable) -> list[str]:
    found = table.stores.objects.list("_maintenance/ingest")
    return [info.path for info in found if "/staged/" in info.path]


def told(rows: dict[str, list[tuple]]) -> dict[int, list[object]]:
    found: dict[int, list[object]] = {}
    for shard in rows.values():
        for row in shard:
            found.setdefault(row[1], []).append("gone" if row[0] else row[2])
    return found


def wanted() -> dict[int, list[object]]:
    found: dict[int, list[object]] = {}
    for n in range(200):
        found.setdefault(n * 7 % 40, []).append("gone" if n % 5 == 4 else n)
    return found


def test_staged_rows_are_written_once_whatever_stops_a_unit(tmp_path, monkeypatch, stalled) -> None:
    table = make(tmp_path / "t", **SPEC)
    source = source_of(tmp_path)
    request = staged(table, source, monkeypatch)
    assert staged_files(table)
    for nth in (3, 5, 8):
        limits = TrackLimits(progress_seconds=0.0 if nth == 5 else 1e9)
        monkeypatch.setattr(
            jobs._ingest_units,
            "Track",
            lambda nth=nth, limits=limits, **more: Track(steps=Stopper(nth), limits=limits, **more),
        )
        report = ingest(table, source)
        assert report["exit_code"] != 0 and "Stop" in report["error"]
    monkeypatch.setattr(jobs._ingest_units, "Track", partial(Track, limits=TrackLimits()))
    report = ingest(table, source)
    assert (report["exit_code"], report["rows"], report["rows_deleted"]) == (0, 200, 40)
    assert report["resumed"]
    assert told(wal_rows(table)) == wanted()
    shards = table.stores.views.table().shards
    assert all(s.manifest.shard_spec_id == 1 and s.manifest.shard_field_entries for s in shards)
    assert staged_files(table) == []
    # A run that died before it could remove them leaves some.
    rounds = Rounds(objects=table.stores.objects, ingest_id=request.named(), run_id="test-run")
    folder = rounds.at(1).folder
    table.stores.objects.put(f"{folder}/staged/test-run/left.arrow", b"rows")
    assert len(staged_files(table)) == 1
    assert ingest(table, source)["outcome"] == "nothing_to_do"
    assert staged_files(table) == []


def test_staged_rows_that_are_gone(tmp_path, monkeypatch) -> None:
    table = make(tmp_path / "t", **SPEC)
    source = source_of(tmp_path)
    staged(table, source, monkeypatch)
    for path in (tmp_path / "t").glob("_maintenance/ingest/*/*/staged/**/*.arrow"):
        path.unlink()
    report = ingest(table, source)
    assert report["exit_code"] == 8
    assert "staged rows are gone" in report["error"]
