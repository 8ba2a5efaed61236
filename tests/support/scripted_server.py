"""A server that answers by script, and stores of each kind that ask it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import ClassVar

import pytest

from memwal.ports import Clock, Objects
from memwal.store.objects import remote
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.opening import open_objects
from memwal.testing import ManualClock

SECRET = "bm90LXNob3du"
SECRETS = {
    "aws_access_key_id": f"AKIA-{SECRET}",
    "aws_secret_access_key": f"secret-{SECRET}",
    "aws_session_token": f"token-{SECRET}",
}


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_after_bytes: int | None = None
    hang_up: bool = False
    wait_for: Event | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class ScriptedServer:
    """Answers with the script's replies in order, its last one from then on."""

    def __init__(self) -> None:
        self.script: list[Reply] = []
        self.requests: list[Request] = []
        self._lock = Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version: ClassVar[str] = "HTTP/1.1"

            def answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                reply = server._next(
                    Request(
                        method=self.command,
                        path=self.path,
                        headers={name.lower(): value for name, value in self.headers.items()},
                        body=self.rfile.read(length),
                    )
                )
                if reply.wait_for is not None:
                    reply.wait_for.wait(60)
                self.close_connection = reply.hang_up or reply.cut_after_bytes is not None
                if reply.hang_up:
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body[: reply.cut_after_bytes])

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def _next(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            return self.script[min(len(self.requests), len(self.script)) - 1]

    def encrypt(self, certificate: Path, key: Path) -> None:
        """Answer by TLS from here on."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.endpoint = self.endpoint.replace("http:", "https:")

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def open(
        self,
        *replies: Reply,
        scheme: str = "s3",
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        **options: str,
    ) -> Objects:
        """The store below `SCHEME://bucket/some/table`, which these replies await."""
        self.script += replies
        own = {
            "s3": {"aws_endpoint": self.endpoint, **SECRETS},
            "az": {"account_name": "a", "account_key": SECRET, "azure_endpoint": self.endpoint},
            "gs": {"google_base_url": self.endpoint, "google_storage_token": SECRET},
        }[scheme]
        return open_objects(
            f"{scheme}://bucket/some/table",
            {**own, "allow_http": "true", **options},
            clock or ManualClock(),
            limits or StoreLimits(),
        )


@pytest.fixture(scope="module")
def scripted() -> Iterator[ScriptedServer]:
    """One for all tests of a file, whose clients they share."""
    found = ScriptedServer()
    yield found
    found.close()


@pytest.fixture
def server(scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> ScriptedServer:
    """The same, with nothing to say yet, and known to nobody."""
    scripted.script, scripted.requests = [], []
    monkeypatch.setattr(remote, "_without_suffixes", set())
    monkeypatch.setattr(remote, "_answered", set())
    return scripted


HEADERS = {"Last-Modified": "Sun, 22 Nov 2026 20:56:26 GMT", "ETag": '"1"'}
DONE = Reply(headers={**HEADERS, "x-goog-generation": "1"})
"""The reply to a put, a delete, or a get of nothing."""


def found(body: bytes) -> Reply:
    """An object."""
    return Reply(body=body, headers=HEADERS)


def part(data: bytes, first: int, size: int = 10) -> Reply:
    """A range of an object."""
    content_range = f"bytes {first}-{first + len(data) - 1}/{size}"
    return Reply(status=206, body=data, headers={**HEADERS, "Content-Range": content_range})


def fault(status: int, code: str, **more: str) -> Reply:
    """A refusal as the services write it."""
    parts = {"Code": code, "Message": f"text of {code}", **more}
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in parts.items())
    return Reply(status=status, body=f"<Error>{inner}</Error>".encode())


SLOW_DOWN = fault(503, "SlowDown")


def listing(*keys: str, folders: tuple[str, ...] = (), more: bool = False, size: int = 1) -> Reply:
    """A page of a listing."""
    items = "".join(
        f"<Contents><Key>some/table/{key}</Key><Size>{size}</Size><ETag>1</ETag>"
        "<LastModified>2026-01-02T03:04:05.678Z</LastModified></Contents>"
        for key in keys
    )
    named = "".join(
        f"<CommonPrefixes><Prefix>some/table/{name}/</Prefix></CommonPrefixes>" for name in folders
    )
    after = "<NextContinuationToken>on</NextContinuationToken>" if more else ""
    truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>{after}"
    return Reply(body=f"<ListBucketResult>{items}{named}{truncated}</ListBucketResult>".encode())
