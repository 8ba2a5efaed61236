"""The feed with real processes: good tables come through whatever the bad ones do."""

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
from memwal_airflow.page.answers import Look
from memwal_airflow.page.feed import Clock, Feed, FeedLimits
from memwal_airflow.page.source import Order, read_order
from memwal_airflow.processes.process import Runner

from tests.airflow import page_samples as samples
from tests.airflow.tables import JOBS_BIN, TableMaker, Tables

# An answer may take its time where much else runs; only what hangs is waited for so long.
LIMITS = FeedLimits(
    refresh_seconds=30, seconds_max=30, batch_tables_max=4, stdout_bytes_max=4 << 20
)
HASTY = replace(LIMITS, seconds_max=2)
IDLE_SECONDS_MAX = 60


@dataclass
class ManualClock:
    """Time passes when a test says so."""

    passed: float = 0.0

    def clock(self) -> Clock:
        return Clock(
            now=lambda: samples.NOW + timedelta(seconds=self.passed),
            monotonic=lambda: self.passed,
        )


@dataclass
class World:
    """A feed over the stand-in command."""

    folder: Path
    limits: FeedLimits = LIMITS
    time: ManualClock = field(default_factory=ManualClock)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.command = samples.make_command(self.folder)
        self.config = self.folder / "memwal.toml"
        self.runner = Runner(time.monotonic)
        self.feed = Feed(self.order, self.runner, self.time.clock(), self.limits)

    def order(self) -> Order:
        return read_order(
            lambda: JobsEnvironment(
                command=str(self.command),
                config_file=str(self.config),
                storage_options=self.options,
            )
        )

    def tables(self, *names: str, **uris: str) -> None:
        sections = {**{name: f"s3://lake/{name}" for name in names}, **uris}
        text = "\n".join(f'[tables."{name}"]\nuri = "{uri}"' for name, uri in sections.items())
        self.config.write_text(text)

    def good(self, *names: str) -> None:
        for name in names:
            samples.put(self.folder, samples.status(name), samples.history(2))

    def look(self) -> dict[str, Look]:
        """Set off a look, wait until the feed has nothing left to do, and say what it knows."""
        self.feed.seen()
        self.settle()
        return self.known()

    def settle(self) -> None:
        wait_for(lambda: not [t for t in threading.enumerate() if t.name == "memwal-page-feed"])

    def known(self) -> dict[str, Look]:
        with self.feed._lock:
            return dict(self.feed._looks)

    def asked(self, job: str = "status") -> list[tuple[str, ...]]:
        return [names for called, names in samples.calls(self.folder) if called == job]


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + IDLE_SECONDS_MAX
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.feed.close()
    made.settle()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[World]:
    """For tables that hang: what is given up on is given up on soon."""
    made = World(tmp_path, HASTY)
    yield made
    made.feed.close()
    made.settle()


def test_nothing_happens_until_somebody_looks(world: World) -> None:
    world.tables("orders")
    world.good("orders")
    time.sleep(0.2)
    assert world.asked() == []
    first = world.feed.seen()
    assert (first.looks, first.planned_at, first.busy) == ((), None, True)
    world.settle()
    assert world.feed.look("orders").status.rows == 20_282  # type: ignore[union-attr]


def test_asking_never_waits(world: World) -> None:
    world.tables("hangs-1", "sleeps-1")
    started = time.monotonic()
    for _ in range(100):
        world.feed.seen()
        world.feed.look("hangs-1")
        world.feed.ask_refresh()
    assert time.monotonic() - started < world.limits.seconds_max / 2


def test_good_tables_are_asked_about_together_and_again_only_when_old(world: World) -> None:
    names = tuple(f"t{n}" for n in range(6))
    world.tables(*names)
    world.good(*names)
    known = world.look()
    assert all(known[name].status and known[name].runs for name in names)
    assert sorted(world.asked()) == [names[:4], names[4:]]
    world.time.passed = 29
    world.look()
    assert len(world.asked()) == 2
    world.time.passed = 31
    assert world.look()["t1"].status_at == samples.NOW + timedelta(seconds=31)
    assert len(world.asked()) == 4


