"""`changes` through Spark: as a batch, and as a stream over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import memwal
from tests.support.builders import Delete, Put, Rows, Table, make_table
from tests.support.spark import spark_session

# Each start of a stream makes a Python process, for which Spark waits ten seconds and no longer.
pytestmark = [pytest.mark.spark, pytest.mark.races]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


@pytest.fixture
def table(tmp_path: Any) -> Table:
    made = make_table(tmp_path / "t.lance", rows=range(5, 20), enable_stable_row_ids=True)
    merge(made, Put([5, 30], 7), Delete([6]))
    return made


def merge(table: Table, *ops: Put | Delete) -> int:
    table.flush(table.shards[0], *ops)
    table.merge_all()
    return int(table.dataset.version)


def test_a_batch_has_the_changes_of_when_it_was_loaded(spark: SparkSession, table: Table) -> None:
    since = int(table.dataset.version) - 1
    reader = spark.read.format("memwal").option("changes_since", since)
    frame = reader.option("columns", "n").option("changes_before", "true").load(table.uri)
    merge(table, Put([31], 9))
    expected = memwal.open_table(table.uri).changes(
        since=since, until=since + 1, columns=["n"], before=True
    )
    assert frame.columns == expected.schema.names
    found = {row["k"]: row.asDict(recursive=True) for row in frame.collect()}
    wanted = {row["k"]: row for row in expected.read_all().to_pylist()}
    assert {k: r["_before"] for k, r in found.items()} == {
        k: r["_before"] for k, r in wanted.items()
    }
    assert {k: (r["_change"], r["n"]) for k, r in found.items()} == {
        k: (r["_change"], r["n"]) for k, r in wanted.items()
    }
    assert len(found) == 3


def test_a_stream_has_each_change_once_over_restarts(
    spark: SparkSession, table: Table, tmp_path: Any
) -> None:
    api = memwal.open_table(table.uri)
    first = int(table.dataset.version)
    api.commit_changes("mart", first)
    copy, told = table.base_rows(first), []

    def apply(frame: Any, batch: int) -> None:
        for row in frame.collect():
            found = row.asDict(recursive=True)
            change = found.pop("_change")
            told.append((found.pop("_version"), found["k"], change))
            del found["_time"]
            if change == "delete":
                del copy[(found["k"],)]
            else:
                copy[(found["k"],)] = found

    def run() -> Rows:
        stream = spark.readStream.format("memwal").option("changes_cursor", "mart").load(table.uri)
        query = (
            stream.writeStream.foreachBatch(apply)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return copy

    for n in range(3):
        merge(table, Put([5 + n, 40 + n], 100 + n), Delete([10 + n]))
        version = merge(table, Put([50 + n], n))
        assert run() == table.base_rows(version)
    assert len(told) == len(set(told)) == 12
    assert run() == table.base_rows()
    (moved,) = table.stores.cursors.list()
    assert first < moved.version <= version


def test_options_that_don_t_go_together_are_refused(spark: SparkSession, table: Table) -> None:
    reader = spark.read.format("memwal").option("changes_since", "1")
    with pytest.raises(PySparkException, match="no option 'filter'"):
        reader.option("filter", "n > 1").load(table.uri)
    with pytest.raises(PySparkException, match="a stream follows changes"):
        spark.readStream.format("memwal").load(table.uri).writeStream.format(
            "noop"
        ).start().processAllAvailable()
