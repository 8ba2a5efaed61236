"""Warm worker processes, with real ones: what ends one costs its unit and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memwal.clock import SystemClock
from memwal.errors import MemWalError, Refused, WorkerDied
from memwal.ports import Clock
from memwal.run.workers.pool import Lane, WorkerLimits, WorkerPool
from memwal.testing import ManualClock
from tests.support.odd_worker import OddWorker

pytestmark = pytest.mark.nightly

SECONDS = 30.0


class Pool(WorkerPool):
    """A pool of one lane, what its workers said, and a clock that tests move."""

    clock: ManualClock
    said: list[tuple[object, str, str]]

    def one(self, word: str, more: object = None) -> object:
        """The result of one unit."""
        self.begin(word, more)
        (end,) = self.wait(SECONDS)
        assert end.key == word
        return end.result

    def begin(self, word: str, more: object = None) -> None:
        if not self.can_take(""):
            self.clock.advance(60)
        self.start("", word, (word, more))


def make_pool(workers_max: int = 1, clock: Clock | None = None, **limits: float) -> Pool:
    said: list[tuple[object, str, str]] = []
    pool = Pool(
        lanes={"": Lane(make=OddWorker, workers_max=workers_max)},
        clock=clock or ManualClock(),
        limits=WorkerLimits(**limits),
        say=lambda *line: said.append(line),
    )
    pool.said = said
    return pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    with make_pool() as pool:
        yield pool


def until(there: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_is_kept_warm_and_prints_nothing_on_stdout(
    pool: Pool, capfd: pytest.CaptureFixture[str]
) -> None:
    first = pool.one("pid")
    assert pool.one("pid") == first != os.getpid()
    assert capfd.readouterr().out == ""


def test_errors_are_ends_and_odd_logs_stop_nothing(pool: Pool) -> None:
    pid = pool.one("pid")
    refused = pool.one("refuse", "no")
    assert isinstance(refused, Refused)
    assert str(refused) == "no (MW-H01)"
    for word in ("fail", "unsendable", "untravelled"):
        error = pool.one(word)
        assert type(error) is MemWalError
        assert "unexpected" in str(error)
    assert any(level == "trace" and "a bug" in text for _, level, text in pool.said)
    assert pool.one("talk") == "talked"
    assert ("talk", "warning", "I travel") in pool.said
    assert pool.one("misspeak") == "spoke"
    assert pool.one("pid") == pid


@pytest.mark.parametrize(
    ("word", "more", "how"), [("die", signal.SIGKILL, "SIGKILL"), ("leave", 3, "exit code 3")]
)
def test_a_dead_worker_costs_its_unit_and_is_replaced(
    pool: Pool, word: str, more: object, how: str
) -> None:
    first = pool.one("pid")
    died = pool.one(word, more)
    assert isinstance(died, WorkerDied)
    assert f"{how} during {word}." in str(died)
    assert not pool.can_take("")  # not at once: a machine that kills every worker is left alone
    assert pool.one("pid") not in (first, os.getpid())


def test_a_worker_is_replaced_when_it_grew_or_did_enough() -> None:
    reasons: list[str] = []
    with make_pool(memory_bytes_max=100 * 2**20, units_max=3) as pool:
        pool.on_replaced = reasons.append
        first = pool.one("grow", 1000)
        assert pool.one("grow", 200 * 2**20) == first
        second = pool.one("pid")
        assert second != first
        assert [pool.one("pid"), pool.one("pid")] == [second, second]
        third = pool.one("spend")
        assert third != second
        assert pool.one("pid") != third
        assert reasons == ["grown", "old", "spent"]
        until(lambda: not is_there(first))


def test_an_idle_worker_is_let_go(pool: Pool) -> None:
    pool.warm("")
    (warm,) = pool.pids
    assert pool.one("pid") == warm
    pool.clock.advance(pool.limits.idle_seconds_max)
    until(lambda: not (pool.wait(0) or pool.pids))
    assert not is_there(warm)


def test_a_unit_that_takes_long_is_told_and_neighbours_deaths_are_nothing_to_it(
    tmp_path: Path,
) -> None:
    with make_pool(workers_max=2) as pool:
        pool.begin("until_cancelled", str(tmp_path / "f"))
        pool.begin("die", signal.SIGKILL)
        (dead,) = pool.wait(SECONDS)
        assert isinstance(dead.result, WorkerDied)
        pool.clock.advance(pool.limits.unit_seconds_warned)
        assert pool.wait(0) == []
        assert "has taken 600 s so far" in pool.said[-1][2]
        assert [end.result for end in pool.stop(SECONDS)] == ["ended"]


def test_stop_lets_the_unit_in_hand_end_and_kills_what_does_not(tmp_path: Path) -> None:
    pool = make_pool(workers_max=2, clock=SystemClock())
    for word in ("until_cancelled", "deaf"):
        pool.begin(word, str(tmp_path / word))
    until(lambda: all((tmp_path / word).exists() for word in ("until_cancelled", "deaf")))
    pids = pool.pids
    ends = {end.key: end.result for end in pool.stop(2.0)}
    assert ends["until_cancelled"] == "ended"
    assert "was ended by SIGKILL after it was told to stop" in str(ends["deaf"])
    assert not any(map(is_there, pids))


def test_signals_to_a_worker_are_nothing_to_its_unit(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "f"
    pool.begin("until_cancelled", str(file))
    until(lambda: file.exists() and file.read_text())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(int(file.read_text()), number)
    assert [end.result for end in pool.stop(SECONDS)] == ["ended"]


def test_nothing_is_left_of_a_parent_that_was_killed(tmp_path: Path) -> None:
    """And the unit in hand comes to its end."""
    program = (
        "import sys; from tests.run.test_workers import make_pool; pool = make_pool(2);"
        "pool.begin('pid'); pool.wait(30);"
        "pool.begin('until_cancelled', sys.argv[1]); pool.begin('pid'); pool.wait(30);"
        "print(*pool.pids, flush=True); pool.wait(100)"
    )
    file = tmp_path / "f"
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    until(file.exists)
    parent.kill()
    parent.communicate()
    assert len(pids) == 2
    until(lambda: not any(map(is_there, pids)))
    assert file.read_text() == "ended"


def test_what_keeps_a_worker_from_starting_is_its_unit_s_error_and_leaves_no_process(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as host:
        host.setattr(sys, "executable", "/nowhere/python")
        assert "could be started" in str(pool.one("pid"))
    with monkeypatch.context() as host:
        host.setattr(threading.Thread, "start", refuse)
        assert "can't start new thread" in str(pool.one("pid"))
    assert pool.pids == ()
    assert isinstance(pool.one("pid"), int)


def test_a_worker_that_can_t_be_killed_holds_up_the_end_for_some_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ticking(ManualClock):
        def monotonic_seconds(self) -> float:
            self.advance(1)
            return super().monotonic_seconds()

    with make_pool(clock=Ticking()) as pool:
        pool.begin("deaf", str(tmp_path / "f"))
        until((tmp_path / "f").exists)
        with monkeypatch.context() as host:
            host.setattr(os, "killpg", lambda pid, number: None)
            assert pool.stop(0.1) == []
            assert pool.pids
