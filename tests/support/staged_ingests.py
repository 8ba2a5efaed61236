"""Ingests whose rows are staged as Spark's tasks do it, without a JVM. For tests."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
from typer.testing import CliRunner

from memwal.cli.app import app
from memwal.ingest.plan import make_id
from memwal.ingest.request import IngestRequest
from memwal.ingest.sources.columns import make_columns
from memwal.ingest.sources.files import SourceFiles
from memwal.ingest.spark import staging as spark
from memwal.ingest.target import IngestTable
from memwal.ingest.values.shape import Shape
from memwal.store.records.ingests import PlanRecord, Rounds
from tests.support.ingest_tables import MemWalTable, rows_of

SPEC = {"bucket_column": "id", "num_buckets": 3}


def staged(
    table: MemWalTable, source: str, monkeypatch, *, run_id: str = "test-run", planned: bool = True
) -> IngestRequest:
    """Stage a source as Spark's tasks do, one after the other; the request that it answers.

    Not `planned`: the run dies before it stores the plan.
    """
    for name, value in (("_FILE_BYTES", 1000), ("_CHUNK_ROWS", 16), ("_PART_ROWS", 64)):
        monkeypatch.setattr(spark, name, value)
    request = IngestRequest(sources=(source,), delete_column="gone", rows_per_chunk=20)
    stores = table.stores
    known = IngestTable.read(stores, stores.views.table(), None)
    rounds = Rounds(objects=stores.objects, ingest_id=make_id(request), run_id=run_id)
    shape = Shape(schema=known.schema, key=("id",), delete_column="gone")
    staging = spark.Staging(
        uri=table.uri,
        storage_options=table.options,
        router=known.make_router(),
        shape=shape,
        columns=make_columns(shape, (), ()),
    )
    files = SourceFiles({})
    [file] = files.find([source])
    folder = f"{rounds.at(1).folder}/staged/{run_id}"
    stored = [
        record
        for part in spark.cut_files(files, shape, [file])
        for record in spark.store_rows(staging, folder, spark.read_part(files, shape, part))
    ]
    together = spark.join_records(stored)
    assert any(len(record.files) > 1 for record in together)
    plan = PlanRecord(
        staged=together,
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
