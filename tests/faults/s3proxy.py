"""An HTTP proxy before an S3 server that does to requests what networks and stores do to them.

Clients sign for the proxy's address; moto checks no signatures. What happens to a request is
decided by one seeded die, so a seed fixes the faults, though threads fix their order.
"""

from __future__ import annotations

import http.client
import os
import random
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_S3 = f"{{{_NAMESPACE}}}"
_HOP_BY_HOP = {"connection", "expect", "keep-alive", "transfer-encoding", "content-length"}
_LATENCY_SECONDS_MAX = 0.05
_ERRORS = {
    "internal": (500, "InternalError"),
    "unavailable": (503, "ServiceUnavailable"),
    "slow_down": (503, "SlowDown"),
}


@dataclass(frozen=True, kw_only=True)
class Toxics:
    """Chances of one request, each between 0 and 1, and their measures."""

    latency: float = 0.0
    reset_before: float = 0.0
    reset_after: float = 0.0
    error_before: float = 0.0
    error_after: float = 0.0
    burst: float = 0.0
    burst_seconds: float = 0.3
    truncate: float = 0.0
    wrong_etag: float = 0.0
    lag_seconds: float = 0.0
    """Listings leave out what was put, and show what was deleted, less than this ago."""
    clock_seconds: float = 0.0
    """How far ahead replies tell the time."""
    forbidden: Callable[[str, str], bool] = field(default=lambda method, key: False, repr=False)
    """What is answered with AccessDenied, by method and key (with the bucket; or its prefix)."""


NONE = Toxics()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, read whole."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def key(self) -> str:
        """Bucket and key."""
        return self.path.removeprefix("/")

    @property
    def query(self) -> dict[str, str]:
        query = urllib.parse.parse_qs(self.target.partition("?")[2], keep_blank_values=True)
        return {name: values[0] for name, values in query.items()}

    @property
    def place(self) -> str:
        """The key, or what a listing is of."""
        prefix = self.query.get("prefix") if self.is_listing else None
        return self.key if prefix is None else f"{self.key.rstrip('/')}/{prefix}"

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and "list-type" in self.query

    @property
    def deleted_keys(self) -> list[str]:
        """Keys that it deletes."""
        if self.method == "DELETE":
            return [self.key]
        if self.method == "POST" and "delete" in self.query:
            bucket = self.path.strip("/")
            keys = [e.text for e in ElementTree.fromstring(self.body).iter() if _tag(e) == "Key"]
            return [f"{bucket}/{key}" for key in keys]
        return []


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the server said."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(kw_only=True)
class _Stored:
    put_at: float
    size_bytes: int
    deleted_at: float | None = None


@dataclass(kw_only=True)
class _Lag:
    """What listings are to hide and to show again. Knows only what came through the proxy."""

    stored: dict[str, _Stored] = field(default_factory=dict)
    folders: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, request: Request, reply: Reply) -> None:
        if not reply.is_success:
            return
        now = time.monotonic()
        with self.lock:
            if request.method == "PUT" and not request.query:
                known = self.stored.get(request.key)
                if known is None or known.deleted_at is not None:
                    self.stored[request.key] = _Stored(put_at=now, size_bytes=len(request.body))
                parts = request.key.split("/")
                for depth in range(2, len(parts)):
                    self.folders.setdefault("/".join(parts[:depth]) + "/", now)
            for key in request.deleted_keys:
                if key in self.stored:
                    self.stored[key].deleted_at = now

    def age(self, seconds: float) -> None:
        """Make everything noted so far older."""
        with self.lock:
            for stored in self.stored.values():
                stored.put_at -= seconds
                if stored.deleted_at is not None:
                    stored.deleted_at -= seconds
            self.folders = {name: at - seconds for name, at in self.folders.items()}

    def apply(self, request: Request, body: bytes, lag_seconds: float) -> tuple[bytes, int]:
        """The listing as it was `lag_seconds` ago, and how many entries that changed."""
        root = ElementTree.fromstring(body)
        bucket = request.path.strip("/")
        since = time.monotonic() - lag_seconds
        with self.lock:
            changed = self._hide(root, bucket, since)
            query = request.query
            if not {"delimiter", "continuation-token", "start-after", "max-keys"} & query.keys():
                changed += self._show(root, bucket, query.get("prefix", ""), since)
        if not changed:
            return body, 0
        ElementTree.register_namespace("", _NAMESPACE)
        return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True), changed

    def _hide(self, root: ElementTree.Element, bucket: str, since: float) -> int:
        hidden = []
        for entry in root.findall(f"{_S3}Contents"):
            known = self.stored.get(f"{bucket}/{entry.findtext(f'{_S3}Key')}")
            if known is not None and known.put_at > since:
                hidden.append(entry)
        for entry in root.findall(f"{_S3}CommonPrefixes"):
            if self.folders.get(f"{bucket}/{entry.findtext(f'{_S3}Prefix')}", since) > since:
                hidden.append(entry)
        for entry in hidden:
            root.remove(entry)
        return len(hidden)

    def _show(self, root: ElementTree.Element, bucket: str, prefix: str, since: float) -> int:
        gone = {
            key.partition("/")[2]: stored
            for key, stored in self.stored.items()
            if key.startswith(f"{bucket}/{prefix}")
            and stored.deleted_at is not None
            and stored.put_at <= since < stored.deleted_at
        }
        for key, stored in gone.items():
            entry = ElementTree.SubElement(root, f"{_S3}Contents")
            age = time.monotonic() - stored.put_at
            modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - age))
            facts = {"Key": key, "LastModified": modified, "ETag": '"0"'}
            for name, value in {**facts, "Size": str(stored.size_bytes)}.items():
                ElementTree.SubElement(entry, f"{_S3}{name}").text = value
        entries = sorted(
            root.findall(f"{_S3}Contents"), key=lambda e: e.findtext(f"{_S3}Key") or ""
        )
        for entry in entries:
            root.remove(entry)
        root.extend(entries)
        return len(gone)


