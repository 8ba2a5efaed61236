"""One session on a JVM: rows are written, merged, and read again by it."""

from __future__ import annotations

from pathlib import Path

import pytest

import memwal
from tests.support.builders import make_table
from tests.support.spark import spark_session

pytestmark = [pytest.mark.e2e, pytest.mark.spark]


def test_what_spark_writes_it_merges_and_reads(tmp_path: Path) -> None:
    uri = make_table(tmp_path / "t", rows=range(10), shards=2).uri
    table = memwal.open_table(uri)
    with spark_session() as spark:
        frame = spark.createDataFrame(
            [(k, 7 * k, "new") for k in range(5, 15)], "k long, n long, text string"
        )
        frame.write.format("memwal").mode("append").option("missing_as_null", "true").save(uri)
        rows = spark.read.format("memwal").load(uri).filter("text = 'new'")

        assert {row.k: row.n for row in rows.collect()} == {k: 7 * k for k in range(5, 15)}
        merged = table.merge(engine="spark", master="local[2]")
        assert merged.engine.name == "spark"
        assert sum(shard.rows_inserted for shard in merged.shards) == 5
        assert spark.read.format("memwal").load(uri).count() == 15
