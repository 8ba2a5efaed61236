"""Rounds on real tables: what a worker does with one, and what its end costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memwal.clock import SystemClock
from memwal.config import ResolvedTable, Settings
from memwal.errors import WorkerDied
from memwal.format import layout
from memwal.jobs.maintain.job import MaintainOptions
from memwal.jobs.watch.plan import Round
from memwal.jobs.watch.ports import RoundEnd
from memwal.jobs.watch.workers import ProcessWorkers, RoundWorker
from memwal.run.progress import Silent
from memwal.run.workers import cancel
from memwal.run.workers.pool import WorkerLimits
from memwal.testing import ManualClock
from tests.support import builders
from tests.support.builders import Put, Table

SECONDS = 60.0
FRESHEN = ("merge", "index-catchup")
OPTIONS = MaintainOptions(tables=(), run_id="the-watch")


class Told(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def resolve(table: Table) -> ResolvedTable:
    return ResolvedTable(name="t", uri=table.uri, settings=Settings(), storage_options={})


def list_claims(table: Table) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted(Path(table.uri).glob(f"{layout.LEASE}/0*"))]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=2, indexed=True)
    for shard in table.shards:
        table.flush(shard, Put([1, 30], 1))
    return table


# ---- in this process


@dataclass
class Post:
    """Stands for the way to the parent; may do something when it is told of a job."""

    on: dict[str, Callable[[], object]] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)

    def say(self, level: str, text: str) -> None:
        self.said.append((level, text))
        self.on.get(text, lambda: None)()


@pytest.fixture
def worker() -> Iterator[RoundWorker]:
    worker = RoundWorker(OPTIONS)
    yield worker
    worker.close()
    cancel.begin()


def run_round(worker: RoundWorker, table: Table, *jobs: str, post: Post | None = None) -> Any:
    unit = (resolve(table), Round(table="t", jobs=jobs))
    return worker.run(unit, post or Post())  # type: ignore[arg-type]


@pytest.mark.integration
def test_a_round_runs_the_jobs_that_are_asked_for_under_one_lease(
    worker: RoundWorker, table: Table
) -> None:
    post = Post()
    done = run_round(worker, table, *FRESHEN, post=post)
    (report,) = done.tables
    assert [(job.job, job.report.outcome) for job in report.jobs] == [
        ("merge", "done"),
        ("index-catchup", "done"),
    ]
    assert post.said == [("doing", "merge"), ("doing", "index-catchup")]
    builders.check_merged(table)
    (claim,) = list_claims(table)
    assert (claim["job"], claim["released"], claim["run_id"]) == ("watch", True, "the-watch")
    assert done.requests["get"] > 0
    (idle,) = run_round(worker, table, *FRESHEN, "snapshot", "garbage").tables
    assert [job.job for job in idle.jobs] == [*FRESHEN, "snapshot", "garbage"]


@pytest.mark.integration
def test_a_cancelled_round_ends_before_its_next_commit_and_gives_the_lease_back(
    worker: RoundWorker, table: Table
) -> None:
    post = Post(on={"index-catchup": worker.cancel})
    (report,) = run_round(worker, table, *FRESHEN, post=post).tables
    assert "index-catchup: cancelled before this commit" in str(report.error)
    builders.check_merged(table)
    assert [claim["released"] for claim in list_claims(table)] == [True]


@pytest.mark.integration
def test_a_table_that_is_none_is_the_round_s_report(worker: RoundWorker, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    none = Table(uri=str(tmp_path / "none"), kind=builders.KINDS["int64"])
    (report,) = run_round(worker, none, "merge").tables
    assert (report.exit_code, "none" in str(report.error)) == (2, True)


def test_without_pyspark_large_rounds_run_here_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("memwal.jobs.watch.workers.find_obstacle", lambda: "pyspark is not there")
    workers = ProcessWorkers(
        options=MaintainOptions(tables=(), dry_run=True),
        progress=(told := Told()),
        clock=ManualClock(),
        workers_max=1,
        limits=WorkerLimits(),
    )
    lanes: list[str] = []
    workers.pool = SimpleNamespace(start=lambda lane, *unit: lanes.append(lane))  # type: ignore[assignment]
    given = ResolvedTable(name="t", uri="/t", settings=Settings(), storage_options={})
    for large in (True, True, False):
        workers.start(given, Round(table="t", jobs=FRESHEN, large=large))
    assert lanes == ["large", "large", "small"]
    assert len(told.warned) == 1 and "pyspark" in told.warned[0]


# ---- in processes of their own


# So many commits that a busy machine can't get through them between two looks.
_GENERATIONS = 40


def make_workers(
    engine: str | None = None, master: str | None = None, idle: float = 300
) -> ProcessWorkers:
    return ProcessWorkers(
        options=MaintainOptions(tables=(), run_id="the-watch", engine=engine, master=master),
        progress=Told(),
        clock=SystemClock(),
        workers_max=1,
        limits=WorkerLimits(idle_seconds_max=idle),
    )


def finish(workers: ProcessWorkers) -> RoundEnd:
    (end,) = workers.wait(SECONDS)
    return end


def run(workers: ProcessWorkers, table: Table, *jobs: str, large: bool = False) -> RoundEnd:
    until(lambda: workers.can_take(large=large))
    workers.start(resolve(table), Round(table="t", jobs=jobs, large=large))
    return finish(workers)


def until(there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def one_by_one(table: Table) -> ResolvedTable:
    """A commit a generation, so that there is a middle."""
    return resolve(table).with_settings(Settings(generations_per_commit_max=1))


@pytest.fixture
def backlog(tmp_path: Path) -> Table:
    """A table with work for many commits."""
    table = builders.make_table(tmp_path / "t", rows=range(20), shards=1)
    for n in range(_GENERATIONS):
        table.flush(table.shards[0], Put(range(n, n + 5), n))
    return table


@pytest.mark.nightly
def test_a_killed_worker_costs_its_round_and_the_next_one_goes_on(backlog: Table) -> None:
    workers = make_workers()
    workers.start(one_by_one(backlog), Round(table="t", jobs=FRESHEN))
    until(lambda: bool(backlog.progress()))
    os.kill(workers.pool.pids[0], signal.SIGKILL)
    end = finish(workers)
    assert isinstance(end.error, WorkerDied)
    assert "SIGKILL during merge" in str(end.error)
    # On the same host, a lease whose process has ended is nobody's.
    assert run(workers, backlog, *FRESHEN).error is None
    builders.check_merged(backlog)
    workers.stop(SECONDS)


@pytest.mark.nightly
def test_a_watch_that_was_killed_leaves_no_process_and_no_lease(backlog: Table) -> None:
    """Its workers notice, stop before their next commit and give the lease back."""
    program = (
        "import sys; from tests.jobs.watch.test_watch_workers import *;"
        "workers = make_workers(); table = Table(uri=sys.argv[1], kind=builders.KINDS['int64']);"
        "workers.start(one_by_one(table), Round(table='t', jobs=FRESHEN));"
        "print(*workers.pool.pids, flush=True); workers.wait(100)"
    )
    watch = subprocess.Popen(
        [sys.executable, "-c", program, backlog.uri], stdout=subprocess.PIPE, text=True
    )
    assert watch.stdout is not None
    (pid,) = [int(pid) for pid in watch.stdout.readline().split()]
    until(lambda: bool(backlog.progress()))
    watch.kill()
    watch.communicate()
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert 0 < backlog.progress()[backlog.shards[0]] < _GENERATIONS
    assert [claim["released"] for claim in list_claims(backlog)] == [True]
    builders.check_versions(backlog, 1)


def find_jvm(worker: int) -> int:
    """The JVM that a worker has started."""
    (pid,) = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return int(pid)


@pytest.mark.nightly
@pytest.mark.spark
def test_a_killed_jvm_costs_its_round_and_an_idle_one_is_let_go(table: Table) -> None:
    workers = make_workers(engine="spark", master="local[1]", idle=5)
    assert run(workers, table, *FRESHEN, large=True).error is None
    first = workers.pool.pids[-1]
    jvm = find_jvm(first)
    table.flush(table.shards[0], Put([7], 7))
    os.kill(jvm, signal.SIGKILL)
    end = run(workers, table, *FRESHEN, large=True)
    assert end.error or (end.report is not None and end.report.exit_code == 1)
    assert run(workers, table, *FRESHEN, large=True).error is None
    builders.check_merged(table)
    second = workers.pool.pids[-1]
    jvm = find_jvm(second)
    assert second != first
    until(lambda: not (workers.wait(0.1) or workers.pool.pids))
    until(lambda: not Path(f"/proc/{jvm}").exists())