def test_a_hanging_table_does_not_hide_the_others(hasty: World) -> None:
    hasty.tables("a", "hangs-b", "c")
    hasty.good("a", "c")
    known = hasty.look()
    assert known["a"].status is not None
    assert known["c"].status is not None
    assert known["hangs-b"].error == "no answer within 2 s"
    assert known["hangs-b"].unreachable_since == samples.NOW
    assert known["hangs-b"].next_try_at is not None
    # By the time it is tried again, the good ones are asked about without it.
    hasty.time.passed = 61
    hasty.look()
    assert sorted(hasty.asked()[-2:]) == [("a", "c"), ("hangs-b",)]


def test_unreachable_tables_are_tried_again_apart_and_less_and_less(world: World) -> None:
    away = ("away-1", "away-2")
    world.tables("a", *away, "b")
    world.good("a", "b")
    for name in away:
        samples.put(world.folder, samples.unreachable(name))
    known = world.look()
    # What memwal says of them is enough: the others' answer came with it, and no second look.
    assert world.asked() == [("a", *away, "b")]
    assert world.asked("runs") == [("a", "b")]
    assert known["a"].status is not None
    assert known["a"].next_try_at is None
    assert known["away-1"].unreachable_since == samples.NOW
    assert known["away-1"].next_try_at == samples.NOW + timedelta(seconds=30)

    world.time.passed = 31
    known = world.look()
    assert sorted(world.asked()[1:]) == [("a", "b"), away]
    assert known["away-1"].unreachable_since == samples.NOW
    assert known["away-1"].next_try_at == samples.NOW + timedelta(seconds=31 + 60)
    world.time.passed = 62
    world.look()
    assert world.asked()[3:] == [("a", "b")]

    # Whoever asks for a look gets one at all of them, and nobody else waits for it.
    world.good("away-2")
    world.feed.ask_refresh()
    world.settle()
    known = world.known()
    assert sorted(world.asked()[4:]) == [("a", "b"), away]
    assert (known["away-2"].unreachable_since, known["away-2"].next_try_at) == (None, None)
    assert known["away-1"].unreachable_since == samples.NOW
    world.time.passed = 93
    world.look()
    assert [sorted(names) for names in world.asked()[6:]] == [["a", "away-2", "b"]]


def test_the_first_look_at_a_store_waits_for_no_other_store(world: World) -> None:
    places = {"b": "/lake/b", "c": "s3://far/c", "d": "cat:sales.d", "e": "/tmp/e"}
    world.tables("a", **places)
    world.good("a", *places)
    world.look()
    assert sorted(world.asked()) == [("a",), ("b", "e"), ("c",), ("d",)]
    world.time.passed = 31
    world.look()
    assert sorted(map(len, world.asked()[4:])) == [1, 4]


def test_what_hangs_is_ended_with_all_that_it_started(hasty: World) -> None:
    hasty.tables("hangs-a")
    hasty.look()
    children = [int(line) for line in (hasty.folder / "children.txt").read_text().split()]
    assert len(children) == 1
    wait_for(lambda: not any(alive(child) for child in children))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_table_that_keeps_failing_is_asked_about_less_and_less(hasty: World) -> None:
    hasty.tables("hangs-a")
    asked = []
    for seconds in range(0, 600, 31):
        hasty.time.passed = seconds
        hasty.look()
        asked.append(len(hasty.asked()))
    assert asked[0] == 1
    assert 3 <= asked[-1] <= 7
    hasty.feed.ask_refresh("hangs-a")
    hasty.settle()
    assert len(hasty.asked()) == asked[-1] + 1


def test_two_hanging_tables_leave_a_thread_for_the_rest(hasty: World) -> None:
    hasty.tables("hangs-a", "hangs-b", "c")
    hasty.good("c")
    hasty.look()
    hasty.time.passed = 61
    started = time.monotonic()
    hasty.feed.seen()
    wait_for(lambda: hasty.known()["c"].status_at > samples.NOW)  # type: ignore[operator]
    assert any(hasty.known()[name].looking for name in ("hangs-a", "hangs-b"))
    # The two that hang are never asked about at once: the second waits for the first.
    hasty.settle()
    assert time.monotonic() - started > 2 * hasty.limits.seconds_max - 0.1


