"""How long starting takes: the CLI (B10) and a Spark job (B11)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.bench.harness import Bench, program, run_process
from tests.bench.tables import copy_of, make_base, new_shards, pending

TITLE = "Start-up"

# A job as it is, but for the time that its first unit writes down where it runs, in a Python worker
# of Spark. What is defined in `__main__` travels to the workers by value.
_JOB = """
import sys, time
import memwal.jobs.merge.job
from memwal.jobs.merge.unit import run_merge_unit
from memwal.cli import main

stamp, table = sys.argv[1:]

def stamped(unit):
    with open(stamp, "w") as file:
        file.write(str(time.time()))
    return run_merge_unit(unit)

memwal.jobs.merge.job.run_merge_unit = stamped
main(["merge", table, "--engine", "spark", "--master", "local[2]"])
"""

_SESSION = """
import sys, time
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[2]").getOrCreate()
with open(sys.argv[1], "w") as file:
    file.write(str(time.time()))
session.stop()
"""

_FIRST_TASK = """
import sys, time
from pyspark.sql import SparkSession

stamp = sys.argv[1]

def stamped(number):
    with open(stamp, "w") as file:
        file.write(str(time.time()))
    return number

session = SparkSession.builder.master("local[2]").getOrCreate()
session.sparkContext.parallelize([1], 1).map(stamped).collect()
session.stop()
"""


def run(bench: Bench) -> None:
    """B10, B11."""
    folder = bench.new_folder("startup")
    table = folder / "table"
    make_base(table, 1_000)
    pending(table, new_shards(1), 2, 100, 1_000)
    _command(bench, folder, table)
    _spark(bench, folder, table)


def _command(bench: Bench, folder: Path, table: Path) -> None:
    seconds = bench.side_by_side(
        {
            "status": lambda: run_process([program("memwal"), "status", table], folder).seconds,
            "help": lambda: run_process([program("memwal"), "--help"], folder).seconds,
            "lance": lambda: run_process([sys.executable, "-c", "import lance"], folder).seconds,
        },
        rounds=5 if bench.quick else 15,
    )
    bench.ratio(
        "B10", "memwal status, against importing lance", seconds, "status", "lance", at_most=1.1
    )
    bench.ratio("B10", "memwal --help, against importing lance", seconds, "help", "lance")


def _spark(bench: Bench, folder: Path, table: Path) -> None:
    """From the start of the process on; each process has a JVM of its own."""
    stamp = folder / "stamp"

    def until_stamp(script: str, *arguments: Path) -> float:
        stamp.unlink(missing_ok=True)
        began = time.time()
        words = [sys.executable, "-c", script, stamp, *arguments]
        run_process(words, folder, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
        return float(stamp.read_text()) - began

    def job() -> float:
        return until_stamp(_JOB, copy_of(table, bench.new_folder("copy") / "table"))

    job()  # files into the page cache; and an archive of classes, where one is kept
    seconds = bench.side_by_side(
        {
            "job": job,
            "session": lambda: until_stamp(_SESSION),
            "task": lambda: until_stamp(_FIRST_TASK),
        },
        rounds=1 if bench.quick else 5,
    )
    bench.ratio(
        "B11",
        "a Spark job's start to its first unit, against a bare session's start",
        seconds,
        "job",
        "session",
        at_most=1.1,
    )
    bench.ratio(
        "B11",
        "the same, against a bare session's start to its first Python task",
        seconds,
        "job",
        "task",
    )
