"""What a watch tells others of its tables: metrics, and the answers to probes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from memwal.clock import SystemClock
from memwal.errors import MemWalError, Usage
from memwal.indexes import covering_indexes
from memwal.jobs.watch.plan import Generation, Lag, TableLook
from memwal.jobs.watch.ports import RoundEnd
from memwal.jobs.watch.request import WatchRequest
from memwal.model import ShardId, TableState
from memwal.ports import Clock
from memwal.report import HELD, failed_report
from memwal.run.metrics.sink import CONTENT_TYPE, Metrics, Stage, count_requests, name_failure
from memwal.run.progress import Progress
from memwal.text import iso_time

WATCH = "watch"
LOOPBACK = "127.0.0.1"

_CLIENT_SECONDS_MAX = 10.0
# Generous, because a failing probe gets the process killed, and a busy machine is no reason.
_TURNS_MISSED_MAX = 5
_SILENT_SECONDS_MIN = 60.0


Marks = Mapping[ShardId, int]
Failures = tuple[int, str | None]
"""How many failures there were in a row, and the reason of the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How far a table had got at a look, and when its unfinished generations were flushed."""

    merged: Marks
    indexed: Marks
    flushed_at_nanos: Mapping[Generation, int]


def find_fresh(
    before: Reached | None, look: TableLook
) -> tuple[list[tuple[Stage, float]], Reached]:
    """The stage and seconds since its flush of each generation that completed a stage since.

    Returns them with the new `Reached`. Each completion is reported once, timed by the commit of
    the version in which a look first finds it, which is no earlier than the completion itself. What
    was complete at the first look is not reported: nobody saw when it happened.
    """
    view, state = look.view, look.view.mem_wal
    names = covering_indexes(view.manifest, state)
    now: dict[Stage, dict[ShardId, int]] = {
        "merged": dict(state.merged),
        "indexed": {shard: state.caught_up_to(shard, names) for shard in state.merged},
    }
    flushed = dict(look.flushed_at_nanos)
    told: list[tuple[Stage, float]] = []
    if before is not None:
        flushed = {**before.flushed_at_nanos, **flushed}
        then: dict[Stage, Marks] = {"merged": before.merged, "indexed": before.indexed}
        for stage, marks in now.items():
            told += [
                (stage, (view.manifest.timestamp_nanos - at) / 1e9)
                for (shard, generation), at in flushed.items()
                if then[stage].get(shard, 0) < generation <= marks.get(shard, 0)
            ]
            for shard, mark in then[stage].items():  # an older version may have been restored
                marks[shard] = max(mark, marks.get(shard, 0))
    return told, Reached(
        merged=now["merged"],
        indexed=now["indexed"],
        flushed_at_nanos=dict(_find_unfinished(look, now["merged"], now["indexed"], flushed)),
    )


def _find_unfinished(
    look: TableLook, merged: Marks, indexed: Marks, flushed: Mapping[Generation, int]
) -> Iterator[tuple[Generation, int]]:
    # A generation that garbage collected had been merged; any other that is gone no longer counts.
    for key, at in flushed.items():
        shard, generation = key
        is_there = key in look.flushed_at_nanos or generation <= merged.get(shard, 0)
        if is_there and generation > indexed.get(shard, 0):
            yield key, at


@dataclass(kw_only=True, slots=True)
class _Table:
    state: TableState = TableState()
    progress: Reached | None = None
    looks: Failures = (0, None)
    rounds: Failures = (0, None)


@dataclass(kw_only=True)
class WatchMetrics:
    """Records what a watch sees, in its own thread, so it has to be quick.

    A table that can't be looked at keeps its last state: ages keep growing, and `looked_at_nanos`
    shows how old they are.
    """

    metrics: Metrics
    clock: Clock
    _tables: dict[str, _Table] = field(default_factory=dict)

    def turn(self, tables: Sequence[str]) -> None:
        """Show those that were not looked at yet as never seen."""
        for name in tables:
            if name not in self._tables:
                self._show(name)

    def looked(self, look: TableLook, lag: Lag) -> None:
        """Record a look that succeeded."""
        self.metrics.add(count_requests(look.requests))
        table, before = self._find(lag.table), self._find(lag.table).state
        fresh, table.progress = find_fresh(table.progress, look)
        for stage, seconds in fresh:
            self.metrics.record_freshness(stage, seconds)
        # A table that makes progress is worked on by whoever holds the lease: watches may share it.
        stays = lag.state.version == before.version
        table.looks, table.state = (0, None), lag.state
        self._show(
            lag.table,
            lease_held_at_nanos=before.lease_held_at_nanos if stays else None,
        )

    def failed(self, table: str, error: MemWalError) -> None:
        """Record a look that failed."""
        found = self._find(table)
        found.looks = (found.looks[0] + 1, type(error).__name__)
        self._show(table)

    def ended(self, end: RoundEnd) -> None:
        """Record the end of a round; a lease that another run holds is no failure."""
        name = end.work.table
        error = end.error or MemWalError("no report")
        report = end.report or failed_report(name, error)
        self.metrics.record_table(WATCH, report, end.requests)
        table = self._find(name)
        if report.outcome == HELD or any(
            job.report.outcome == HELD for job in getattr(report, "jobs", ())
        ):
            since = table.state.lease_held_at_nanos or self.clock.now_nanos()
            self._show(name, lease_held_at_nanos=since)
            return
        reason = name_failure(report)
        table.rounds = (0, None) if reason is None else (table.rounds[0] + 1, reason)
        self._show(name, lease_held_at_nanos=None)

    def forgot(self, table: str) -> None:
        """Forget a table that is no longer watched."""
        self._tables.pop(table, None)
        self.metrics.forget_table(table)

    def _find(self, table: str) -> _Table:
        return self._tables.setdefault(table, _Table())

    def _show(self, table: str, **changes: Any) -> None:
        found = self._find(table)
        failures, reason = found.looks if found.looks[0] else found.rounds
        found.state = replace(found.state, failures=failures, reason=reason, **changes)
        self.metrics.record_state(table, found.state)


class Pulse:
    """The health of a watch: when it last went round."""

    def __init__(self, clock: Clock, every_seconds: float) -> None:
        """`every_seconds` is the longest that a turn of the loop takes when all is well."""
        self._clock = clock
        self._silent_seconds_max = max(_SILENT_SECONDS_MIN, _TURNS_MISSED_MAX * every_seconds)
        self._turned = clock.monotonic_seconds()

    def turn(self) -> None:
        """Note that the loop goes round once more."""
        self._turned = self._clock.monotonic_seconds()

    def what_stopped(self) -> str:
        """Says since when the loop has been stuck; empty while it goes round."""
        silent = self._clock.monotonic_seconds() - self._turned
        if silent <= self._silent_seconds_max:
            return ""
        since = iso_time(self._clock.now_nanos() - int(silent * 10**9))
        return f"looks have stopped: the watch has not gone round since {since}, for {silent:.0f} s"


class _Server(ThreadingMixIn, TCPServer):
    """The standard library's, but that it looks up no host names."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients may disconnect at any time."""


