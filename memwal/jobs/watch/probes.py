"""Metrics and health of a watch over HTTP, for Prometheus and for probes.

The standard library's server is enough for a handful of clients that ask every few seconds. What it
lacks is added: a bound on the clients and on the time each may take, so that none holds up another.
It looks up no host names.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from memwal.clock import SystemClock
from memwal.errors import MemWalError, Usage
from memwal.jobs.watch.plan import Lag, Look
from memwal.jobs.watch.ports import Observer, RoundEnd
from memwal.ports import Clock
from memwal.run.metrics.sink import CONTENT_TYPE, Metrics
from memwal.run.progress import Progress
from memwal.text import iso_time, name_some

LOOPBACK = "127.0.0.1"

_ANOTHER_PORT = "--metrics-port 0 takes one that is free, and says which"
_ANOTHER_HOST = "--metrics-host takes an address of this host; 0.0.0.0 is all of them"
_PLAIN = "text/plain; charset=utf-8"
_CLIENTS_MAX = 16
_CLIENT_SECONDS_MAX = 10.0
_ROOM_SECONDS_MAX = 0.5
_NAMED_MAX = 20
# Generous, because a failing probe gets the process killed, and a busy machine is no reason.
_TURNS_MISSED_MAX = 5
_SILENT_SECONDS_MIN = 60.0


class Pulse:
    """The health of a loop: when it last went round, its tables, and which it has looked at."""

    def __init__(self, clock: Clock, every_seconds: float) -> None:
        """`every_seconds` is the longest that a turn of the loop takes when all is well."""
        self._clock = clock
        self._silent_seconds_max = max(_SILENT_SECONDS_MIN, _TURNS_MISSED_MAX * every_seconds)
        self._turned = clock.monotonic_seconds()
        self._tables: Sequence[str] | None = None
        self._seen: set[str] = set()

    def turn(self, tables: Sequence[str], waiting: Sequence[str] = ()) -> None:
        """Note that the loop goes round once more, over these tables."""
        self._turned = self._clock.monotonic_seconds()
        self._tables = tables

    def see(self, table: str) -> None:
        """Note that a look at the table succeeded."""
        self._seen.add(table)

    def forget(self, table: str) -> None:
        """Forget a table that left the loop, or whose name now means another table."""
        self._seen.discard(table)

    def what_stopped(self) -> str:
        """Says since when the loop has been stuck; empty while it goes round."""
        silent = self._clock.monotonic_seconds() - self._turned
        if silent <= self._silent_seconds_max:
            return ""
        since = iso_time(self._clock.now_nanos() - int(silent * 10**9))
        return f"looks have stopped: the watch has not gone round since {since}, for {silent:.0f} s"

    def what_is_missing(self) -> str:
        """Says which tables no look has succeeded on yet; empty when there are none."""
        if self._tables is None:
            return "the watch has not gone round yet"
        unseen = [table for table in self._tables if table not in self._seen]
        names = name_some(unseen, _NAMED_MAX, "tables")
        return f"not looked at yet: {', '.join(names)}" if unseen else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pages:
    """What the endpoint answers. Called from several threads while the loop runs."""

    metrics: Callable[[], bytes]
    pulse: Pulse

    def answer(self, path: str) -> tuple[HTTPStatus, str, bytes]:
        """The status, the content type and the body for a path."""
        match path.partition("?")[0]:
            case "/metrics":
                return HTTPStatus.OK, CONTENT_TYPE, self.metrics()
            case "/healthz":
                return _plain(self.pulse.what_stopped())
            case "/readyz":
                return _plain(self.pulse.what_is_missing())
        return HTTPStatus.NOT_FOUND, _PLAIN, b"/metrics, /healthz and /readyz are here\n"


def _plain(trouble: str) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK
    return status, _PLAIN, f"{trouble or 'ok'}\n".encode()


class Endpoint:
    """Serves pages until it is closed. Raises Usage when it can't listen on the address."""

    def __init__(self, pages: Pages, clock: Clock, *, host: str | None = None, port: int) -> None:
        """Listen at once, on loopback without a `host`. Port 0 takes a free port."""
        self._server = _listen(pages, clock, host, port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="memwal-endpoint", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL it listens on, with the actual port."""
        host, port = (str(part) for part in self._server.server_address[:2])
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def close(self) -> None:
        """Stop listening, and cut off clients that are being answered."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _listen(pages: Pages, clock: Clock, host: str | None, port: int) -> _Server:
    host = host or LOOPBACK
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return _Server(pages, clock, family, address)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        is_the_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
        advice = _ANOTHER_PORT if is_the_port else _ANOTHER_HOST
        raise Usage(f"metrics can't be served on port {port} of {host}: {why}. {advice}") from None


class _Server(ThreadingMixIn, TCPServer):
    """One thread per client, up to a bound; then the oldest client is cut off for a new one."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self, pages: Pages, clock: Clock, family: socket.AddressFamily, address: Any
    ) -> None:
        self.address_family = family
        self._clock = clock
        self._room = threading.Condition()
        self._since: dict[Any, float] = {}
        super().__init__(address, partial(_Handler, pages))

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._room:
            if len(self._since) >= _CLIENTS_MAX:
                _cut_off(next(iter(self._since)))
                self._room.wait_for(lambda: len(self._since) < _CLIENTS_MAX, _ROOM_SECONDS_MAX)
            has_room = len(self._since) < _CLIENTS_MAX
            if has_room:
                self._since[request] = self._clock.monotonic_seconds()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._room:
            self._since.pop(request, None)
            self._room.notify()

    def service_actions(self) -> None:
        """Cut off every client that takes too long, for whatever reason. Called twice a second."""
        now = self._clock.monotonic_seconds()
        with self._room:
            for request, since in self._since.items():
                if now - since > _CLIENT_SECONDS_MAX:
                    _cut_off(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients may disconnect at any time."""

    def server_close(self) -> None:
        super().server_close()
        with self._room:
            for request in self._since:
                _cut_off(request)


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    """One request of one client."""

    server_version = "memwal"
    sys_version = ""
    timeout = _CLIENT_SECONDS_MAX

    def __init__(self, pages: Pages, *arguments: Any) -> None:
        self._pages = pages
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer with a page."""
        try:
            page = self._pages.answer(self.path)
        except Exception as error:
            # The error's text is left out: it may contain an address.
            told = f"{type(error).__name__}\n"
            page = HTTPStatus.INTERNAL_SERVER_ERROR, _PLAIN, told.encode()
        self._send(*page)

    def do_HEAD(self) -> None:
        """Answer as GET does, without the body."""
        self.do_GET()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send only the status' phrase; the library's message would repeat what the client sent."""
        wrong_method = code == HTTPStatus.NOT_IMPLEMENTED
        status = HTTPStatus.METHOD_NOT_ALLOWED if wrong_method else HTTPStatus(code)
        self._send(status, _PLAIN, f"{status.phrase}\n".encode())

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: requests are not logged."""


@dataclass(frozen=True, slots=True)
class Probes:
    """The Observer port: passes what the watch sees on to a pulse."""

    pulse: Pulse

    def turn(self, tables: Sequence[str], waiting: Sequence[str] = ()) -> None:
        """Tell the pulse that the watch's loop is running, and for which tables."""
        self.pulse.turn(tables)

    def looked(self, look: Look, lag: Lag) -> None:
        """Tell the pulse that a table was looked at."""
        self.pulse.see(lag.table)

    def failed(self, table: str, error: MemWalError) -> None:
        """Do nothing: a table that was never looked at stays missing."""

    def ended(self, end: RoundEnd) -> None:
        """Do nothing: probes don't depend on rounds."""

    def forgot(self, table: str) -> None:
        """Forget the table; if it comes back, it has to be looked at again."""
        self.pulse.forget(table)


@contextmanager
def serve_probes(
    metrics: Metrics,
    *,
    host: str | None,
    port: int | None,
    every_seconds: float,
    progress: Progress,
) -> Iterator[list[Observer]]:
    """Serve metrics and health while the watch runs, if there is a port.

    Yields the observers that the watch has to have for it. Raises Usage as an Endpoint does.
    """
    if port is None:
        yield []
        return
    clock = SystemClock()
    pulse = Pulse(clock, every_seconds)
    with Endpoint(Pages(metrics=metrics.exposition, pulse=pulse), clock, host=host, port=port) as e:
        progress.say(f"metrics: {e.url}/metrics, and /healthz and /readyz beside it")
        yield [Probes(pulse)]