class S3Proxy:
    """`with S3Proxy(endpoint, seed) as proxy:`; what is to happen is set as `proxy.toxics`."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self._upstream = urllib.parse.urlsplit(endpoint).netloc
        self._die = random.Random(seed)
        self._lock = threading.Lock()
        self._burst_until = 0.0
        self._burst = "internal"
        self.lag = _Lag()
        self.toxics = NONE
        self.requests = 0
        self.faults: Counter[str] = Counter()

    def __enter__(self) -> S3Proxy:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def options(self, storage_options: Mapping[str, str]) -> dict[str, str]:
        """The server's storage options, with the proxy as the endpoint."""
        return {**storage_options, "aws_endpoint": self.endpoint}

    def forward(self, request: Request) -> Reply:
        """Ask the server."""
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            connection.request(
                request.method, request.target, body=request.body, headers=dict(request.headers)
            )
            reply = connection.getresponse()
            body = reply.read()
            found = Reply(status=reply.status, headers=reply.getheaders(), body=body)
        finally:
            connection.close()
        self.lag.note(request, found)
        return found

    def strikes(self, name: str, chance: float) -> bool:
        """Whether this fault befalls the request; counted when it does."""
        if not chance:
            return False
        with self._lock:
            struck = self._die.random() < chance
            self.faults[name] += struck
        return struck

    def count(self, name: str, times: int = 1) -> None:
        with self._lock:
            self.faults[name] += times

    def delay(self) -> float:
        """For how long a request is late."""
        with self._lock:
            return self._die.uniform(0, _LATENCY_SECONDS_MAX)

    def error(self) -> str:
        """Which of the store's errors."""
        with self._lock:
            return self._die.choice([*_ERRORS])

    def in_burst(self) -> str | None:
        """The error that all requests get for a while."""
        toxics = self.toxics
        if not toxics.burst:
            return None
        now = time.monotonic()
        with self._lock:
            if now >= self._burst_until:
                if self._die.random() >= toxics.burst:
                    return None
                self._burst = self._die.choice([*_ERRORS])
                self._burst_until = now + toxics.burst_seconds
                self.faults["bursts"] += 1
            self.faults["error_in_burst"] += 1
            return self._burst


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: S3Proxy

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = Request(
            method=self.command,
            target=self.path,
            headers={
                name.lower(): value
                for name, value in self.headers.items()
                if name.lower() not in _HOP_BY_HOP
            },
            body=self.rfile.read(length),
        )
        with self.owner._lock:
            self.owner.requests += 1
        self._with_toxics(request, self.owner.toxics)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

    def _with_toxics(self, request: Request, toxics: Toxics) -> None:
        owner = self.owner
        if toxics.forbidden(request.method, request.place):
            owner.count("forbidden")
            return self._fail(403, "AccessDenied")
        if owner.strikes("latency", toxics.latency):
            time.sleep(owner.delay())
        if owner.strikes("reset_before", toxics.reset_before):
            return self._reset()
        burst = owner.in_burst()
        if burst is not None:
            return self._fail(*_ERRORS[burst])
        if owner.strikes("error_before", toxics.error_before):
            return self._fail(*_ERRORS[owner.error()])
        reply = owner.forward(request)
        if owner.strikes("reset_after", toxics.reset_after):
            return self._reset()
        if owner.strikes("error_after", toxics.error_after):
            return self._fail(500, "InternalError")
        return self._answer(request, reply, toxics)

    def _answer(self, request: Request, reply: Reply, toxics: Toxics) -> None:
        owner, body, headers = self.owner, reply.body, dict(reply.headers)
        if toxics.lag_seconds and request.is_listing and reply.is_success:
            body, changed = owner.lag.apply(request, body, toxics.lag_seconds)
            owner.count("listing_lags", changed > 0)
        if toxics.clock_seconds and "Date" in headers:
            told = parsedate_to_datetime(headers["Date"]).timestamp()
            headers["Date"] = formatdate(told + toxics.clock_seconds, usegmt=True)
        if "ETag" in headers and owner.strikes("wrong_etag", toxics.wrong_etag):
            headers["ETag"] = f'"{os.urandom(16).hex()}"'
        short = len(body) > 1 and reply.is_success and owner.strikes("truncate", toxics.truncate)
        self._send(request, reply.status, headers, body, short=short)

    def _send(
        self,
        request: Request,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        short: bool,
    ) -> None:
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", length)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[: len(body) // 2] if short else body)
        self.close_connection = self.close_connection or short

    def _fail(self, status: int, code: str) -> None:
        body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Date", formatdate(usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _reset(self) -> None:
        """The client gets a reset, not an end of stream."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())
        self.close_connection = True


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