@contextmanager
def serve(
    metrics: Callable[[], bytes], pulse: Pulse, *, host: str | None = None, port: int
) -> Iterator[str]:
    """Serve metrics and health, on loopback without a `host`; yields the URL.

    Port 0 takes a free port. Raises Usage for an address where nothing can be served.
    """

    class Handler(BaseHTTPRequestHandler):
        """One request of one client."""

        server_version, sys_version, timeout = "memwal", "", _CLIENT_SECONDS_MAX

        def do_GET(self) -> None:
            """Answer with a page."""
            kind, body = "text/plain; charset=utf-8", b"/metrics and /healthz are here\n"
            path, status = self.path.partition("?")[0], HTTPStatus.NOT_FOUND
            try:
                if path == "/metrics":
                    status, kind, body = HTTPStatus.OK, CONTENT_TYPE, metrics()
                elif path == "/healthz":
                    wrong = pulse.what_stopped()
                    status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
                    body = f"{wrong or 'ok'}\n".encode()
            except Exception as error:  # its text is left out: it may contain an address
                status, body = HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing."""

    host = host or LOOPBACK
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kind = type("Server", (_Server,), {"address_family": family})
        server: TCPServer = kind(address, Handler)
    except (OSError, OverflowError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise Usage(f"metrics can't be served on port {port} of {host}: {why}") from None
    threading.Thread(target=server.serve_forever, name="memwal-endpoint", daemon=True).start()
    named, actual = server.server_address[:2]
    try:
        yield f"http://{f'[{named!s}]' if ':' in str(named) else named!s}:{actual}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def serve_probes(
    request: WatchRequest, metrics: Metrics, every_seconds: float, progress: Progress
) -> Iterator[Pulse]:
    """Serve metrics and health while the watch runs, if a port is asked for. Raises Usage."""
    pulse = Pulse(SystemClock(), every_seconds)
    if request.metrics_port is None:
        yield pulse
        return
    host, port = request.metrics_host, request.metrics_port
    with serve(metrics.exposition, pulse, host=host, port=port) as url:
        progress.say(f"metrics: {url}/metrics, and /healthz beside it")
        yield pulse
