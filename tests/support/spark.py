"""A Spark session for a module's tests: small, quiet, and with memwal's format."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from memwal.read import spark as memwal_spark


@contextmanager
def spark_session(master: str = "local[2]", **more: str) -> Iterator[SparkSession]:
    """A session of its own; `more` are Spark's settings, with underscores for dots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = (
            SparkSession.builder.master(master)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            # Compiling a query takes longer than these queries do.
            .config("spark.sql.codegen.wholeStage", "false")
            .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
            .config("spark.log.level", "OFF")
            .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        )
        for name, value in more.items():
            builder = builder.config(name.replace("_", "."), value)
        session = builder.getOrCreate()
        memwal_spark.register(session)
        yield session
        session.stop()
