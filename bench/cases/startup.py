"""How long starting takes: the CLI (B10) and a Spark job (B11)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from bench.harness import Bench, run_memwal, run_process
from bench.tables import make_base, new_shards, pending

TITLE = "Start-up"

# A job as it is, but for the time that its first unit writes down where it runs, in a Python worker
# of Spark. What is defined in `__main__` travels to the workers by value.
_JOB = """
import sys, time
import memwal.jobs.merge.job
from memwal.jobs.merge.job import run_merge_unit
from memwal.cli import main

stamp, table = sys.argv[1:]

def stamped(unit):
    with open(stamp, "w") as file:
        file.write(str(time.time()))
    return run_merge_unit(unit)

memwal.jobs.merge.job.run_merge_unit = stamped
main(["merge", table, "--engine", "spark", "--master", "local[2]"])
"""

# The same of a bare session: as it starts, or in its first task.
_SESSION = """
import sys, time
from pyspark.sql import SparkSession

stamp, *task = sys.argv[1:]

def stamped(number):
    with open(stamp, "w") as file:
        file.write(str(time.time()))
    return number

session = SparkSession.builder.master("local[2]").getOrCreate()
if task:
    session.sparkContext.parallelize([1], 1).map(stamped).collect()
else:
    stamped(0)
session.stop()
"""


def run(bench: Bench) -> None:
    """B10, B11."""
    table = bench.new_folder("startup") / "table"
    make_base(table, 1_000)
    pending(table, new_shards(1), 2, 100, 1_000)
    _command(bench, table)
    _spark(bench, table)


def _command(bench: Bench, table: Path) -> None:
    seconds = bench.side_by_side(
        {
            "status": lambda: run_memwal("status", table).seconds,
            "help": lambda: run_memwal("--help").seconds,
            "lance": lambda: run_process([sys.executable, "-c", "import lance"]).seconds,
        },
        rounds=5 if bench.quick else 15,
    )
    bench.ratio(
        "B10", "memwal status, against importing lance", seconds, "status", "lance", at_most=1.1
    )
    bench.ratio("B10", "memwal --help, against importing lance", seconds, "help", "lance")


def _spark(bench: Bench, table: Path) -> None:
    """From the start of the process on; each process has a JVM of its own."""
    stamp = table.parent / "stamp"

    def until_stamp(script: str, *arguments: str | Path) -> float:
        stamp.unlink(missing_ok=True)
        began = time.time()
        words = [sys.executable, "-c", script, stamp, *arguments]
        run_process(words, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
        return float(stamp.read_text()) - began

    def job() -> float:
        return until_stamp(_JOB, bench.copy(table))

    job()  # files into the page cache; and an archive of classes, where one is kept
    seconds = bench.side_by_side(
        {
            "job": job,
            "session": lambda: until_stamp(_SESSION),
            "task": lambda: until_stamp(_SESSION, "task"),
        },
        rounds=1 if bench.quick else 5,
    )
    what = "a Spark job's start to its first unit, against a bare session's start"
    bench.ratio("B11", what, seconds, "job", "session", at_most=1.1)
    what = "the same, against a bare session's start to its first Python task"
    bench.ratio("B11", what, seconds, "job", "task")
