"""Metrics and health over HTTP: what is answered, to whom, and that nobody holds it up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from memwal.errors import Usage
from memwal.jobs.watch.probes import Endpoint, Pages, Pulse
from memwal.testing.objects import ManualClock

_OTHERS: set[threading.Thread] = set()


class Watched:
    """Stands for a watch: what it would tell."""

    def __init__(self, every_seconds: float = 5.0) -> None:
        self.clock = ManualClock()
        self.shown: Callable[[], bytes] = lambda: b"memwal_pending_generations 1\n"
        self.pulse = Pulse(self.clock, every_seconds)
        self.pages = Pages(metrics=lambda: self.shown(), pulse=self.pulse)

    def told(self, path: str) -> tuple[int, str]:
        status, _, body = self.pages.answer(path)
        return status, body.decode()

    def serve(self, **where: Any) -> Endpoint:
        return Endpoint(self.pages, self.clock, **{"port": 0, **where})


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_health_is_that_the_loop_goes_round(watched: Watched) -> None:
    assert watched.told("/healthz") == (200, "ok\n")
    watched.clock.advance(59)
    assert watched.told("/healthz")[0] == 200
    watched.clock.advance(2)
    status, text = watched.told("/healthz")
    assert status == 503
    assert text.startswith("looks have stopped: the watch has not gone round since 2")
    assert text.endswith(", for 61 s\n")
    watched.pulse.turn([])
    assert watched.told("/healthz")[0] == 200
    seldom = Watched(every_seconds=60)
    for passed, status in ((299, 200), (2, 503)):
        seldom.clock.advance(passed)
        assert seldom.told("/healthz")[0] == status


def test_it_is_ready_once_every_table_was_looked_at(watched: Watched) -> None:
    assert watched.told("/readyz") == (503, "the watch has not gone round yet\n")
    watched.pulse.turn(["orders", "events"])
    watched.pulse.see("events")
    assert watched.told("/readyz") == (503, "not looked at yet: orders\n")
    watched.pulse.see("orders")
    assert watched.told("/readyz") == (200, "ok\n")
    watched.pulse.forget("orders")
    assert watched.told("/readyz") == (503, "not looked at yet: orders\n")
    watched.pulse.turn(["events"])
    assert watched.told("/readyz")[0] == 200
    watched.pulse.turn([f"t{n}" for n in range(1000)])
    assert watched.told("/readyz")[1].endswith(", t19, and 980 more tables\n")


# ---- over HTTP


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Watched, Endpoint]]:
    """One for all tests: each end of one takes a moment."""
    watched = Watched()
    with watched.serve() as endpoint:
        yield watched, endpoint


@pytest.fixture
def endpoint(served: tuple[Watched, Endpoint]) -> Endpoint:
    served[0].pulse.turn([])
    return served[1]


def place(endpoint: Endpoint) -> tuple[str, int]:
    parts = urlsplit(endpoint.url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


def connect(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection(place(endpoint), timeout=10)


def ask(endpoint: Endpoint, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection(*place(endpoint), timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.mark.integration
def test_metrics_are_prometheus_text_and_only_reading_is_answered(endpoint: Endpoint) -> None:
    status, text, headers = ask(endpoint, "/metrics?name[]=x")
    assert (status, text) == (200, "memwal_pending_generations 1\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert headers["Server"].strip() == "memwal"
    status, text, headers = ask(endpoint, "/metrics", "HEAD")
    assert (status, text, headers["Content-Length"]) == (200, "", "29")
    assert ask(endpoint, "/metrics/../healthz")[0] == 404
    for method in ("POST", "BREW"):
        status, text, headers = ask(endpoint, "/metrics", method)
        assert (status, text, headers["Allow"]) == (405, "Method Not Allowed\n", "GET, HEAD")


@pytest.mark.integration
def test_an_error_tells_nothing_of_a_store() -> None:
    def fail() -> bytes:
        raise RuntimeError("s3://lake/orders with AKIAVERYSECRET")

    watched = Watched()
    watched.shown = fail
    with watched.serve() as endpoint:
        assert ask(endpoint, "/metrics")[:2] == (500, "RuntimeError\n")
        assert ask(endpoint, "/healthz")[0] == 200


@pytest.mark.integration
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
    ids=["TLS", "long path", "headers"],
)
def test_what_is_no_request_does_no_harm(
    endpoint: Endpoint, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with connect(endpoint) as client:
        client.sendall(sent)
        try:
            answer = client.recv(4096)
        except ConnectionResetError:
            answer = b""
    assert b"x" * 100 not in answer
    assert ask(endpoint, "/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """What servers of earlier tests left running in this process is no client of ours."""
    _OTHERS.update(threading.enumerate())
    yield
    _OTHERS.clear()


def count_clients() -> int:
    """Threads that answer, by the name that the standard library gives them."""
    new = [thread for thread in threading.enumerate() if thread not in _OTHERS]
    return sum("process_request_thread" in thread.name for thread in new)


@pytest.mark.integration
def test_clients_that_hang_hold_nobody_up(endpoint: Endpoint) -> None:
    hanging = [connect(endpoint) for _ in range(40)]
    try:
        for client in hanging[::2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x")
        assert ask(endpoint, "/healthz")[0] == 200
        assert count_clients() <= 16
        # Those that were there longest made way.
        assert hanging[0].recv(1) == b""
    finally:
        for client in hanging:
            client.close()


@pytest.mark.integration
@pytest.mark.parametrize("sent", [b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_a_client_that_drips_or_does_not_read_is_cut_off(sent: bytes) -> None:
    watched = Watched()
    watched.shown = lambda: b"x" * 50_000_000
    with watched.serve() as endpoint, connect(endpoint) as slow:
        slow.sendall(sent)
        wait_for(lambda: count_clients() == 1)
        watched.clock.advance(11)
        wait_for(lambda: count_clients() == 0)


@pytest.mark.integration
def test_it_ends_although_somebody_hangs_and_its_port_can_be_had_at_once(watched: Watched) -> None:
    endpoint = watched.serve()
    _, port = place(endpoint)
    with pytest.raises(Usage, match=rf"on port {port} of 127.0.0.1: .* in use. --metrics-port 0"):
        watched.serve(port=port)
    with connect(endpoint) as client:
        client.sendall(b"GET")
        wait_for(lambda: count_clients() == 1)
        endpoint.close()
    with pytest.raises(ConnectionRefusedError):
        connect(endpoint)
    wait_for(lambda: count_clients() == 0)
    # Its connections linger; the next watch need not wait for them.
    with watched.serve(port=port) as next_one:
        assert ask(next_one, "/healthz")[0] == 200


@pytest.mark.integration
def test_it_listens_on_loopback_alone_unless_told(watched: Watched) -> None:
    for host, shown in (("", "127.0.0.1"), ("0.0.0.0", "0.0.0.0")):
        with watched.serve(host=host) as endpoint:
            assert endpoint.url.startswith(f"http://{shown}:")
    for host in ("192.0.2.1", "x" * 300):
        with pytest.raises(Usage, match=r"on port 0 of .*: .*\. --metrics-host takes"):
            watched.serve(host=host)
