"""Whether Spark can be started here."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

from memwal.errors import Unsupported

# As Spark's scripts find the Java that they start.
_JAVA = '. "${0%/*}/load-spark-env.sh"; "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version'
_JAVA_MIN = 17
_NO_PYSPARK = "pyspark is not installed"
_NO_JAVA = f"Spark finds no Java {_JAVA_MIN} or newer here"
_REMEDIES = {
    _NO_PYSPARK: "pip install 'lance-memwal[spark]'",
    _NO_JAVA: "install one, or let JAVA_HOME name it",
}


def find_obstacle() -> str | None:
    """Say why Spark can't be started here: it lacks pyspark, or Java; None if it can."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return _NO_PYSPARK
    # The JVM is there already, or elsewhere.
    if {"PYSPARK_GATEWAY_PORT", "SPARK_REMOTE"} & {*os.environ}:
        return None
    home = os.environ.get("SPARK_HOME") or Path(found.origin).parent
    return None if _has_java(f"{home}/bin/spark-submit") else _NO_JAVA


def check_spark() -> None:
    """Raise Unsupported where Spark can't be started."""
    if obstacle := find_obstacle():
        text = f"{obstacle}: {_REMEDIES[obstacle]}; --engine local goes without Spark"
        raise Unsupported("MW-E04", text)


def check_java(spark_submit: str) -> None:
    """Raise Unsupported where this spark-submit finds no Java."""
    if not _has_java(spark_submit):
        raise Unsupported("MW-E04", f"{_NO_JAVA}: {_REMEDIES[_NO_JAVA]}")


def _has_java(spark_submit: str) -> bool:
    try:
        ran = subprocess.run(["bash", "-c", _JAVA, spark_submit], capture_output=True, text=True)
    except OSError:  # without bash, Spark does not start either
        return False
    version = re.search(r'version "(\d+)', ran.stderr)
    return ran.returncode == 0 and version is not None and int(version[1]) >= _JAVA_MIN
