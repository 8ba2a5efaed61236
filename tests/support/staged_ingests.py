"""Ingests whose rows are staged as Spark's tasks do it, without a JVM. For tests."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from memwal.ingest.request import IngestRequest
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.ingest.sources.columns import make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.spark import staging as spark
from memwal.ingest.target import IngestTable
from memwal.ingest.values.shape import Shape
from memwal.store.records.ingests import PlanRecord, Rounds, StagedRecord
from tests.support.ingest_tables import MemWalTable, rows_of

SPEC = {"bucket_column": "id", "num_buckets": 3}


def staged(
    table: MemWalTable, source: str, monkeypatch, *, run_id: str = "test-run", planned: bool = True
) -> IngestRequest:
    """Stage a source as Spark's tasks do, one after the other; the request that it answers.

    Not `planned`: the run dies before it stores the plan.
    """
    for name, value in (("_BLOCK_BYTES", 500), ("_FILE_BYTES", 2000), ("_CHUNK_ROWS", 16)):
        monkeypatch.setattr(spark, name, value)
    request = IngestRequest(sources=(source,), delete_column="gone", chunk_rows=20)
    stores = table.stores
    known = IngestTable.read(stores, stores.views.table(), None)
    rounds = Rounds(objects=stores.objects, ingest_id=request.make_id(), run_id=run_id)
    shape = Shape(schema=known.schema, key=("id",), delete_column="gone")
    staging = spark.Staging(
        uri=table.uri,
        storage_options=table.options,
        folder=f"{rounds.at(1).folder}/staged/{run_id}",
        router=known.make_router(),
        shape=shape,
        columns=make_columns(shape, (), ()),
        name=source,
    )
    files = SourceFiles({})
    [file] = files.find([source])
    parts = tuple(spark._Part(file=file, first_row=n, rows=64) for n in range(0, 200, 64))
    blocks = []
    for number in range(len(parts)):
        numbers = iter([pa.record_batch({"id": [number]})])
        for block in spark._route_files(staging, files, parts, numbers):
            [row] = block.to_pylist()
            blocks.append({**row, "part": number})
    blocks.sort(key=lambda row: (row["shard"], row["part"], row["place"]))
    together = pa.RecordBatch.from_pylist(blocks)
    found: dict[tuple[str, str], list[dict]] = {}
    for batch in spark._store_blocks(staging, iter([together])):
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
        sources=(file,),
        chunk_rows=20,
        rows_per_entry_max=50,
        delete_column="gone",
        spec_id=1,
    )
    if planned:
        rounds.begin(None, plan)
    return request


def source_of(folder) -> str:
    rows = pa.concat_tables([rows_of([n * 7 % 40], n) for n in range(200)])
    rows = rows.append_column("gone", pa.array([n % 5 == 4 for n in range(200)]))
    pq.write_table(rows, folder / "rows.parquet", row_group_size=30)
    return str(folder / "rows.parquet")


def ingest(table: MemWalTable, source: str, *more: str) -> dict:
    arguments = ["--delete-column", "gone", "--engine", "local", *more]
    return command("ingest", table.uri, source, *arguments)


def command(*arguments: str) -> dict:
    """One table's part of what a command prints; all of it where it came to no table."""
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    document = json.loads(done.stdout)
    return {"exit_code": done.exit_code, **(document["tables"] or [document])[0]}


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
