"""Queries through Spark Connect, in a process of its own: `… TABLE SHARD`, and JSON on stdout.

After the first query it waits for a line on stdin, so that the table may change meanwhile. At the
end it writes the row with n = 100 once more, under another key.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from memwal.read import spark as memwal_spark

_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main(uri: str, shard: str) -> None:
    """Print what each query found, by its name."""
    builder = SparkSession.builder.remote("local[2]")
    for name, value in _CONF.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    # A server forgets plans; one that a view has, it keeps.
    session.conf.set("spark.connect.session.planCache.enabled", "false")
    frame = memwal_spark.read(session, uri, columns=["k", "n"], with_wal=True)
    frame.createOrReplaceTempView("kept")
    found: dict[str, Any] = {"before": rows_of(frame)}
    print("changed", flush=True)
    sys.stdin.readline()
    found["after"] = rows_of(frame)
    found["view"] = rows_of(session.table("kept"))
    both = session.sql("SELECT a.k, b.n FROM kept a JOIN kept b ON a.n = b.n + 1")
    found["join"] = rows_of(both)
    near = memwal_spark.read(session, uri, columns=["n"], nearest="vector=[0, 0, 0, 0]", k=1)
    found["nearest"] = rows_of(near)
    found["redacted"] = session.conf.get("spark.sql.redaction.options.regex")
    try:
        rows_of(memwal_spark.read(session, uri, colums="n"))
    except PySparkException as error:
        found["error"] = str(error)
    more = memwal_spark.read(session, uri, filter="n = 100")
    writer = more.withColumn("k", more.k + 1000).write.format("memwal").mode("append")
    writer.option("shard", shard).save(uri)
    print(json.dumps(found), flush=True)
    session.stop()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows as documents."""
    return [row.asDict(recursive=True) for row in frame.collect()]


if __name__ == "__main__":
    main(*sys.argv[1:])
