"""Units that kill the process that works on them, on a real Spark: the others don't notice."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import memwal
from memwal.errors import MemWalError, Refused, Unsupported, WorkerDied
from memwal.rows.policy import make_policy
from memwal.run.engines.spark import SparkEngine
from tests.support.policy_tables import PolicyTable, Variant, make_policy_table

pytestmark = [pytest.mark.nightly, pytest.mark.spark]

Work = Callable[[int], Any]


def test_speculation_is_refused() -> None:
    """In a session that somebody else made; first of all here, as there is one at a time."""
    SparkEngine(master="local[1]").stop()  # a JVM keeps the settings that it is started with
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder.config("spark.speculation", "true").getOrCreate()
    with pytest.raises(Refused, match=r"spark\.speculation is on"):
        SparkEngine(master="local[1]")


def test_executors_with_another_pylance_are_refused_unless_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the first unit; an executor that comes later, with its first one."""
    here = lance.__version__
    monkeypatch.setattr(lance, "__version__", "14.99.0")
    engine = SparkEngine(master="local[1]")
    for _ in range(2):
        with pytest.raises(Unsupported, match=f"pylance {here}, the driver pylance 14.99.0"):
            engine.run(str, [1], lambda done: None, lost)
    engine.stop()

    def spoil(unit: int) -> None:
        memwal.__version__ = "0.0.0"  # of the one process, which is kept

    engine = SparkEngine(master="local[1]", lance_may_differ=True)
    assert engine.run(str, [1], lambda done: None) == ["1"]
    engine.run(spoil, [1], lambda done: None)
    (left,) = engine.run(str, [1], lambda done: None, lost)
    assert isinstance(left["error"], Unsupported)
    assert "has memwal 0.0.0" in str(left["error"])
    engine.stop()


