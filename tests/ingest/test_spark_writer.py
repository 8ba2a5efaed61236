"""Spark writes: each row once, whatever Spark does with its tasks, and whatever dies.

What tasks and the driver do is called as it is, with everything pickled that Spark would. What
Spark makes of it has tests of its own, marked `spark`, on one session.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

import memwal
import memwal.ingest.track
from memwal.errors import MemWalError, Refused, StandDown, Unsupported, Usage
from memwal.ingest.spark.writer import BatchWriter, Sink, StoredRows
from memwal.ingest.track import Track
from memwal.ports import DeleteResult
from memwal.read.spark import MemWalDataSource
from memwal.read.spark_options import is_write, parse_write
from memwal.store.records.ingests import Round
from tests.support.ingest_tables import SCHEMA, MemWalTable, make, rows_of, wal_rows
from tests.support.lsm_reads import lsm_read
from tests.support.s3server import S3Server
from tests.support.spark import spark_session
from tests.support.staged_ingests import SPEC, staged_files
from tests.support.stopping import Stopper

pytestmark = pytest.mark.integration


def planned(table: MemWalTable, schema: pa.Schema = SCHEMA, **options: str) -> BatchWriter:
    """What Spark has of a write when its tasks begin."""
    source = MemWalDataSource(CaseInsensitiveDict({"path": table.uri, **options}))
    return sent(source.writer(from_arrow_schema(schema), False))


def sent(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))


def task(writer: BatchWriter, rows: pa.Table) -> StoredRows:
    return sent(sent(writer).write(iter(rows.to_batches(max_chunksize=7))))


def write(table: MemWalTable, *partitions: pa.Table, **options: str) -> BatchWriter:
    writer = planned(table, partitions[0].schema, **options)
    writer.commit([task(writer, rows) for rows in partitions])
    return writer


def values(table: MemWalTable) -> dict[int, int]:
    return {key: row[0] for key, row in table.read().items()}


def test_partitions_go_to_their_shards_in_their_order(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    write(table, rows_of(range(40), 1), rows_of([3, 50], 2), rows_of([], 0), rows_of([3], 3))
    assert values(table) == {**dict.fromkeys(range(40), 1), 50: 2, 3: 3}
    assert len(wal_rows(table)) == 3
    write(table, rows_of([], 0))
    # A nameless write, once it is done, leaves nothing behind that grows with each.
    assert list(table.stores.objects.list("_maintenance/ingest")) == []
    [run] = [f.path for f in table.stores.objects.list("_maintenance/runs")]
    assert "ingest" in table.stores.objects.get(run).decode()


@pytest.mark.nightly
def test_on_s3(make_s3_uri: Callable[[], str], s3_server: S3Server) -> None:
    options = s3_server.storage_options
    table = make(make_s3_uri(), options, **SPEC)
    given = {f"storage.{name}": value for name, value in options.items()}
    writer = write(table, rows_of(range(9), 1), **given)
    assert values(table) == dict.fromkeys(range(9), 1)
    assert options["aws_secret_access_key"] not in repr(writer.__dict__)


def test_what_a_row_deletes_it_deletes(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    rows = rows_of([1, 2, 3, 4], 1).append_column("gone", pa.array([False] * 4))
    write(table, rows, delete_column="gone")
    # Rows that delete need no more than the key.
    gone = pa.table({"id": [2, 4], "gone": [True, True]})
    write(table, gone, delete_column="gone")
    assert values(table) == {1: 1, 3: 1}


def test_attempts_that_spark_does_not_name_write_nothing(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    writer = planned(table, id="monday")
    twice = [task(writer, rows_of(range(9), 1)) for _ in range(2)]
    assert len({path for stored in twice for file in stored.files for path in file.files}) == 6
    writer.commit([twice[1], task(writer, rows_of([9], 1))])
    assert sum(map(len, wal_rows(table).values())) == 10
    assert staged_files(table) == []


def test_on_a_clone_nothing_is_written_below_progress_that_is_not_its_own(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    write(table, rows_of(range(9), 1))
    memwal.open_table(table.uri).merge()
    clone = tmp_path / "clone"
    lance.dataset(table.uri).deep_clone(str(clone), None)
    with pytest.raises(Refused, match="MW-H06"):
        write(replace(table, uri=str(clone)), rows_of([20], 2))
    assert not (clone / "_mem_wal").exists()


def test_an_abort_removes_what_was_stored(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    writer = planned(table)
    stored = task(writer, rows_of(range(9), 1))
    task(writer, rows_of(range(9), 1))  # its message never came
    assert len(staged_files(table)) == 6
    sent(writer).abort([stored, None])
    assert staged_files(table) == []
    assert table.stores.views.table().shards == ()


@pytest.mark.parametrize("nth", [1, 2, 4, 6])
def test_a_write_that_was_stopped_goes_on_under_its_id(tmp_path, monkeypatch, stalled, nth) -> None:
    table = make(tmp_path / "t", **SPEC)
    writer, rows = planned(table), rows_of(range(9), 1)
    stored = [task(writer, rows)]
    with monkeypatch.context() as patch:
        patch.setattr(memwal.ingest.track, "Track", partial(Track, steps=Stopper(nth)))
        with pytest.raises(MemWalError, match=r"option id = (write-[0-9a-f-]+)$") as error:
            writer.commit(stored)
    before = staged_files(table)
    sent(writer).abort(stored)
    assert staged_files(table) == before  # the plan names them
    name = str(error.value).rpartition(" ")[2]
    # What was begun is finished, and nobody is told that other rows are in.
    others = rows_of(range(100, 109), 1)
    with pytest.raises(Refused, match=r"comes again with 9 rows, .* with 9, in other shards"):
        write(table, others, id=name)
    write(table, rows, id=name)
    assert sorted(row for rows in wal_rows(table).values() for row in rows) == [
        (False, key, 1, f"{key}-1") for key in range(9)
    ]
    assert staged_files(table) == []
    with pytest.raises(Refused, match="comes again with 2 rows, and was written with 9"):
        write(table, rows_of([1, 2]), id=name)


def test_an_id_that_was_used_for_other_rows(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    write(table, rows_of(range(9), 1), rows_of(range(9, 12), 1), id="monday")
    before = wal_rows(table)
    with pytest.raises(Refused, match="comes again with other rows"):
        write(table, rows_of(range(12), 2), id="monday")
    # The same in another order, and in other partitions, is the same.
    write(table, rows_of(range(11, 3, -1), 1), rows_of(range(4), 1), id="monday")
    assert wal_rows(table) == before


def write_batch(table: MemWalTable, number: int, rows: pa.Table) -> None:
    """As a stream does, with one writer for the tasks and one to commit."""
    options = parse_write({"path": table.uri})
    sink = sent(Sink.open(options, from_arrow_schema(SCHEMA)))
    stored = sent(sink.store("stream-x", number + 1, iter(rows.to_batches())))
    other = Sink.open(options, from_arrow_schema(SCHEMA))
    try:
        other.commit(f"batch {number}", [stored])
    except MemWalError:
        other.abort(stored.ingest_id, stored.round, stored.write_id)
        raise


def test_a_batch_is_written_once_and_none_is_passed(tmp_path, monkeypatch, stalled) -> None:
    table = make(tmp_path / "t", **SPEC)
    batch = partial(write_batch, table)

    batch(0, rows_of([1, 2], 0))
    batch(0, rows_of([2, 1], 0))  # Spark died before it knew
    with pytest.raises(Refused, match="batch 0 comes again with 3 rows, and was written with 2"):
        batch(0, rows_of([1, 2, 3], 0))
    batch(3, rows_of([2, 3], 3))  # those between had no rows
    with pytest.raises(Refused, match="batch 1 comes again, and a later one was written"):
        batch(1, rows_of([9], 9))
    with monkeypatch.context() as patch:
        patch.setattr(memwal.ingest.track, "Track", partial(Track, steps=Stopper(4)))
        with pytest.raises(MemWalError, match="Stop"):
            batch(4, rows_of([4, 5, 6], 4))
    batch(4, rows_of([4, 5, 6], 4))
    assert sum(map(len, wal_rows(table).values())) == 2 + 2 + 3
    assert values(table) == {1: 0, 2: 3, 3: 3, 4: 4, 5: 4, 6: 4}
    rounds = {path.split("/")[3] for path in list_records(table)}
    assert rounds == {"000005"}  # a stream leaves the records of one batch, however long it runs


def test_a_batch_that_comes_again_without_rows_is_finished_by_the_next(
    tmp_path, monkeypatch
) -> None:
    """Spark takes it for written then; what it stored the first time is all there."""
    table = make(tmp_path / "t", **SPEC)
    with monkeypatch.context() as patch:
        patch.setattr(memwal.ingest.track, "Track", partial(Track, steps=Stopper(4)))
        with pytest.raises(MemWalError, match="Stop"):
            write_batch(table, 1, rows_of([4, 5, 6], 4))
    write_batch(table, 1, rows_of([]))
    for _ in range(2):
        write_batch(table, 2, rows_of([6, 7], 5))
        assert sum(map(len, wal_rows(table).values())) == 3 + 2
        assert values(table) == {4: 4, 5: 4, 6: 5, 7: 5}


@pytest.mark.parametrize("step", ["claim", "session"])
def test_a_driver_that_wakes_up_writes_nothing_again(tmp_path, monkeypatch, step: str) -> None:
    """Meanwhile another finished its batch, and the next, after which nothing is known of it."""
    table = make(tmp_path / "t", bucket_column="id", num_buckets=1)
    slept: list[str] = []

    def sleep(taken: str) -> None:
        if taken == step and not slept:
            slept.append(step)
            with monkeypatch.context() as patch:
                patch.setattr(memwal.ingest.track, "Track", Track)
                write_batch(table, 0, rows_of(range(9), 0))
                write_batch(table, 1, rows_of(range(9), 1))

    monkeypatch.setattr(memwal.ingest.track, "Track", partial(Track, steps=sleep))
    with pytest.raises(MemWalError, match=r"another run of this ingest|was fenced"):
        write_batch(table, 0, rows_of(range(9), 0))
    assert slept
    assert sorted(row[1:3] for rows in wal_rows(table).values() for row in rows) == [
        (key, n) for key in range(9) for n in (0, 1)
    ]


def test_a_plan_goes_before_what_it_stands_for(tmp_path) -> None:
    """A run that finds the plan has seen all that was known of the round."""
    table = make(tmp_path / "t", **SPEC)
    write(table, rows_of(range(9), 1), id="monday")
    deleted: list[list[str]] = []

    class Noting:
        def __getattr__(self, name: str) -> Any:
            return getattr(table.stores.objects, name)

        def delete(self, paths: list[str]) -> DeleteResult:
            deleted.append(paths)
            if failing:
                return DeleteResult(failed=((paths[0], "access denied"),))
            return table.stores.objects.delete(paths)

    failing, before = True, list_records(table)
    Round(Noting(), "monday", 1, "x").forget()
    assert list_records(table) == before and len(deleted) == 1
    failing = False
    Round(Noting(), "monday", 1, "x").forget()
    _, first, rest = deleted
    assert first == ["_maintenance/ingest/monday/000001/plan.json"]
    assert any("/sessions/" in path for path in rest) and list_records(table) == []


def test_a_shard_spec_that_changed_meanwhile(tmp_path) -> None:
    table = make(tmp_path / "t", **SPEC)
    writer = planned(table)
    stored = replace(task(writer, rows_of(range(9), 1)), spec_id=2)
    with pytest.raises(StandDown, match="shard spec was changed while these rows were stored; to"):
        writer.commit([stored])
    assert wal_rows(table) == {}


def list_records(table: MemWalTable) -> list[str]:
    return [info.path for info in table.stores.objects.list("_maintenance/ingest")]


# ---- what is refused

NULL_KEY = pa.table({"id": pa.array([1, None], pa.int64()), "n": [1, 2], "note": ["a", "b"]})


@pytest.mark.parametrize(
    ("rows", "options", "text"),
    [
        (rows_of([1]).append_column("N", pa.array([1])), {}, "no column 'N'"),
        (
            rows_of([1]).drop_columns(["note"]),
            {},
            "without column 'note', NULL.*option missing_as_null",
        ),
        (rows_of([1]).drop_columns(["id"]), {}, "column 'id' is missing, and may not be NULL"),
        (rows_of([1]), {"delete_column": "gone"}, "no column 'gone' to delete by"),
        (rows_of([1]), {"delete_column": "n"}, "'n' to delete by is int64"),
        (rows_of([1]), {"shard": "0"}, "no shard"),
        (pa.table({"id": [1], "n": [{"a": 1}], "note": ["a"]}), {}, "'n' is struct.* int64"),
    ],
)
def test_what_can_not_be_written_is_said_before_any_task_runs(
    tmp_path, rows: pa.Table, options: dict[str, str], text: str
) -> None:
    with pytest.raises(MemWalError, match=text):
        planned(make(tmp_path / "t", **SPEC), rows.schema, **options)


def test_a_value_that_can_not_be_written_names_its_column(tmp_path) -> None:
    writer = planned(make(tmp_path / "t", **SPEC), NULL_KEY.schema)
    with pytest.raises(Usage, match="the DataFrame: column 'id' may not be NULL, but is"):
        task(writer, NULL_KEY)


def test_what_is_not_exact_can_be_asked_for(tmp_path) -> None:
    rows = pa.table({"id": [1], "n": ["7"], "note": ["a"]})
    with pytest.raises(Usage, match="'n' is string, the table's int64: option convert=text takes"):
        planned(make(tmp_path / "t", **SPEC), rows.schema)
    assert task(planned(make(tmp_path / "u", **SPEC), rows.schema, convert="text"), rows)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"deletecolumn": "x"}, r"'deletecolumn' \(is delete_column meant"),
        ({"id": "Not An Id"}, "is not an ingest's id"),
        ({"missing_as_null": "yes"}, "missing_as_null 'yes': expected true or false"),
    ],
)
def test_options_that_there_are_not(tmp_path, options: dict[str, str], text: str) -> None:
    with pytest.raises(Usage, match=text):
        planned(make(tmp_path / "t", **SPEC), **options)


def test_nothing_is_overwritten(tmp_path) -> None:
    source = MemWalDataSource(CaseInsensitiveDict({"path": make(tmp_path / "t", **SPEC).uri}))
    for make_writer in (source.writer, source.streamWriter):
        with pytest.raises(Unsupported, match="append"):
            make_writer(from_arrow_schema(SCHEMA), True)
    assert is_write({"path", "delete_column"}) and not is_write({"path", "storage.x", "version"})


# ---- in Spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2, 2]") as session:  # a task that fails is tried again
        yield session


FRAME = "id", "id * 10 AS n", "concat(id, '-', id * 10) AS note"


def frame_of(spark: SparkSession, first: int, last: int, partitions: int = 3) -> DataFrame:
    return spark.range(first, last, 1, partitions).selectExpr(*FRAME)


@pytest.mark.spark
def test_an_append_is_what_others_read(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path / "t", **SPEC)
    frame_of(spark, 0, 50).write.format("memwal").mode("append").save(table.uri)
    more = spark.sql("SELECT id, -id AS n, 'x' AS note, id < 3 AS gone FROM range(6)")
    writer = more.write.format("memwal").mode("append").option("delete_column", "gone")
    writer.save(table.uri)
    wanted = {key: (key * 10, f"{key}-{key * 10}") for key in range(3, 50)}
    wanted |= {key: (-key, "x") for key in range(3, 6)}
    found = {row["id"]: (row["n"], row["note"]) for row in lsm_read(table.uri).to_pylist()}
    assert found == wanted
    memwal.open_table(table.uri).merge()
    assert table.read() == wanted == {r.id: (r.n, r.note) for r in loaded(spark, table).collect()}


def loaded(spark: SparkSession, table: MemWalTable) -> DataFrame:
    return spark.read.format("memwal").load(table.uri)


def counters(tmp_path: Path) -> tuple[MemWalTable, str]:
    """A table in which a row that is written twice shows: `n` is a sum. And its configuration."""
    table = make(tmp_path / "t", **SPEC)
    config = tmp_path / "memwal.toml"
    text = f'[tables.counts]\nuri = "{table.uri}"\n[tables.counts.policy.columns]\nn = "sum"\n'
    config.write_text(text)
    return table, str(config)


@pytest.mark.spark
def test_a_task_that_is_tried_again_writes_once(spark: SparkSession, tmp_path: Path) -> None:
    """It dies when it has stored its rows."""
    table, config = counters(tmp_path)
    died = tmp_path / "died"

    class DyingWriter(BatchWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> StoredRows:
            stored = super().write(iterator)
            if stored.files and not died.exists():
                died.touch()
                os._exit(9)
            return stored

    class DyingSource(MemWalDataSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
            return DyingWriter(parse_write(self.options), schema, overwrite)

    spark.dataSource.register(DyingSource)
    for _ in range(2):
        writer = frame_of(spark, 0, 20).write.format("dying").mode("append")
        writer.option("config", config).save("counts")
    assert died.exists()
    assert values(table) == {key: key * 20 for key in range(20)}
    assert list_records(table) == []


@pytest.mark.spark
def test_a_stream_that_starts_again_writes_once(spark: SparkSession, tmp_path: Path) -> None:
    table, config = counters(tmp_path)
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def arrive() -> None:
        frame_of(spark, 0, 20, 2).write.mode("append").parquet(str(source))

    def run() -> None:
        rows = spark.readStream.schema("id long, n long, note string")
        query = rows.option("maxFilesPerTrigger", 1).parquet(str(source)).writeStream
        query = query.format("memwal").option("config", config).trigger(availableNow=True)
        query.option("checkpointLocation", str(checkpoint)).start("counts").awaitTermination()

    arrive()
    run()
    assert values(table) == {key: key * 10 for key in range(20)}
    arrive()
    run()
    commits = checkpoint / "commits"
    assert {file.name for file in commits.iterdir() if file.name.isdigit()} == {*"0123"}
    # Spark died after the table had the batch, and before it noted that.
    for file in (commits / "3", commits / ".3.crc"):
        file.unlink()
    run()
    assert (commits / "3").exists()
    memwal.open_table(table.uri).merge()
    assert values(table) == {key: key * 20 for key in range(20)}
    assert staged_files(table) == []


@pytest.mark.spark
def test_the_example_of_the_page(spark: SparkSession, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/python.md").read_text()
    _, _, section = page.partition("## To Spark, and from it")
    code = section.split("```")[1].removeprefix("python").replace("s3://lake", str(tmp_path))
    table = make(tmp_path / "orders", **SPEC)
    rows = frame_of(spark, 0, 6, 1).selectExpr("*", "id < 3 AS is_deleted")
    rows.write.parquet(str(tmp_path / "in"))
    changes = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    names: dict[str, Any] = {"spark": spark, "orders": frame_of(spark, 0, 9), "changes": changes}
    exec(code, names)
    names["query"].processAllAvailable()
    names["query"].stop()
    assert values(table) == {key: key * 10 for key in range(3, 9)}
    assert {path.split("/")[2] for path in list_records(table)} == {
        "orders-monday",
        f"stream-{names['query'].id}",
    }


@pytest.mark.spark
def test_what_spark_says_of_a_refusal(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path / "t", **SPEC)
    frame = frame_of(spark, 0, 3)
    for mode, text in (
        ("overwrite", r'not overwritten, only appended to: use mode\("append"\)'),
        ("ignore", '"memwal" cannot be written in the "Ignore" mode'),
        ("errorifexists", '"memwal" cannot be written in the "ErrorIfExists" mode'),
    ):
        with pytest.raises(PySparkException, match=text):
            frame.write.format("memwal").mode(mode).save(table.uri)
    for rows, text in (
        (frame.withColumn("more", frame.n), "no column 'more'"),
        (frame.selectExpr("id", "'x' AS n", "note"), "column 'n' is string, the table's int64"),
        (frame.selectExpr("nullif(id, 1) AS id", "n", "note"), "'id' may not be NULL, but is"),
    ):
        with pytest.raises(PySparkException, match=text):
            rows.write.format("memwal").mode("append").save(table.uri)
    assert staged_files(table) == []
    assert table.read() == {}
