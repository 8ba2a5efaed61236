"""One session on a JVM: rows are written, merged, and read again by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import memwal
from memwal.cli import main
from tests.support.builders import make_table
from tests.support.spark import spark_session

pytestmark = [pytest.mark.e2e, pytest.mark.spark]


def test_what_spark_writes_it_merges_and_reads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    uri = make_table(tmp_path / "t", rows=range(10), shards=2).uri
    with spark_session() as spark:
        frame = spark.createDataFrame(
            [(k, 7 * k, "new") for k in range(5, 15)], "k long, n long, text string"
        )
        frame.write.format("memwal").mode("append").option("missing_as_null", "true").save(uri)
        rows = spark.read.format("memwal").load(uri).filter("text = 'new'")

        assert {row.k: row.n for row in rows.collect()} == {k: 7 * k for k in range(5, 15)}
        with pytest.raises(SystemExit, match="0"):
            main(["merge", uri, "--engine", "spark", "--json"])
    merged = json.loads(capfd.readouterr().out)
    assert merged["engine"]["name"] == "spark"
    shards = merged["tables"][0]["shards"]
    assert sum(shard["rows_inserted"] + shard["rows_updated"] for shard in shards) == 10
    assert memwal.open_table(uri).read(filter="text = 'new'").read_all().num_rows == 10
