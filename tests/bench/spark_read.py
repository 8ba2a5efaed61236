"""Side by side on Spark: the merging read, and a plain read of the same rows when all are merged.

Both are Python data sources over Lance fragments, in one session, read into nothing. `share` of the
base's rows are pending, in generations that overlap. The merging read goes once with the winners
decided before its tasks start, and once with every task looking its keys up. For what is sent to
each task, see `sent`.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = sys.executable
# Spark's workers import this module too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))
)

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from memwal.read import spark as memwal_spark
from memwal.read.spark_types import as_spark, spark_schema

KEY = {"lance-schema:unenforced-primary-key": "true"}
ROWS_PER_FILE = 500_000
GENERATIONS = 4


class PlainLance(DataSource):
    """A Lance table and no more: one task a fragment."""

    @classmethod
    def name(cls) -> str:
        return "plain_lance"

    def schema(self) -> StructType:
        import lance

        schema = lance.dataset(self.options["path"]).schema
        names = self.options.get("columns", ",".join(schema.names)).split(",")
        return StructType.fromJson(spark_schema(pa.schema([schema.field(n) for n in names])))

    def reader(self, schema: StructType) -> PlainReader:
        return PlainReader(self.options["path"], self.options.get("filter"), schema)


class PlainReader(DataSourceReader):
    """Reads fragments by number."""

    def __init__(self, path: str, filter: str | None, schema: StructType) -> None:
        self.path, self.filter, self.schema = path, filter, schema

    def partitions(self) -> list[InputPartition]:
        import lance

        return [InputPartition(f.fragment_id) for f in lance.dataset(self.path).get_fragments()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import lance

        fragment = lance.dataset(self.path).get_fragment(partition.value)
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in fragment.to_batches(columns=schema.names, filter=self.filter):
            yield from as_spark(batch, schema)


def rows_of(ids: np.ndarray, seed: int, dim: int) -> pa.Table:
    """Rows with a key, a number, a text of 16 characters, and a vector if `dim` is not 0."""
    rng = np.random.default_rng(seed)
    columns = {
        "id": pa.array(ids.astype(np.int64)),
        "v": pa.array(rng.random(len(ids))),
        "text": pa.array([f"text-{i:011d}" for i in ids]),
    }
    fields = [pa.field("id", pa.int64(), nullable=False, metadata=KEY)]
    fields += [pa.field("v", pa.float64()), pa.field("text", pa.string())]
    if dim:
        values = pa.array(rng.random(len(ids) * dim, dtype=np.float32))
        columns["vector"] = pa.FixedSizeListArray.from_arrays(values, dim)
        fields.append(pa.field("vector", pa.list_(pa.float32(), dim)))
    return pa.table(columns, schema=pa.schema(fields))


def make_tables(folder: Path, rows: int, share: float, dim: int) -> tuple[str, str]:
    """The table with pending generations, and one that holds the same rows merged."""
    import lance

    pending, merged = str(folder / "pending"), str(folder / "merged")
    base = rows_of(np.arange(rows), 0, dim)
    dataset = lance.write_dataset(base, pending, max_rows_per_file=ROWS_PER_FILE)
    dataset.initialize_mem_wal()
    rng = np.random.default_rng(1)
    shard = str(uuid.uuid4())
    for number in range(GENERATIONS):
        # Nine updates to one insert; generations overlap, so some of their rows have lost.
        count = int(rows * share / GENERATIONS)
        ids = rng.choice(rows + rows // 10, count, replace=False)
        with lance.dataset(pending).mem_wal_writer(shard) as writer:
            for batch in rows_of(ids, number + 1, dim).to_batches(50_000):
                writer.put(pa.Table.from_batches([batch]))
    from memwal.read import open_table

    lance.write_dataset(open_table(pending).read(), merged, max_rows_per_file=ROWS_PER_FILE)
    return pending, merged


def seconds(frame: Callable[[], DataFrame], repeats: int) -> float:
    """The best of some runs, each of which loads anew."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        frame().write.format("noop").mode("overwrite").save()
        taken.append(time.perf_counter() - started)
    return min(taken)


def sent_bytes(uri: str) -> tuple[int, int, int]:
    """Pending keys, and the bytes that go to each executor and to the largest task besides."""
    source = memwal_spark.MemWalDataSource({"path": uri})
    reader = source.reader(source.schema())
    count = reader._decided.hidden.count if reader._decided and reader._decided.hidden else 0
    parts = [len(pickle.dumps(part)) for part in reader.partitions()]
    return count, len(pickle.dumps(reader)), max(parts)


def measure(session: SparkSession, rows: int, share: float, dim: int, repeats: int) -> None:
    """Print one table's lines."""
    wide = "id,v,text,vector" if dim else "id,v,text"
    cases: list[tuple[str, dict[str, str]]] = [
        ("all columns", {"columns": wide}),
        ("id, v", {"columns": "id,v"}),
        ("id, v of 1 % of the rows", {"columns": "id,v", "filter": "v < 0.01"}),
    ]
    with tempfile.TemporaryDirectory() as folder:
        pending, merged = make_tables(Path(folder), rows, share, dim)
        for name, options in cases:

            def load(kind: str, uri: str, options: dict[str, str] = options, **more: int):
                reader = session.read.format(kind).options(**options, **more)
                return lambda: reader.load(uri)

            plain = seconds(load("plain_lance", merged), repeats)
            decided = seconds(load("memwal", pending, keys_bytes_max=2**31), repeats)
            looked_up = seconds(load("memwal", pending, keys_bytes_max=1), repeats)
            print(
                f"{rows:>10,} {share:>6.0%} {dim:>5} {name:<26} {plain:>8.2f} {decided:>8.2f} "
                f"{decided / plain:>6.2f} {looked_up:>8.2f} {looked_up / plain:>6.2f}"
            )
        keys, everywhere, task = sent_bytes(pending)
        print(f"{'sent:':>10} {keys:,} keys, {everywhere:,} bytes to all, {task:,} to a task")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1])
    parser.add_argument("--dims", type=int, nargs="+", default=[0, 64])
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    memwal_spark.register(session)
    from spark_read import PlainLance as Importable

    session.dataSource.register(Importable)
    print(
        f"{'base rows':>10} {'pending':>7} {'dim':>4} {'read':<26} {'plain s':>8} {'memwal s':>8} "
        f"{'ratio':>6} {'look-up':>8} {'ratio':>6}"
    )
    for rows in arguments.rows:
        for share in arguments.shares:
            for dim in arguments.dims:
                measure(session, rows, share, dim, arguments.repeats)
    session.stop()
