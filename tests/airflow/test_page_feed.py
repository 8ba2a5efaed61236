"""The feed: good tables come through whatever the bad ones do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest
from memwal_airflow.hooks.command import JobsEnvironment
from memwal_airflow.page.answers import Look, find_state
from memwal_airflow.page.feed import Feed, FeedLimits
from memwal_airflow.page.source import read_order
from memwal_airflow.processes.process import Runner

from tests.airflow import page_samples as samples
from tests.airflow.airflow_server import InProcessAirflow

LIMITS = FeedLimits(refresh_seconds=30, seconds_max=2, batch_tables_max=4)


class ManualClock(samples.StandingClock):
    """Time passes when a test says so."""

    passed: float = 0.0

    def now_nanos(self) -> int:
        return super().now_nanos() + round(self.passed * 1e9)

    def monotonic_seconds(self) -> float:
        return self.passed


@dataclass
class World:
    """A feed, and who answers it."""

    folder: Path
    limits: FeedLimits = LIMITS
    time: ManualClock = field(default_factory=ManualClock)

    def __post_init__(self) -> None:
        self.answers = samples.Answers(self.folder)
        self.feed = Feed(self.answers.order, self.answers, self.time, self.limits)  # type: ignore[arg-type]

    def tables(self, *names: str, **uris: str) -> None:
        """What is named; of all but those that hang something is known."""
        self.answers.name_tables(*names, **uris)
        for name in (*names, *uris):
            self.answers.put(samples.status(name), samples.history(2))

    def look(self, at: float = 0.0) -> dict[str, Look]:
        """Set off a look, wait until the feed has nothing left to do, and say what it knows."""
        self.time.passed = at
        self.feed.seen()
        return self.settle()

    def settle(self) -> dict[str, Look]:
        samples.settle()
        return self.known()

    def known(self) -> dict[str, Look]:
        return {look.name: look for look in self.feed.seen().looks}


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.002)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.feed.close()
    made.settle()


def test_nothing_happens_until_somebody_looks(world: World) -> None:
    world.tables("orders")
    assert world.answers.calls == []
    first = world.feed.seen()
    assert (first.looks, first.planned_at, first.busy) == ((), None, True)
    world.settle()
    assert world.known()["orders"].status.rows == 20_282  # type: ignore[union-attr]


def test_asking_never_waits(world: World) -> None:
    world.tables("hangs-1")
    world.answers.gate.clear()
    for _ in range(100):
        world.feed.seen()
        world.feed.refresh()
    assert not world.answers.gate.is_set()


def test_good_tables_are_asked_about_together_and_again_only_when_old(world: World) -> None:
    names = tuple(f"t{n}" for n in range(6))
    world.tables(*names)
    known = world.look()
    assert all(known[name].status and known[name].runs for name in names)
    assert sorted(world.answers.asked()) == [names[:4], names[4:]]
    world.look(at=29)
    assert len(world.answers.asked()) == 2
    assert world.look(at=31)["t1"].status_at == samples.NOW + timedelta(seconds=31)
    assert len(world.answers.asked()) == 4


def test_a_hanging_table_does_not_hide_the_others(world: World) -> None:
    world.tables("a", "hangs-b", "c")
    world.look()
    known = world.settle()
    # Any of them may have been to blame for the first: each is asked about alone.
    assert world.answers.asked() == [("a", "hangs-b", "c"), ("a",), ("hangs-b",), ("c",)]
    assert known["a"].status and known["c"].status
    assert known["hangs-b"].error == "memwal status: no answer within 2 s"
    # By the time it is tried again, the good ones are asked about without it.
    world.look(at=31)
    assert sorted(world.answers.asked()[4:]) == [("a", "c"), ("hangs-b",)]


def test_unreachable_tables_are_asked_about_apart(world: World) -> None:
    away = ("away-1", "away-2")
    world.tables("a", *away, "b")
    for name in away:
        world.answers.put(samples.unreachable(name))
    world.look()
    known, asked = world.settle(), world.answers.asked
    # The others' answer came with theirs, and from then on they are asked about together.
    assert asked() == [("a", *away, "b"), away]
    assert asked("runs") == [("a", "b")]
    assert known["a"].status is not None
    assert (known["away-1"].unreachable, known["away-1"].error_since) == (True, samples.NOW)

    known = world.look(at=31)
    assert sorted(asked()[2:]) == [("a", "b"), away]
    assert known["away-1"].error_since == samples.NOW

    world.answers.put(samples.status("away-2"))
    known = world.look(at=62)
    assert sorted(asked()[4:]) == [("a", "b"), away]
    assert known["away-2"].error is None
    assert known["away-1"].error_since == samples.NOW
    world.look(at=93)
    assert sorted(map(sorted, asked()[6:])) == [["a", "away-2", "b"], ["away-1"]]


def test_hanging_tables_hold_up_no_good_one(world: World) -> None:
    world.tables("hangs-a", "hangs-b", "c")
    world.look()
    world.settle()
    world.answers.gate.clear()
    world.answers.hanging_at_once.clear()
    world.time.passed = 61
    wait_for(lambda: world.known()["c"].status_at > samples.NOW)  # type: ignore[operator]
    wait_for(lambda: any(world.known()[name].looking for name in ("hangs-a", "hangs-b")))
    world.answers.gate.set()
    world.settle()
    # The two are never asked about at once: the second waits for the first.
    assert world.answers.hanging_at_once == [1, 1]


def test_what_makes_no_sense_hides_no_other_and_no_secret_gets_through(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tables("garbles", "ok")
    world.look()
    known = world.settle()
    assert known["ok"].status is not None
    assert str(known["garbles"].error).startswith(
        "memwal status (exit code 1) gave no document: secret hunter2"
    )
    assert "user:pass" not in str(known["garbles"].error)
    # Secrets of the connection, and of the configuration.
    monkeypatch.setenv("LAKE_SECRET", "sesame-sesame")
    world.answers.options = {"aws_secret_access_key": "hunter2-hunter2"}
    options = '[tables.garbles.storage_options]\naws_session_token = "${LAKE_SECRET}"\n'
    world.answers.config.write_text(f'[tables.garbles]\nuri = "s3://lake/x"\n{options}')
    # The lane of failing tables may begin before the other one has read the new order.
    world.look(at=31)
    assert "hunter2" not in str(world.look(at=62))
    assert world.answers.order().redactor.clean("sesame-sesame") == "***"
    assert "hunter2" not in repr(world.answers.order())


def test_runs_that_hang_leave_the_status(world: World) -> None:
    world.tables("a", "late-b")
    known = world.look()
    assert known["a"].status is not None
    assert known["late-b"].status is not None
    assert known["late-b"].runs == ()
    assert known["late-b"].runs_error == "memwal runs: no answer within 2 s"


def test_a_table_about_which_nothing_is_said(world: World) -> None:
    world.tables("a", "silent")
    del world.answers.documents["status", "silent"]
    known = world.look()
    assert known["silent"].error == "memwal said nothing about this table"
    assert known["a"].error is None


def test_the_last_good_data_stay_when_the_command_goes_away(world: World) -> None:
    world.tables("a")
    world.look()
    world.answers.is_there = False
    known = world.look(at=31)["a"]
    assert str(known.error).startswith("memwal status: can't start")
    assert known.status is not None
    assert known.status_at == samples.NOW
    assert known.looking is False


def test_trouble_with_the_configuration_is_told_and_the_data_stay(world: World) -> None:
    world.look()
    assert "no such configuration file" in str(world.feed.seen().problem)
    world.answers.config.write_text("[defaults]\n")
    world.look(at=31)
    missing = world.feed.seen().missing
    assert missing is not None
    assert missing.file == str(world.answers.config)
    assert missing.lines.splitlines()[0] == "[tables.orders]"
    assert world.feed.seen().problem is None
    world.tables("a")
    world.look(at=62)
    world.answers.config.write_text("[tables.a]\nuri = 's3://lake/a'\nspeed = 3\n")
    assert set(world.look(at=93)) == {"a"}
    assert "unknown key 'tables.a.speed'" in str(world.feed.seen().problem)
    world.tables("a", "b")
    assert set(world.look(at=124)) == {"a", "b"}
    assert world.feed.seen().problem is None
    world.tables("--json")
    before = len(world.answers.calls)
    world.look(at=155)
    assert "tables.--json" in str(world.feed.seen().problem)
    assert not [names for _, names in world.answers.calls[before:] if "--json" in names]


def test_a_connection_that_cannot_be_read_is_told() -> None:
    def refuse() -> JobsEnvironment:
        raise RuntimeError("vault https://me:pass@vault is sealed")

    assert read_order(refuse).problem == (
        "the connection can't be read: RuntimeError: vault https://***@vault is sealed"
    )


def test_tables_of_another_address_or_without_a_name_are_gone(world: World) -> None:
    world.tables("a", "b")
    world.look()
    world.answers.name_tables(a="s3://lake/other")
    del world.answers.documents["status", "a"]
    known = world.look(at=31)
    assert set(known) == {"a"}
    assert (known["a"].status, known["a"].uri) == (None, "s3://lake/other")


def test_tables_and_threads_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, limits=replace(LIMITS, tables_max=40, batch_tables_max=8))
    world.tables(*(f"t{n:03}" for n in range(42)))
    most = 0
    world.feed.seen()

    def done() -> bool:
        nonlocal most
        alive = [t for t in threading.enumerate() if t.name.startswith("memwal-page")]
        most = max(most, len(alive))
        return not alive

    wait_for(done)
    assert len(world.answers.asked()) == 5
    assert most <= 2
    assert len(world.known()) == 40
    assert all(look.status and look.runs for look in world.known().values())
    assert world.feed.seen().tables_left_out == 2


def test_asking_for_a_refresh_looks_at_once_and_not_too_often(world: World) -> None:
    world.tables("a")
    world.look()
    for at, looks in ((1, 2), (3, 2), (6.5, 3)):
        world.time.passed = at
        world.feed.refresh()
        world.settle()
        assert len(world.answers.asked()) == looks


def test_closing_ends_what_runs(world: World) -> None:
    world.tables("hangs-a")
    world.answers.gate.clear()
    world.feed.seen()
    wait_for(lambda: bool(world.answers.calls))
    world.feed.close()
    world.settle()
    assert world.answers.is_closed
    world.look(at=100)
    assert len(world.answers.calls) == 1


def test_the_command_gets_none_of_airflows_secrets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgres://secret")
    world.tables("a")
    jobs = world.answers.order().jobs
    assert jobs is not None
    argv, environment = jobs.memwal("status", ["--json"], ["a"]), jobs.look_variables()
    assert argv[1:] == ["status", "--json", "--config", str(world.answers.config), "--", "a"]
    assert not [name for name in environment if name.startswith("AIRFLOW")]
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.integration
def test_the_real_command_on_a_real_table(airflow_home: InProcessAirflow) -> None:
    tables = airflow_home.tables
    table = tables.make("orders", shards=2, generations=5)
    tables.make("broken", generations=1).break_shard()
    jobs = JobsEnvironment(
        command=str(airflow_home.command), config_file=str(airflow_home.config_file)
    )
    runner = Runner(time.monotonic)
    feed = Feed(lambda: read_order(lambda: jobs), runner, ManualClock(), FeedLimits())
    feed.seen()
    wait_for(lambda: not feed.seen().busy)
    found = {look.name: look for look in feed.seen().looks}
    known, other = found["orders"], found["broken"]
    assert (known.error, known.runs_error) == (None, None)
    assert known.status is not None
    assert [len(shard.pending_generations) for shard in known.status.shards] == [5, 5]
    assert known.status.due
    assert known.status.attention[0].command == "memwal merge orders"
    assert known.status.storage is not None
    assert known.status.storage.base_bytes
    assert {shard.shard_id for shard in known.status.shards} == set(table.shards)
    assert find_state(other) == "broken"
    merge = jobs.memwal("merge", ["--json"], ["orders"])
    output = runner.run(merge, jobs.variables(), seconds_max=120, stdout_bytes_max=1 << 20)
    assert output.exit_code == 0, output.stderr
    feed.refresh()
    wait_for(lambda: not feed.seen().busy)
    merged = next(look for look in feed.seen().looks if look.name == "orders")
    assert [run["job"] for run in merged.runs] == ["merge"]
    assert merged.runs[0]["summary"]["generations"] == 10
    feed.close()