def test_a_flood_is_cut_off_and_garbage_is_not_understood(world: World) -> None:
    world.tables("floods", "garbles", "ok")
    world.good("ok")
    known = world.look()
    assert known["floods"].error == "answered with more than 4 MiB"
    assert known["garbles"].error is not None
    assert known["garbles"].error.startswith("memwal status (exit code 1): secret hunter2")
    assert "user:pass" not in known["garbles"].error
    assert known["ok"].status is not None


def test_secrets_of_connection_and_configuration_are_taken_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_SECRET", "sesame-sesame")
    world.options = {"aws_secret_access_key": "hunter2-hunter2"}
    world.tables("garbles")
    world.config.write_text(
        world.config.read_text()
        + '\n[tables.garbles.storage_options]\naws_session_token = "${LAKE_SECRET}"\n'
    )
    assert "hunter2" not in str(world.look())
    assert world.order().redactor.clean("sesame-sesame") == "***"
    assert "hunter2" not in repr(world.order())


def test_runs_that_hang_leave_the_status_of_all_and_the_runs_of_the_others(hasty: World) -> None:
    hasty.tables("a", "late-b")
    hasty.good("a", "late-b")
    known = hasty.look()
    assert known["a"].runs
    assert known["late-b"].status is not None
    assert known["late-b"].runs == ()
    assert known["late-b"].runs_error == "no answer within 2 s"


def test_a_table_about_which_nothing_is_said(world: World) -> None:
    world.tables("a", "silent")
    world.good("a")
    known = world.look()
    assert known["silent"].error == "memwal said nothing about this table"
    assert known["a"].error is None


def test_the_last_good_data_stay_when_the_command_goes_away(world: World) -> None:
    world.tables("a")
    world.good("a")
    world.look()
    world.command.unlink()
    world.time.passed = 31
    known = world.look()["a"]
    assert known.error is not None
    assert known.error.startswith("can't start")
    assert known.status is not None
    assert known.status_at == samples.NOW
    assert known.looking is False


def test_a_broken_configuration_is_told_and_the_data_stay(world: World) -> None:
    world.tables("a")
    world.good("a")
    world.look()
    world.config.write_text("[tables.a]\nuri = 's3://lake/a'\nspeed = 3\n")
    world.time.passed = 31
    assert set(world.look()) == {"a"}
    assert "unknown key 'tables.a.speed'" in (world.feed.seen().problem or "")
    world.tables("a", "b")
    world.time.passed = 62
    assert set(world.look()) == {"a", "b"}
    assert world.feed.seen().problem is None


def test_no_configuration_and_no_tables_are_told(world: World) -> None:
    world.look()
    assert "no such configuration file" in (world.feed.seen().problem or "")
    world.config.write_text("[defaults]\n")
    world.time.passed = 31
    world.look()
    missing = world.feed.seen().missing
    assert missing is not None
    assert (missing.file, missing.lines.splitlines()[0]) == (str(world.config), "[tables.orders]")
    assert world.feed.seen().problem is None
    world.tables("--json")
    world.time.passed = 62
    assert world.look() == {}
    assert "tables.--json" in (world.feed.seen().problem or "")
    assert world.asked() == []


def test_a_connection_that_cannot_be_read_is_told(world: World) -> None:
    def refuse() -> JobsEnvironment:
        raise RuntimeError("vault https://me:pass@vault is sealed")

    assert read_order(refuse).problem == (
        "the connection can't be read: RuntimeError: vault https://***@vault is sealed"
    )


def test_a_name_that_leads_elsewhere_is_another_table(world: World) -> None:
    world.tables(a="s3://lake/a")
    world.good("a")
    world.look()
    world.tables(a="s3://lake/other")
    (world.folder / "a.status.json").unlink()
    world.time.passed = 31
    known = world.look()["a"]
    assert (known.status, known.uri) == (None, "s3://lake/other")


def test_a_table_that_leaves_the_configuration_leaves_the_page(world: World) -> None:
    world.tables("a", "b")
    world.good("a", "b")
    world.look()
    world.tables("b")
    world.time.passed = 31
    assert set(world.look()) == {"b"}
    assert world.feed.look("a") is None


