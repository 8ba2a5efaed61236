"""All requests to a store have one pace: a bound that is asked for, and what the store can take."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from memwal.clock import SystemClock
from memwal.config import load_config, resolve_table
from memwal.errors import StoreUnavailable, Usage
from memwal.ports import Objects
from memwal.run.units import TableUnit, split_requests
from memwal.store.objects import remote
from memwal.store.objects.base import Waits
from memwal.store.objects.faults import fault_of
from memwal.store.objects.opening import open_objects
from memwal.store.objects.pace import Pace, pace_lance, split_rate
from memwal.testing import ManualClock
from tests.support.scripted_server import SECRETS, SLOW_DOWN, Reply, ScriptedServer
from tests.support.scripted_server import scripted as scripted
from tests.support.scripted_server import server as server

RATE = "requests_per_second_max"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pace(clock: ManualClock) -> Pace:
    return Pace(clock)


def send(pace: Pace, clock: ManualClock, count: int, rate_max: float | None = None) -> float:
    """How long so many requests take, one after another."""
    began = clock.monotonic_seconds()
    for _ in range(count):
        pace.take_turn("t", rate_max, math.inf, lambda why: None)
    return clock.monotonic_seconds() - began


def send_for_a_second(pace: Pace, clock: ManualClock, count: int) -> None:
    for _ in range(count):
        send(pace, clock, 1)
        clock.advance(1 / count)


def test_without_a_bound_nothing_waits(pace: Pace, clock: ManualClock) -> None:
    assert send(pace, clock, 1000) == 0
    assert clock.slept_seconds == []


@pytest.mark.parametrize("rate", [0.5, 7.0, 400.0])
def test_a_bound_is_held(pace: Pace, clock: ManualClock, rate: float) -> None:
    assert send(pace, clock, 101, rate) == pytest.approx(100 / rate, rel=0.1)
    clock.advance(60)  # what was not used is not saved up
    assert send(pace, clock, 101, rate) == pytest.approx(100 / rate, rel=0.1)


def test_a_refusal_halves_the_rate_and_it_comes_back_bit_by_bit(
    pace: Pace, clock: ManualClock
) -> None:
    send_for_a_second(pace, clock, 100)
    for _ in range(5):  # those on the way were sent before it was known
        pace.slow_down()
    assert send(pace, clock, 51) == pytest.approx(1, rel=0.1)
    clock.advance(9)
    assert send(pace, clock, 101) == pytest.approx(1, rel=0.1)
    clock.advance(60)
    assert send(pace, clock, 1000) == 0


def test_refusals_that_go_on_slow_down_further_and_not_for_good(
    pace: Pace, clock: ManualClock
) -> None:
    send_for_a_second(pace, clock, 100)
    for _ in range(10):
        pace.slow_down()
        send(pace, clock, 1)
        clock.advance(1.1)
    assert send(pace, clock, 6) == pytest.approx(1, abs=0.3)


def test_a_bound_stays_below_what_the_store_can_take(pace: Pace, clock: ManualClock) -> None:
    send_for_a_second(pace, clock, 100)
    pace.slow_down()
    assert send(pace, clock, 11, 10.0) == pytest.approx(1, rel=0.1)


def test_a_turn_that_does_not_come_in_time_says_why(pace: Pace, clock: ManualClock) -> None:
    said: list[str] = []
    send(pace, clock, 1, 0.1)
    with pytest.raises(TimeoutError, match=f"1 wait for their turn, 0.1 a second: {RATE}"):
        pace.take_turn("t", 0.1, clock.monotonic_seconds() + 5, said.append)
    assert clock.monotonic_seconds() == 5
    assert set(said) == {f"1 wait for their turn, 0.1 a second: {RATE}"}
    assert send(pace, clock, 1, 0.1) == pytest.approx(5, abs=0.11)  # nobody waits for who gave up
    pace.slow_down()
    with pytest.raises(TimeoutError, match="5 a second: it asked to slow down"):
        pace.take_turn("t", None, clock.monotonic_seconds(), said.append)


@pytest.mark.integration
def test_a_table_with_many_threads_takes_no_other_s_turn() -> None:
    pace, order, over = Pace(SystemClock()), list[str](), threading.Event()

    def ask(table: str) -> None:
        pace.take_turn(table, 100.0, math.inf, lambda why: None)
        order.append(table)

    def ask_on() -> None:
        while not over.is_set():
            ask("greedy")

    threads = [threading.Thread(target=ask_on) for _ in range(16)]
    for thread in threads:
        thread.start()
    while len(order) < 20:
        time.sleep(0.01)
    began = len(order)
    for _ in range(10):
        ask("small")
    turns = order[began:].count("greedy")
    over.set()
    for thread in threads:
        thread.join()
    assert turns < 60  # as they come, it would be 160


@pytest.mark.integration
def test_a_store_that_is_told_of_says_what_waits(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    told: list[str] = []
    waits = Waits(clock, told.append)
    monkeypatch.setattr(remote, "WAITS", waits)
    objects = open_table(server, clock, "t", client_retry_timeout="1", **{RATE: "1"})
    server.script.append(Reply())
    objects.get("a")
    with pytest.raises(StoreUnavailable, match="given up after 1 s in a queue: 1 wait for"):
        objects.get("a")
    assert objects.counts.get == 1

    def sleep(seconds: float) -> None:
        clock.advance(6)
        waits.look()

    monkeypatch.setattr(clock, "sleep", sleep)
    patient = open_table(server, clock, "t", **{RATE: "1"})
    assert patient.get("a") == patient.get("a") == b""
    assert told and told[-1].endswith(f"(1 wait for their turn, 0.5 a second: {RATE})")


def open_table(server: ScriptedServer, clock: ManualClock, name: str, **options: str) -> Objects:
    given = {"aws_endpoint": server.endpoint, "allow_http": "true", **SECRETS, **options}
    return open_objects(f"s3://bucket/{name}", given, clock)


def get(objects: Objects, clock: ManualClock, times: int) -> float:
    """How long it takes."""
    began = clock.monotonic_seconds()
    for _ in range(times):
        objects.get("a")
    return clock.monotonic_seconds() - began


@pytest.mark.integration
def test_a_slow_down_slows_the_others_too(server: ScriptedServer, clock: ManualClock) -> None:
    busy, other = open_table(server, clock, "busy"), open_table(server, clock, "other")
    server.script += [*[Reply()] * 99, SLOW_DOWN, Reply()]
    assert get(other, clock, 99) == 0
    busy.get("a")
    assert get(other, clock, 51) == pytest.approx(1, abs=0.2)


@pytest.mark.integration
def test_a_bound_is_for_the_store(server: ScriptedServer, clock: ManualClock) -> None:
    server.script.append(Reply())
    for name in ("one", "two"):  # half of it is for Lance
        assert get(open_table(server, clock, name, **{RATE: "10"}), clock, 6) > 0.8


def test_what_asks_for_fewer_requests() -> None:
    for status in (503, 429, 500, 404):
        text = f"Server returned non-2xx status code: {status}: "
        assert fault_of(GenericError(text)).throttles == (status in (503, 429))


@pytest.mark.parametrize("setting", ["file", "environment", "option"])
def test_it_is_a_setting(setting: str, tmp_path: Path) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(f"[defaults]\n{RATE} = 120\n" if setting == "file" else "")
    environment = {"MEMWAL_REQUESTS_PER_SECOND_MAX": "120"} if setting == "environment" else {}
    given = {RATE: "120"} if setting == "option" else {}
    table = resolve_table("s3://bucket/t", load_config(str(file)), given, environment)
    assert table.storage_options == {RATE: "120"}
    shared = split_rate(table.storage_options, 2)
    assert float(shared[RATE]) == 60
    lance = pace_lance(shared)
    assert float(lance["lance_aimd_max_rate"]) == float(lance["lance_aimd_initial_rate"]) == 10


def test_a_backup_s_place_is_asked_as_seldom(tmp_path: Path) -> None:
    file = tmp_path / "memwal.toml"
    file.write_text(
        f'[tables.t]\nuri = "s3://bucket/t"\n{RATE} = 120\n'
        '[tables.t.backup]\nuri = "s3://other/t"\nstorage_options = { aws_region = "eu-1" }\n'
    )
    table = resolve_table("t", load_config(str(file)), {}, {})
    assert table.backup is not None
    assert table.backup.storage_options == {RATE: "120", "aws_region": "eu-1"}


def test_tasks_share_it() -> None:
    unit = TableUnit(uri="s3://bucket/t", storage_options={RATE: "120"})
    assert float(split_requests(unit, 3).storage_options[RATE]) == 40


def test_what_is_not_set_is_left_to_lance() -> None:
    given = {"lance_aimd_max_rate": "50"}
    assert pace_lance(given) == split_rate(given, 3) == given


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1e9"])
def test_an_option_that_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(Usage, match=f"{RATE}: expected requests a second"):
        open_objects("s3://bucket/t", {RATE: text}, ManualClock())
