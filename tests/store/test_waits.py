"""A store that keeps a request waiting is told of: after 5 s, and every 30 s."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from memwal.errors import StoreUnavailable
from memwal.run import logs
from memwal.store.base import StoreLimits
from memwal.store.s3 import S3Objects
from memwal.store.waits import Waits
from memwal.testing import ManualClock

STORE = "http://store:9000/bucket"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def waits(clock: ManualClock, told: list[str]) -> Waits:
    return Waits(clock, told.append)


def test_a_quick_request_is_nothing_to_tell_of(
    waits: Waits, clock: ManualClock, told: list[str]
) -> None:
    with waits.watch(STORE, "get a"):
        clock.advance(4.9)
        assert waits.look()
    clock.advance(60)
    assert not waits.look()
    assert told == []


def test_a_slow_one_is_told_of_now_and_then(
    waits: Waits, clock: ManualClock, told: list[str]
) -> None:
    with waits.watch(f"{STORE}?sig=secret", "get a", 60.0) as wait:
        clock.advance(5)
        waits.look()
        wait.attempts, wait.fault = 3, "HTTP 503 SlowDown: later"
        for _ in range(31):
            clock.advance(1)
            waits.look()
    assert told == [
        f"waiting for {STORE}?*** for 5 s: get a, given up after 60 s",
        f"waiting for {STORE}?*** for 35 s: get a, attempt 3, given up after 60 s "
        "(HTTP 503 SlowDown: later)",
    ]


def test_many_requests_to_one_store_are_one_line(
    waits: Waits, clock: ManualClock, told: list[str]
) -> None:
    with waits.watch(STORE, "get a"):
        clock.advance(3)
        with waits.watch(STORE, "get b"), waits.watch("s3://other/t", "list"):
            clock.advance(6)
            waits.look()
    assert [line.partition(": ")[2] for line in sorted(told)] == ["get a", "list"]


def test_the_line_is_about_the_table_that_waits(clock: ManualClock) -> None:
    lines: list[str] = []
    log = logs.JsonLog(lines.append)
    waits = Waits(clock, lambda text: log.say("warning", text))
    with logs.about(table="orders", shard="s1"), waits.watch(STORE, "get a"):
        clock.advance(6)
        with logs.about(table="another"):
            waits.look()
    (line,) = lines
    assert '"table": "orders", "shard": "s1"' in line


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        yield taken.getsockname()[1]


def test_a_refused_connection_is_told_of_at_once(
    closed_port: int, caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    options = {"aws_endpoint": f"http://127.0.0.1:{closed_port}", "allow_http": "true"}
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    objects = S3Objects(
        "s3://bucket/t", {**options, **keys}, clock, StoreLimits(retry_attempts_max=3)
    )
    with pytest.raises(StoreUnavailable, match="gave up after 3 attempts: connection refused"):
        objects.get("a")
    (record,) = caplog.records
    assert "get s3://bucket/t/a, given up after 60 s (connection refused)" in record.getMessage()
