"""A store that keeps a request waiting is told of: after 5 s, and every 30 s."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ReadTimeoutError

from memwal.config import load_config, resolve_table
from memwal.errors import StoreUnavailable, Usage
from memwal.run.process import logs
from memwal.store.objects.base import StoreLimits, Waits
from memwal.store.objects.opening import open_objects
from memwal.store.objects.s3 import S3Objects
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


KEYS = {"allow_http": "true", "aws_access_key_id": "a", "aws_secret_access_key": "b"}


@pytest.fixture
def refused(closed_port: int, clock: ManualClock) -> S3Objects:
    options = {"aws_endpoint": f"http://127.0.0.1:{closed_port}", **KEYS}
    return S3Objects("s3://bucket/t", options, clock, StoreLimits(retry_attempts_max=3))


@pytest.mark.integration
def test_a_store_that_never_answered_is_not_waited_for(
    refused: S3Objects, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StoreUnavailable, match="gave up after 1 attempt: connection refused"):
        refused.get("a")
    assert refused.counts.retries == 0
    assert not caplog.records  # the error says it


class _Empty(BaseHTTPRequestHandler):
    """A store that takes what is put."""

    def do_PUT(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.mark.integration
def test_one_that_did_is_waited_for_and_told_of_at_once(
    caplog: pytest.LogCaptureFixture, clock: ManualClock
) -> None:
    with HTTPServer(("127.0.0.1", 0), _Empty) as server:
        options = {"aws_endpoint": f"http://127.0.0.1:{server.server_port}", **KEYS}
        objects = S3Objects("s3://bucket/t", options, clock, StoreLimits(retry_attempts_max=3))
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        objects.put("a", b"")
        thread.join()
    with pytest.raises(StoreUnavailable, match="gave up after 3 attempts: connection refused"):
        objects.get("a")
    (record,) = caplog.records
    assert "get s3://bucket/t/a, given up after 60 s (connection refused)" in record.getMessage()


@pytest.mark.parametrize("setting", ["file", "environment", "option"])
def test_for_how_long_a_request_is_tried_is_a_setting(
    setting: str, tmp_path: Path, clock: ManualClock
) -> None:
    """Lance is told by the same option."""
    file = tmp_path / "memwal.toml"
    file.write_text('[defaults]\nstore_seconds_max = "5m"\n' if setting == "file" else "")
    environment = {"MEMWAL_STORE_SECONDS_MAX": "300"} if setting == "environment" else {}
    given = {"client_retry_timeout": "300"} if setting == "option" else {}
    table = resolve_table("s3://bucket/t", load_config(str(file)), given, environment)
    assert table.storage_options == {"client_retry_timeout": "300"}
    sent = 0

    def busy(**arguments: object) -> None:
        nonlocal sent
        sent += 1
        raise ReadTimeoutError(endpoint_url="http://store")

    objects = open_objects(table.uri, {**table.storage_options, **KEYS}, clock)
    assert isinstance(objects, S3Objects)
    objects._client = SimpleNamespace(
        put_object=busy, meta=SimpleNamespace(endpoint_url="http://store")
    )
    began = clock.monotonic_seconds()
    with pytest.raises(StoreUnavailable, match="gave up"):
        objects.put("a", b"")
    assert 250 < clock.monotonic_seconds() - began <= 300
    assert sent > 30


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", ""])
def test_an_option_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Usage, match="client_retry_timeout: expected seconds"):
        open_objects("s3://bucket/t", {"client_retry_timeout": text, **KEYS}, ManualClock())
