"""Metrics and health over HTTP: what is answered, to whom, and that nobody holds it up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any, cast
from urllib.parse import urlsplit

import pytest

from memwal.errors import Usage
from memwal.jobs.watch.probes import Endpoint, Pages, Pulse
from memwal.testing.objects import ManualClock

SECRET = "AKIAVERYSECRET"
_OTHERS: set[threading.Thread] = set()


@dataclass
class Loop:
    """Stands for a watch: what it would tell."""

    clock: ManualClock = field(default_factory=ManualClock)
    metrics: Callable[[], bytes] = lambda: b"memwal_pending_generations 1\n"

    def __post_init__(self) -> None:
        self.pulse = Pulse(self.clock, 5.0)

    def serve(self, **where: Any) -> Endpoint:
        # Tests that share an endpoint change what it shows.
        pages = Pages(metrics=lambda: self.metrics(), pulse=cast(Pulse, _Now(self)))
        return Endpoint(pages, self.clock, **{"port": 0, **where})


@dataclass
class _Now:
    """The pulse that the loop has now."""

    loop: Loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop.pulse, name)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Loop, Endpoint]]:
    """One for all tests: each end of one takes a moment."""
    loop = Loop()
    with loop.serve() as endpoint:
        yield loop, endpoint


@pytest.fixture
def loop(served: tuple[Loop, Endpoint]) -> Loop:
    """As it would be new."""
    loop, _ = served
    loop.__init__(clock=loop.clock)  # type: ignore[misc]
    return loop


@pytest.fixture
def endpoint(served: tuple[Loop, Endpoint], loop: Loop) -> Endpoint:
    return served[1]


def place(endpoint: Endpoint) -> tuple[str, int]:
    parts = urlsplit(endpoint.url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


def ask(endpoint: Endpoint, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection(*place(endpoint), timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_metrics_are_prometheus_text(endpoint: Endpoint) -> None:
    status, text, headers = ask(endpoint, "/metrics")

    assert (status, text) == (200, "memwal_pending_generations 1\n")
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert headers["Server"].strip() == "memwal"
    assert ask(endpoint, "/metrics?name[]=x")[0] == 200


def test_a_head_has_no_text(endpoint: Endpoint) -> None:
    status, text, headers = ask(endpoint, "/metrics", "HEAD")
    assert (status, text, headers["Content-Length"]) == (200, "", "29")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metrics/../healthz", "/debug"])
def test_nothing_else_is_there(endpoint: Endpoint, path: str) -> None:
    assert ask(endpoint, path)[0] == 404
    assert ask(endpoint, path, "HEAD")[:2] == (404, "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_only_reading_is_answered(endpoint: Endpoint, method: str) -> None:
    status, text, headers = ask(endpoint, "/metrics", method)
    assert (status, text, headers["Allow"]) == (405, "Method Not Allowed\n", "GET, HEAD")


def test_health_is_that_the_loop_goes_round(endpoint: Endpoint, loop: Loop) -> None:
    assert ask(endpoint, "/healthz")[:2] == (200, "ok\n")
    loop.clock.advance(59)
    assert ask(endpoint, "/healthz")[0] == 200
    loop.clock.advance(2)

    status, text, _ = ask(endpoint, "/healthz")

    assert status == 503
    assert text.startswith("looks have stopped: the watch has not gone round since 2")
    assert text.endswith(", for 61 s\n")
    loop.pulse.turn([])
    assert ask(endpoint, "/healthz")[0] == 200


def test_a_loop_that_seldom_goes_round_is_given_longer(endpoint: Endpoint, loop: Loop) -> None:
    loop.pulse = Pulse(loop.clock, 60)
    loop.clock.advance(299)
    assert ask(endpoint, "/healthz")[0] == 200
    loop.clock.advance(2)
    assert ask(endpoint, "/healthz")[0] == 503


def test_it_is_ready_once_every_table_was_looked_at(endpoint: Endpoint, loop: Loop) -> None:
    assert ask(endpoint, "/readyz")[:2] == (503, "the watch has not gone round yet\n")
    loop.pulse.turn(["orders", "events"])
    loop.pulse.see("events")
    assert ask(endpoint, "/readyz")[:2] == (503, "not looked at yet: orders\n")
    loop.pulse.see("orders")
    assert ask(endpoint, "/readyz")[:2] == (200, "ok\n")
    loop.pulse.forget("orders")
    assert ask(endpoint, "/readyz")[:2] == (503, "not looked at yet: orders\n")
    loop.pulse.turn(["events"])
    assert ask(endpoint, "/readyz")[0] == 200


def test_of_many_tables_it_names_a_few(endpoint: Endpoint, loop: Loop) -> None:
    loop.pulse.turn([f"t{n}" for n in range(1000)])
    assert ask(endpoint, "/readyz")[1].endswith(", t19, and 980 more tables\n")


def test_an_error_tells_nothing_of_a_store(endpoint: Endpoint, loop: Loop) -> None:
    def fail() -> bytes:
        raise RuntimeError(f"s3://lake/orders with {SECRET}")

    loop.metrics = fail
    assert ask(endpoint, "/metrics")[:2] == (500, "RuntimeError\n")
    assert ask(endpoint, "/healthz")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/9.9.9\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"\r\n\r\n",
    ],
    ids=["TLS", "long path", "version", "headers", "empty"],
)
def test_what_is_no_request_does_no_harm(
    endpoint: Endpoint, sent: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection(place(endpoint), timeout=10) as client:
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


def clients_of(endpoint: Endpoint) -> int:
    """Threads that answer, by the name that the standard library gives them."""
    new = [thread for thread in threading.enumerate() if thread not in _OTHERS]
    return sum("process_request_thread" in thread.name for thread in new)


def test_clients_that_hang_hold_nobody_up(endpoint: Endpoint) -> None:
    hanging = [socket.create_connection(place(endpoint), timeout=10) for _ in range(40)]
    try:
        for client in hanging[::2]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x")
        started = time.monotonic()

        assert ask(endpoint, "/healthz")[0] == 200

        assert time.monotonic() - started < 2
        assert clients_of(endpoint) <= 16
        # Those that were there longest made way.
        assert hanging[0].recv(1) == b""
    finally:
        for client in hanging:
            client.close()


def test_a_client_that_takes_too_long_is_cut_off(endpoint: Endpoint, loop: Loop) -> None:
    with socket.create_connection(place(endpoint), timeout=10) as drips:
        drips.sendall(b"GET /met")
        wait_for(lambda: clients_of(endpoint) == 1)
        loop.clock.advance(11)
        assert drips.recv(1) == b""
    wait_for(lambda: clients_of(endpoint) == 0)


def test_a_client_that_does_not_read_is_cut_off(endpoint: Endpoint, loop: Loop) -> None:
    loop.metrics = lambda: b"x" * 50_000_000
    with socket.create_connection(place(endpoint), timeout=10) as deaf:
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        wait_for(lambda: clients_of(endpoint) == 1)
        loop.clock.advance(11)
        wait_for(lambda: clients_of(endpoint) == 0)


def test_it_ends_although_somebody_hangs(loop: Loop) -> None:
    endpoint = loop.serve()
    with socket.create_connection(place(endpoint), timeout=10) as client:
        client.sendall(b"GET")
        wait_for(lambda: clients_of(endpoint) == 1)
        started = time.monotonic()
        endpoint.close()
        assert time.monotonic() - started < 2
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place(endpoint), timeout=1)
    wait_for(lambda: clients_of(endpoint) == 0)


def test_it_listens_on_loopback_alone_unless_told(endpoint: Endpoint, loop: Loop) -> None:
    assert endpoint.url.startswith("http://127.0.0.1:")
    with loop.serve(host="") as other:
        assert other.url.startswith("http://127.0.0.1:")
    with loop.serve(host="0.0.0.0") as other:
        assert other.url.startswith("http://0.0.0.0:")


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_an_address_of_the_longer_kind_will_do(loop: Loop) -> None:
    try:
        endpoint = loop.serve(host="::1")
    except Usage as error:
        pytest.skip(str(error))
    with endpoint:
        assert endpoint.url.startswith("http://[::1]:")
        assert ask(endpoint, "/healthz")[0] == 200


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "x" * 300, "a.invalid"])
def test_an_address_of_somebody_else_is_refused(loop: Loop, host: str) -> None:
    with pytest.raises(Usage, match=r"on port 0 of .*: .*\. --metrics-host takes"):
        loop.serve(host=host)


def test_a_port_that_is_taken_is_refused_and_then_had(loop: Loop) -> None:
    endpoint = loop.serve()
    _, port = place(endpoint)
    with pytest.raises(Usage, match=rf"on port {port} of 127.0.0.1: .* in use. --metrics-port 0"):
        loop.serve(port=port)
    ask(endpoint, "/healthz")
    endpoint.close()
    # Its connections linger; the next watch need not wait for them.
    with loop.serve(port=port) as next_one:
        assert ask(next_one, "/healthz")[0] == 200