def test_tables_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, limits=replace(LIMITS, tables_max=3))
    names = tuple(f"t{n}" for n in range(5))
    world.tables(*names)
    world.good(*names)
    assert set(world.look()) == set(names[:3])
    assert world.feed.seen().tables_left_out == 2
    world.feed.close()


def test_many_tables_take_few_processes_and_two_threads(tmp_path: Path) -> None:
    world = World(tmp_path, limits=replace(LIMITS, batch_tables_max=8, seconds_max=30))
    names = tuple(f"t{n:03}" for n in range(40))
    world.tables(*names)
    world.good(*names)
    most = 0
    world.feed.seen()

    def done() -> bool:
        nonlocal most
        alive = [t for t in threading.enumerate() if t.name == "memwal-page-feed"]
        most = max(most, len(alive))
        return not alive

    wait_for(done)
    assert len(world.asked()) == 5
    assert 1 <= most <= 2
    assert all(look.status and look.runs for look in world.known().values())
    world.feed.close()


def test_asking_for_a_refresh_looks_at_once_and_not_too_often(world: World) -> None:
    world.tables("a")
    world.good("a")
    world.look()
    world.time.passed = 1
    assert world.feed.ask_refresh() == 0
    world.settle()
    assert len(world.asked()) == 2
    world.time.passed = 3
    assert world.feed.ask_refresh() == pytest.approx(3)
    world.time.passed = 6.5
    assert world.feed.ask_refresh("a") == 0
    world.settle()
    assert len(world.asked()) == 3


def test_closing_ends_what_runs(world: World) -> None:
    world.tables("hangs-a")
    world.feed.seen()
    wait_for(lambda: (world.folder / "children.txt").exists())
    started = time.monotonic()
    world.feed.close()
    world.settle()
    assert time.monotonic() - started < world.limits.seconds_max / 2
    calls = len(world.asked())
    world.time.passed = 100
    world.feed.seen()
    world.settle()
    assert len(world.asked()) == calls


def test_the_command_gets_none_of_airflows_secrets(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgres://secret")
    world.tables("a")
    argv, environment = world.order().command("status", ["--json"], ["a"])
    assert argv[1:] == ["status", "--json", "--config", str(world.config), "--", "a"]
    assert not [name for name in environment if name.startswith("AIRFLOW")]
    assert environment["PATH"] == os.environ["PATH"]


def test_the_real_command_on_a_real_table(table_maker: TableMaker, tmp_path: Path) -> None:
    tables = Tables(table_maker, tmp_path / "tables", tmp_path / "memwal.toml")
    table = tables.make("orders", shards=2, generations=5)
    broken = tables.make("broken", generations=1)
    broken.break_shard()
    jobs = JobsEnvironment(command=str(JOBS_BIN / "memwal"), config_file=str(tables.config_file))
    runner = Runner(time.monotonic)
    feed = Feed(lambda: read_order(lambda: jobs), runner, ManualClock().clock(), FeedLimits())
    feed.seen()
    wait_for(lambda: not feed.seen().busy)
    known = feed.look("orders")
    assert known is not None
    assert known.error is None
    assert known.runs_error is None
    assert known.status is not None
    assert [len(shard.pending_generations) for shard in known.status.shards] == [5, 5]
    assert known.status.due
    assert known.status.storage is not None
    assert known.status.storage.base_bytes
    assert {shard.shard_id for shard in known.status.shards} == set(table.shards)
    other = feed.look("broken")
    assert other is not None
    assert other.status is not None or other.unreadable
    output = runner.run(
        [
            str(JOBS_BIN / "memwal"),
            "merge",
            "orders",
            "--json",
            "--config",
            str(tables.config_file),
        ],
        jobs.variables(),
        seconds_max=120,
        stdout_bytes_max=1 << 20,
    )
    assert output.exit_code == 0, output.stderr
    assert feed.ask_refresh() == 0
    wait_for(lambda: not feed.seen().busy)
    merged = feed.look("orders")
    assert merged is not None
    assert [run["job"] for run in merged.runs] == ["merge"]
    assert merged.runs[0]["summary"]["generations"] == 10
    feed.close()
