"""Metrics and health over HTTP: what is answered, to whom, and that nobody holds it up."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from memwal.errors import Usage
from memwal.jobs.watch.metrics import Pulse, serve
from memwal.testing.objects import ManualClock


def make_pulse(every_seconds: float = 5.0) -> tuple[Pulse, ManualClock]:
    clock = ManualClock()
    return Pulse(clock, every_seconds), clock


def shown() -> bytes:
    return b"memwal_pending_generations 1\n"


def test_health_is_that_the_loop_goes_round() -> None:
    pulse, clock = make_pulse()
    clock.advance(59)
    assert pulse.what_stopped() == ""
    clock.advance(2)
    text = pulse.what_stopped()
    assert text.startswith("looks have stopped: the watch has not gone round since 2")
    assert text.endswith(", for 61 s")
    pulse.turn()
    assert pulse.what_stopped() == ""
    seldom, clock = make_pulse(every_seconds=60)
    clock.advance(299)
    assert seldom.what_stopped() == ""
    clock.advance(2)
    assert seldom.what_stopped() != ""


# ---- over HTTP


def ask(url: str, path: str, method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.mark.integration
def test_metrics_are_prometheus_text_and_health_is_a_status(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pulse, clock = make_pulse()
    with serve(shown, pulse, port=0) as url:
        status, text, headers = ask(url, "/metrics?name[]=x")
        assert (status, text) == (200, "memwal_pending_generations 1\n")
        assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert ask(url, "/metrics/../healthz")[0] == 404
        assert ask(url, "/metrics", "POST")[0] == 501
        assert ask(url, "/healthz")[:2] == (200, "ok\n")
        clock.advance(61)
        assert ask(url, "/healthz")[0] == 503
        parts = urlsplit(url)
        hanging = [
            socket.create_connection((str(parts.hostname), int(parts.port or 0))) for _ in range(40)
        ]
        assert ask(url, "/healthz")[0] == 503
    for client in hanging:
        client.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.integration
def test_an_error_tells_nothing_of_a_store() -> None:
    def fail() -> bytes:
        raise RuntimeError("s3://lake/orders with AKIAVERYSECRET")

    with serve(fail, make_pulse()[0], port=0) as url:
        assert ask(url, "/metrics")[:2] == (500, "RuntimeError")


@pytest.mark.integration
def test_it_listens_on_loopback_alone_unless_told_and_its_port_can_be_had_again() -> None:
    pulse, _ = make_pulse()
    metrics: Callable[[], bytes] = shown
    for host, where in (("", "127.0.0.1"), ("0.0.0.0", "0.0.0.0")):
        with serve(metrics, pulse, host=host, port=0) as url:
            assert url.startswith(f"http://{where}:")
            port = urlsplit(url).port or 0
            taken = rf"on port {port} of .*: .* in use"
            with pytest.raises(Usage, match=taken), serve(metrics, pulse, host=host, port=port):
                pass
        with serve(metrics, pulse, host=host, port=port):
            pass
    wrong: Any
    for wrong in ("192.0.2.1", "x" * 300):
        said = "metrics can't be served on port 0 of "
        with pytest.raises(Usage, match=said), serve(metrics, pulse, host=wrong, port=0):
            pass
