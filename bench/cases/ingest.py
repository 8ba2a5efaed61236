"""B12: ingesting files, beside pylance's own shard writers.

Both read the same Parquet file, in the same chunks, into a new table, and end when all rows are in
flushed generations. pylance's side is what a user would write: its own evaluation of the spec, one
writer a shard, a thread each. Ours does all that `memwal ingest` does: it plans, routes, records
progress and checks what the WAL holds in the end. Neither time has the start of a process in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lance.mem_wal import evaluate_sharding_spec

from bench.harness import Bench, folder_bytes
from bench.tables import KEY

TITLE = "Ingesting files"

CASE = "B12"
SHARDS = (1, 8)
CHUNK_ROWS = 128 * 1024
ENTRY_ROWS_MAX = 50_000
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=KEY),
        pa.field("n", pa.int64()),
        pa.field("v", pa.float64()),
        pa.field("note", pa.string()),
    ]
)


def run(bench: Bench) -> None:
    """B12."""
    rows = 200_000 if bench.quick else 2_000_000
    source = bench.new_folder("source") / "rows.parquet"
    _write_source(source, rows)
    few = bench.new_folder("source") / "rows.parquet"
    _write_source(few, 10)
    _ours(bench, few, 1, 10)  # the command's modules are imported
    for shards in SHARDS:
        seconds = bench.side_by_side(
            {
                "memwal": lambda shards=shards: _ours(bench, source, shards, rows),
                "pylance": lambda shards=shards: _theirs(bench, source, shards, rows),
            }
        )
        speeds = {name: rows / taken / shards for name, taken in seconds.items()}
        bench.figure(
            CASE,
            f"rows a second and shard, {shards} shard{'s' * (shards > 1)}: memwal ingest against "
            "pylance's writers",
            speeds["memwal"] / speeds["pylance"],
            "x",
            at_least=0.8,
            measured=f"{speeds['memwal']:,.0f} rows/s against {speeds['pylance']:,.0f} rows/s",
            costs={"rows": rows, "source_bytes": source.stat().st_size},
        )


def _write_source(path: Path, rows: int) -> None:
    chance = np.random.default_rng(12)
    ids = chance.permutation(rows)
    columns = {
        "id": ids,
        "n": ids * 3,
        "v": chance.random(rows),
        "note": pa.array([f"note {number}" for number in ids]),
    }
    pq.write_table(pa.table(columns, schema=SCHEMA), path, row_group_size=CHUNK_ROWS)


def _table(bench: Bench, shards: int) -> str:
    uri = str(bench.new_folder("table") / "table")
    dataset = lance.write_dataset(SCHEMA.empty_table(), uri)
    if shards == 1:
        dataset.initialize_mem_wal(unsharded=True)
    else:
        dataset.initialize_mem_wal(bucket_column="id", num_buckets=shards)
    return uri


def _ours(bench: Bench, source: Path, shards: int, rows: int) -> float:
    from typer.testing import CliRunner

    from memwal.cli.app import app

    uri = _table(bench, shards)
    done = CliRunner().invoke(
        app,
        ["ingest", uri, str(source), "--json", "--rows-per-chunk", str(CHUNK_ROWS)],
        catch_exceptions=False,
    )
    report = json.loads(done.stdout)
    [table] = report["tables"]
    if done.exit_code or table["rows_written"] != rows or len(table["shards"]) != shards:
        raise RuntimeError(f"the ingest went wrong: {done.stdout}")
    bench.say(f"memwal: {folder_bytes(Path(uri)) / 1e6:.0f} MB stored")
    return float(report["seconds"])


def _theirs(bench: Bench, source: Path, shards: int, rows: int) -> float:
    uri = _table(bench, shards)
    began = time.perf_counter()
    dataset = lance.dataset(uri)
    [spec] = dataset.mem_wal_index_details()["sharding_specs"]
    [name] = [field["field_id"] for field in spec["fields"]]
    writers = [dataset.mem_wal_writer(str(uuid4())) for _ in range(shards)]
    with ThreadPoolExecutor(shards) as pool:
        for batch in pq.ParquetFile(source).iter_batches(CHUNK_ROWS):
            values = np.asarray(
                evaluate_sharding_spec(batch, spec, dataset.lance_schema)[name], dtype=np.int64
            )
            parts = [batch.filter(pa.array(values == shard)) for shard in range(shards)]
            list(pool.map(_put, writers, parts))
        list(pool.map(lambda writer: writer.close(), writers))
    taken = time.perf_counter() - began
    bench.say(f"pylance: {folder_bytes(Path(uri)) / 1e6:.0f} MB stored")
    return taken


def _put(writer: object, part: pa.RecordBatch) -> None:
    for piece in _pieces(part):
        writer.put(pa.Table.from_batches([piece], schema=SCHEMA))  # type: ignore[attr-defined]


def _pieces(part: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(part), ENTRY_ROWS_MAX):
        yield part.slice(start, ENTRY_ROWS_MAX)