def test_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="Spark Connect"):
        SparkEngine(master="sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(Unsupported, match="without SPARK_REMOTE"):
        SparkEngine()


@pytest.fixture(scope="module", params=["local[2]", "local[2,3]"])
def engine(request: pytest.FixtureRequest) -> Iterator[SparkEngine]:
    """Spark tries each task once, or three times."""
    engine = SparkEngine(master=request.param)
    yield engine
    engine.stop()


def attempts_of(engine: SparkEngine) -> int:
    """How many processes a unit may kill: Spark's tries but one (its only one), and one alone."""
    return {"local[2]": 2, "local[2,3]": 3}[engine.session.sparkContext.master]


def counted(folder: Path, work: Work) -> Work:
    """`work`, with a file for each time that a unit was begun. Travels by value, as jobs' don't."""

    def counting(unit: int) -> Any:
        number = 0
        while True:
            try:
                os.close(os.open(folder / f"{unit}-{number}", os.O_CREAT | os.O_EXCL))
                return work(unit)
            except FileExistsError:
                number += 1

    return counting


def begun(folder: Path) -> dict[int, int]:
    found = [int(path.name.split("-")[0]) for path in folder.iterdir()]
    return {unit: found.count(unit) for unit in set(found)}


def deadly(*units: int, by: int = signal.SIGABRT) -> Work:
    def work(unit: int) -> Any:
        if unit in units:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.kill(os.getpid(), by)
        return {"unit": unit}

    return work


def lost(unit: int, error: MemWalError) -> Any:
    return {"lost": unit, "error": error}


@pytest.mark.parametrize("by", [signal.SIGABRT, signal.SIGKILL])
def test_who_kills_its_process_is_told_alone(engine: SparkEngine, tmp_path: Path, by: int) -> None:
    progress: list[int] = []
    units = list(range(7))
    work = counted(tmp_path, deadly(0, 4, by=by))

    results = engine.run(work, units, progress.append, lost)

    others = [unit for unit in units if unit not in (0, 4)]
    assert [results[unit] for unit in others] == [{"unit": unit} for unit in others]
    for unit in (0, 4):
        assert results[unit]["lost"] == unit
        assert isinstance(results[unit]["error"], WorkerDied)
    times = begun(tmp_path)
    assert [times[unit] for unit in others] == [1] * 5
    assert [times[unit] for unit in (0, 4)] == [attempts_of(engine)] * 2
    assert progress[-1] == max(progress) == 7


def test_who_died_but_for_the_last_attempt_has_its_result(
    engine: SparkEngine, tmp_path: Path
) -> None:
    last = attempts_of(engine) - 1
    die = deadly(1)

    def work(unit: int) -> Any:
        return die(unit) if not (tmp_path / f"1-{last}").exists() else "at last"

    results = engine.run(counted(tmp_path, work), [0, 1], lambda done: None, lost)

    assert results[1] == "at last"
    assert begun(tmp_path) == {0: 1, 1: last + 1}
    with pytest.raises(WorkerDied, match="in every attempt"):
        engine.run(die, [0, 1], lambda done: None)


def test_what_a_unit_raises_arrives_as_it_is_and_is_not_tried_again(
    engine: SparkEngine, tmp_path: Path
) -> None:
    class Odd(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("stays here")

    def refusing(unit: int) -> Any:
        if unit == 1:
            raise Refused("MW-H01", "a hole")
        return unit

    def odd(unit: int) -> Any:
        raise Odd("from afar")

    with pytest.raises(Refused, match="a hole"):
        engine.run(counted(tmp_path, refusing), [0, 1], lambda done: None, lost)
    assert begun(tmp_path) == {0: 1, 1: 1}
    with pytest.raises(MemWalError, match="unexpected Odd: from afar"):
        engine.run(odd, [0], lambda done: None, lost)


def test_a_cancelled_run_begins_nothing_more(engine: SparkEngine, tmp_path: Path) -> None:
    def work(unit: int) -> Any:
        time.sleep(600)

    def cancel() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.1)
        engine.cancel()

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    with pytest.raises(Py4JJavaError, match=r"(?i)cancel"):
        engine.run(counted(tmp_path, work), list(range(40)), lambda done: None, lost)
    canceller.join()
    assert len(begun(tmp_path)) < 40
    assert engine.run(lambda unit: unit, [1, 2], lambda done: None, lost) == [1, 2]


# ---- a whole merge

# A user's operator is the one piece of code in a unit that is not memwal's.
OPERATOR = """
import os, resource
import pyarrow.compute as pc

def fused(left, right):
    if "fatal" in right.to_pylist():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    return pc.binary_join_element_wise(left, right, "+")
"""


def install_operator(folder: Path) -> None:
    package = folder / "fatal_operator-1.0.dist-info"
    package.mkdir(parents=True)
    (folder / "fatal_operator.py").write_text(OPERATOR)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: fatal_operator\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[memwal.operators]\nfused = fatal_operator:fused\n")


def merge(table: PolicyTable, operators: Path) -> tuple[int, dict[str, Any]]:
    command = [str(Path(sys.executable).with_name("memwal")), "merge", table.uri, "--json"]
    path = os.pathsep.join(filter(None, [str(operators), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*command, "--engine", "spark", "--master", "local[2]"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
    )
    assert done.stdout, done.stderr
    (report,) = json.loads(done.stdout)["tables"]
    return done.returncode, report


def test_a_merge_reports_on_every_other_shard(tmp_path: Path) -> None:
    install_operator(tmp_path / "operators")
    table = make_policy_table(
        tmp_path / "t", Variant(expiry=False), rows=[1], shards=4, stored=False
    )
    policy = make_policy({"note": ("fused", None)}, None, None)
    table.stores.tables.put_policy(policy.as_text())
    fatal, *others = sorted(table.shards)
    table.flush((1, table.row(1, 5, note="fatal")), shard=fatal)
    for key, shard in enumerate(others, start=2):
        table.flush((key, table.row(key, 1)), (key, table.row(key, 2)), shard=shard)

    code, report = merge(table, tmp_path / "operators")

    assert (code, report["outcome"]) == (6, "partial")
    shards = {shard["shard_id"]: shard for shard in report["shards"]}
    assert shards[fatal]["outcome"] == "failed"
    assert f"{table.uri}: shard {fatal}: the worker process died" in shards[fatal]["error"]
    for shard in others:
        assert (shards[shard]["outcome"], shards[shard]["rows_inserted"]) == ("done", 1)
        assert (shards[shard]["generations"], shards[shard]["commits"]) == (1, 1)
    assert dict(table.stores.views.table().mem_wal.merged) == dict.fromkeys(others, 1)
    notes = {row["note"] for row in table.dataset.to_table().to_pylist()}
    assert notes == {"note 1001", "note 1+note 2"}
