"""What S3Objects makes of faults, against a server that answers by script."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Lock, Thread
from typing import ClassVar
from xml.etree import ElementTree

import pytest

from memwal import errors
from memwal.clock import SystemClock
from memwal.ports import Clock, Objects
from memwal.store.objects import remote
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.opening import open_objects
from memwal.testing import ManualClock

URI = "s3://bucket/some/table"
SECRETS = {
    "aws_access_key_id": "AKIA-NOT-SHOWN",
    "aws_secret_access_key": "secret-not-shown",
    "aws_session_token": "token-not-shown",
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
        clock: Clock | None = None,
        limits: StoreLimits | None = None,
        **options: str,
    ) -> Objects:
        self.script += replies
        return open_objects(
            URI,
            {"aws_endpoint": self.endpoint, "allow_http": "true", **SECRETS, **options},
            ManualClock() if clock is None else clock,
            StoreLimits() if limits is None else limits,
        )


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    # Two servers may get the same port, one after the other.
    monkeypatch.setattr(remote, "_without_suffixes", set())
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


def fault(status: int, code: str, **more: str) -> Reply:
    parts = {"Code": code, "Message": f"text of {code}", **more}
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in parts.items())
    return Reply(status=status, body=f"<Error>{inner}</Error>".encode())


SLOW_DOWN = fault(503, "SlowDown")


@pytest.mark.parametrize(
    "passing",
    [
        SLOW_DOWN,
        Reply(status=500),
        Reply(status=502, body=b"<html>bad gateway</html>"),
        fault(500, "InternalError"),
        fault(429, "TooManyRequests"),
        fault(400, "RequestTimeout"),
        Reply(hang_up=True),
        Reply(body=b"half of it", cut_after_bytes=5),
    ],
)
def test_passing_faults_are_retried_on_the_clock_port(
    server: ScriptedServer, passing: Reply
) -> None:
    clock = ManualClock()
    objects = server.open(passing, passing, Reply(body=b"data"), clock=clock)

    assert objects.get("a/b") == b"data"
    assert [request.path for request in server.requests] == ["/bucket/some/table/a/b"] * 3
    assert len(clock.slept_seconds) == 2
    assert objects.counts.retries == 2
    assert objects.counts.get == 3
    assert objects.counts.bytes_read == 4


def test_every_operation_is_retried(server: ScriptedServer) -> None:
    last = {
        "put": Reply(),
        "put_if_absent": Reply(),
        "list": listing(),
        "list_folders": listing(),
        "get_tail": Reply(body=b"678", status=206, headers={"Content-Range": "bytes 6-8/9"}),
        "exists": Reply(body=b"x", status=206, headers={"Content-Range": "bytes 0-0/9"}),
        "delete": Reply(body=b"<DeleteResult></DeleteResult>"),
    }
    objects = server.open()
    for reply in last.values():
        server.script += [SLOW_DOWN, reply]

    objects.put("a", b"x")
    objects.put_if_absent("a", b"x")
    assert [*objects.list("")] == []
    assert [*objects.list_folders("")] == []
    assert objects.get_tail("a", 3) == (b"678", 9)
    assert objects.exists("a")
    assert objects.delete(["a"]).deleted == 1
    assert objects.counts.retries == len(last)
    assert len(server.requests) == 2 * len(last)


def test_a_read_that_hangs_is_retried(server: ScriptedServer) -> None:
    release = Event()
    objects = server.open(
        Reply(wait_for=release, hang_up=True),
        Reply(body=b"data"),
        limits=StoreLimits(read_timeout_seconds=0.3),
    )

    assert objects.get("a") == b"data"
    assert objects.counts.retries == 1
    release.set()


def test_a_lost_create_is_not_retried(server: ScriptedServer) -> None:
    objects = server.open(fault(412, "PreconditionFailed"), Reply())

    with pytest.raises(errors.AlreadyExists, match="s3://bucket/some/table/a exists"):
        objects.put_if_absent("a", b"data")
    assert [request.headers["if-none-match"] for request in server.requests] == ["*"]
    assert objects.counts.retries == 0


def test_a_create_whose_reply_was_lost_reports_existing(server: ScriptedServer) -> None:
    objects = server.open(Reply(hang_up=True), fault(412, "PreconditionFailed"))

    with pytest.raises(errors.AlreadyExists):
        objects.put_if_absent("a", b"data")
    assert [request.body for request in server.requests] == [b"data", b"data"]


CONFLICT = fault(409, "ConditionalRequestConflict")


def test_creates_that_met_are_retried_since_perhaps_none_has_won(server: ScriptedServer) -> None:
    objects = server.open(CONFLICT, CONFLICT, Reply())

    objects.put_if_absent("a", b"data")
    assert [request.headers["if-none-match"] for request in server.requests] == ["*"] * 3


def test_a_create_that_meets_another_one_which_wins_has_lost(server: ScriptedServer) -> None:
    objects = server.open(CONFLICT, fault(412, "PreconditionFailed"))

    with pytest.raises(errors.AlreadyExists, match="s3://bucket/some/table/a exists"):
        objects.put_if_absent("a", b"data")


@pytest.mark.parametrize("there", [True, False])
def test_creates_that_meet_others_to_the_last_are_looked_up(
    server: ScriptedServer, there: bool
) -> None:
    found = Reply(body=b"d", status=206, headers={"Content-Range": "bytes 0-0/4"})
    look = found if there else fault(404, "NoSuchKey")
    objects = server.open(
        CONFLICT, CONFLICT, CONFLICT, look, limits=StoreLimits(retry_attempts_max=3)
    )

    expected = errors.AlreadyExists if there else errors.StoreUnavailable
    with pytest.raises(expected, match="exists" if there else "3 attempts: HTTP 409"):
        objects.put_if_absent("a", b"data")
    assert [request.method for request in server.requests] == ["PUT"] * 3 + ["GET"]


BEGUN = Reply(body=b"<R><UploadId>u1</UploadId></R>")
PART = Reply(headers={"ETag": '"e"'})
COMPLETED = Reply(body=b"<R><Key>a</Key></R>")


def told(server: ScriptedServer) -> list[str]:
    return [f"{r.method} {r.path.partition('?')[2]}" for r in server.requests]


def test_a_part_is_retried_alone(server: ScriptedServer) -> None:
    objects = server.open(BEGUN, PART, SLOW_DOWN, PART, SLOW_DOWN, COMPLETED)

    objects.put_parts("a", [b"one", b"two"])

    parts = ["PUT uploadId=u1&partNumber=1", *["PUT uploadId=u1&partNumber=2"] * 2]
    assert told(server) == ["POST uploads", *parts, *["POST uploadId=u1"] * 2]
    assert [request.body for request in server.requests[1:4]] == [b"one", b"two", b"two"]
    assert server.requests[-1].headers["if-none-match"] == "*"
    assert objects.counts.bytes_written == 6


def test_an_upload_that_lost_is_given_up(server: ScriptedServer) -> None:
    objects = server.open(BEGUN, PART, PART, fault(412, "PreconditionFailed"), Reply(status=204))

    with pytest.raises(errors.AlreadyExists, match="s3://bucket/some/table/a exists"):
        objects.put_parts("a", [b"one", b"two"])
    assert told(server)[-2:] == ["POST uploadId=u1", "DELETE uploadId=u1"]


@pytest.mark.parametrize("there", [True, False])
def test_a_completed_upload_whose_reply_was_lost_is_looked_up(
    server: ScriptedServer, there: bool
) -> None:
    found = Reply(body=b"o", status=206, headers={"Content-Range": "bytes 0-0/6"})
    look = found if there else fault(404, "NoSuchKey")
    lost = (Reply(hang_up=True), fault(404, "NoSuchUpload"))
    objects = server.open(BEGUN, PART, PART, *lost, look, Reply(status=204))

    with pytest.raises(errors.AlreadyExists if there else errors.StoreUnavailable):
        objects.put_parts("a", [b"one", b"two"])


def test_a_plain_put_has_no_condition(server: ScriptedServer) -> None:
    server.open(Reply()).put("a", b"data")

    assert "if-none-match" not in server.requests[0].headers
    assert server.requests[0].body == b"data"


def test_the_total_deadline_ends_the_retries(server: ScriptedServer) -> None:
    clock = ManualClock()
    limits = StoreLimits(retry_seconds_max=5, retry_attempts_max=1000, retry_wait_seconds_max=2)
    objects = server.open(SLOW_DOWN, clock=clock, limits=limits)

    with pytest.raises(errors.StoreUnavailable) as gave_up:
        objects.put_if_absent("a/b", b"data")

    attempts = len(server.requests)
    assert attempts > 2
    assert 3 <= sum(clock.slept_seconds) <= 5
    assert max(clock.slept_seconds) <= 2
    assert len(set(clock.slept_seconds)) == attempts - 1  # jitter
    for part in (f"{URI}/a/b", "put_if_absent", f"{attempts} attempts", "SlowDown"):
        assert part in str(gave_up.value)


def test_the_number_of_attempts_is_limited(server: ScriptedServer) -> None:
    objects = server.open(SLOW_DOWN, limits=StoreLimits(retry_attempts_max=3))

    with pytest.raises(errors.StoreUnavailable, match="3 attempts"):
        objects.get("a")
    assert len(server.requests) == 3


def test_a_port_where_nobody_listens_is_unavailable_soon() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        options = {"aws_endpoint": f"http://127.0.0.1:{taken.getsockname()[1]}"}
        limits = StoreLimits(retry_seconds_max=0.5)
        objects = open_objects(
            URI, {**options, "allow_http": "true", **SECRETS}, SystemClock(), limits
        )
        started = time.monotonic()

        with pytest.raises(errors.StoreUnavailable, match="gave up after"):
            objects.get("a")
    assert time.monotonic() - started < 10
    assert objects.counts.retries == 0


@pytest.mark.parametrize(
    "refusal",
    [
        fault(403, "AccessDenied"),
        fault(403, "InvalidAccessKeyId", AWSAccessKeyId=SECRETS["aws_access_key_id"]),
        fault(403, "SignatureDoesNotMatch"),
        fault(400, "ExpiredToken", **{"Token-0": SECRETS["aws_session_token"]}),
        fault(401, "Unauthorized"),
    ],
)
def test_refused_credentials_are_named_without_showing_them(
    server: ScriptedServer, refusal: Reply
) -> None:
    objects = server.open(refusal)

    for call in (
        lambda: objects.get("a"),
        lambda: objects.exists("a"),
        lambda: objects.put_if_absent("a", b"x"),
        lambda: [*objects.list("")],
        lambda: objects.delete(["a"]),
    ):
        with pytest.raises(errors.BadCredentials, match=URI) as refused:
            call()
        for secret in SECRETS.values():
            assert secret not in f"{refused.value!r} {refused.value.__cause__!r} {objects!r}"
    assert objects.counts.retries == 0


def test_no_credentials_at_all(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"endpoint": server.endpoint, "allow_http": "true"}
    server.script = [Reply(body=b"data")]

    with pytest.raises(errors.BadCredentials, match="Unable to locate credentials"):
        open_objects(URI, options, ManualClock()).get("a")
    assert server.requests == []

    anonymous = open_objects(
        URI, {**options, "skip_signature": "true"}, ManualClock(), StoreLimits()
    )
    assert anonymous.get("a") == b"data"
    assert "authorization" not in server.requests[0].headers

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-env")
    open_objects(URI, options, ManualClock()).get("a")
    assert "from-env" in server.requests[1].headers["authorization"]


def test_a_missing_bucket_is_not_a_missing_object(server: ScriptedServer) -> None:
    objects = server.open(fault(404, "NoSuchBucket"))

    for call in (
        lambda: objects.get("a"),
        lambda: objects.exists("a"),
        lambda: [*objects.list("")],
    ):
        with pytest.raises(errors.Usage, match="'bucket'"):
            call()


def test_a_missing_object_is_asked_for_once(server: ScriptedServer) -> None:
    objects = server.open(fault(404, "NoSuchKey"))

    with pytest.raises(errors.Missing, match=f"{URI}/a"):
        objects.get("a")
    assert not objects.exists("a")
    assert len(server.requests) == 2


def test_a_store_without_conditional_puts_is_unsupported(server: ScriptedServer) -> None:
    objects = server.open(fault(501, "NotImplemented"))

    with pytest.raises(errors.Unsupported, match="NotImplemented"):
        objects.put_if_absent("a", b"x")
    assert len(server.requests) == 1


def test_a_store_that_ignores_ranges(server: ScriptedServer) -> None:
    """`Range` is optional in HTTP: a plain 200 with everything is a correct reply."""
    objects = server.open(Reply(body=b"0123456789"))

    assert objects.get_range("a", 2, 5) == b"234"
    assert objects.get_range("a", 10, 10) == b""
    assert objects.get_tail("a", 3) == (b"789", 10)
    with pytest.raises(errors.Corruption):
        objects.get_range("a", 5, 11)


def part(data: bytes, first: int, size: int = 10) -> Reply:
    content_range = f"bytes {first}-{first + len(data) - 1}/{size}"
    return Reply(status=206, body=data, headers={"Content-Range": content_range})


@pytest.mark.parametrize("wrong", [part(b"0123", 0), part(b"678", 6), part(b"89", 8)], ids=str)
def test_a_tail_that_is_answered_wrongly_is_asked_for_by_offsets(
    server: ScriptedServer, wrong: Reply
) -> None:
    objects = server.open(wrong, *[part(b"012", 0), part(b"789", 7)] * 2)

    assert objects.get_tail("a", 3) == (b"789", 10)
    assert objects.get_tail("b", 3) == (b"789", 10)
    ranges = [request.headers["range"] for request in server.requests]
    assert ranges == ["bytes=-3", *["bytes=0-2", "bytes=7-9"] * 2]


def test_what_is_known_to_be_answered_wrongly_is_not_asked_again(server: ScriptedServer) -> None:
    whole = part(b"0123456", 0, 7)
    objects = server.open(fault(416, "InvalidRange"), whole)

    assert objects.get_tail("a", 9) == (b"0123456", 7)
    assert objects.get_tail("b", 9) == (b"0123456", 7)
    ranges = [request.headers["range"] for request in server.requests]
    assert ranges == ["bytes=-9", "bytes=0-8", "bytes=0-8"]


def test_a_store_that_satisfies_no_tail_is_asked_for_the_size_first(
    server: ScriptedServer,
) -> None:
    objects = server.open(fault(416, "InvalidRange"), part(b"012", 0), part(b"789", 7))

    assert objects.get_tail("a", 3) == (b"789", 10)
    ranges = [request.headers["range"] for request in server.requests]
    assert ranges == ["bytes=-3", "bytes=0-2", "bytes=7-9"]


@pytest.mark.parametrize(
    "wrong",
    [part(b"0123", 0), part(b"345", 3), part(b"5678", 5), Reply(status=206, body=b"456")],
    ids=["from the start", "too few", "too late", "from nowhere"],
)
def test_a_range_that_is_answered_with_other_bytes_is_no_corruption(
    server: ScriptedServer, wrong: Reply
) -> None:
    objects = server.open(wrong)

    with pytest.raises(errors.Unsupported, match="bytes=4-6 with other bytes"):
        objects.get_range("a", 4, 7)
    with pytest.raises(errors.Unsupported, match="with other bytes"):
        objects.get_tail("a", 6)


def listing(*keys: str, folders: tuple[str, ...] = (), more: bool = False, size: int = 1) -> Reply:
    items = "".join(
        f"<Contents><Key>some/table/{key}</Key><Size>{size}</Size>"
        "<LastModified>2026-01-02T03:04:05.678Z</LastModified></Contents>"
        for key in keys
    )
    named = "".join(
        f"<CommonPrefixes><Prefix>some/table/{name}/</Prefix></CommonPrefixes>" for name in folders
    )
    after = "<NextContinuationToken>on</NextContinuationToken>" if more else ""
    truncated = f"<IsTruncated>{str(more).lower()}</IsTruncated>{after}"
    return Reply(body=f"<ListBucketResult>{items}{named}{truncated}</ListBucketResult>".encode())


def test_one_page_of_objects_tells_the_folders(server: ScriptedServer) -> None:
    objects = server.open(listing("t/a/1", "t/b/c/2", "t/d"))

    assert objects.list_folders("t") == ["a", "b"]
    assert objects.counts.list == len(server.requests) == 1


PAGE = listing(*(f"t/a/x/{number:04}" for number in range(1000)), more=True)


def test_folders_of_more_than_a_page_cost_their_own_listing(server: ScriptedServer) -> None:
    objects = server.open(PAGE, listing(folders=("t/a",), more=True), listing(folders=("t/b",)))

    assert objects.list_folders("t") == ["a", "b"]
    assert [("delimiter" in request.path) for request in server.requests] == [False, True, True]


@pytest.mark.parametrize("told", [(), ("t/b",)])
def test_a_listing_of_folders_that_lacks_one_is_not_believed(
    server: ScriptedServer, told: tuple[str, ...]
) -> None:
    objects = server.open(PAGE, listing(folders=told), PAGE, listing("t/b/1", "t/c/x/2"))

    assert objects.list_folders("t") == ["a", "b", "c"]
    assert len(server.requests) == 4


def test_an_empty_object_answers_a_tail_with_416(server: ScriptedServer) -> None:
    assert server.open(fault(416, "InvalidRange")).get_tail("a", 3) == (b"", 0)


def test_keys_that_name_nothing_addressable_are_left_out(server: ScriptedServer) -> None:
    keys = ["t/", "t//x", "t/../x", "t/ok"]
    objects = server.open(listing(*keys, folders=("..", "", "t")))

    assert [(info.path, info.modified_at_nanos) for info in objects.list("")] == [
        ("t/ok", 1_767_323_045_678_000_000)
    ]
    assert objects.list_folders("") == ["t"]


def test_marks_of_empty_folders_are_left_out(server: ScriptedServer) -> None:
    """Consoles make them: `t/` without a byte. obstore would list an object `t`."""
    mark = listing("t/", "t/a/1", size=0)
    objects = server.open(PAGE, mark, mark)

    found = [file.path for file in objects.list("t")]
    assert len(found) == 1001
    assert found[-1] == "t/a/1"
    assert "start-after=some%2Ftable%2Ft%2Fa%2Fx%2F0999" in server.requests[2].path


def _deleted_keys(request: Request) -> list[str | None]:
    return [
        item.text
        for item in ElementTree.fromstring(request.body).iter()
        if item.tag.endswith("Key")
    ]


def _delete_reply(**codes: str) -> Reply:
    faults = "".join(
        f"<Error><Key>some/table/{name}</Key><Code>{code}</Code></Error>"
        for name, code in codes.items()
    )
    return Reply(body=f"<DeleteResult>{faults}</DeleteResult>".encode())


def test_a_delete_retries_only_the_objects_whose_fault_may_pass(server: ScriptedServer) -> None:
    objects = server.open(
        _delete_reply(a="AccessDenied", b="SlowDown", c="NoSuchKey", d="InternalError"),
        _delete_reply(d="InternalError"),
        _delete_reply(),
    )

    result = objects.delete(["a", "b", "c", "d", "e"])

    assert (result.deleted, result.failed) == (4, (("a", "AccessDenied"),))
    assert [_deleted_keys(request) for request in server.requests] == [
        [f"some/table/{name}" for name in names] for names in ("abcde", "bd", "d")
    ]


def test_a_delete_without_answer_returns_what_failed_and_stops(server: ScriptedServer) -> None:
    limits = StoreLimits(retry_attempts_max=2, delete_batch_objects_max=2, deletes_in_flight_max=1)
    objects = server.open(_delete_reply(), SLOW_DOWN, limits=limits)

    result = objects.delete("abcdef")

    assert result.deleted == 2
    assert [path for path, _ in result.failed] == ["c", "d", "e", "f"]
    assert "SlowDown" in dict(result.failed)["c"]
    assert "not tried" in dict(result.failed)["e"]
    assert len(server.requests) == 3


# --- options ------------------------------------------------------------------------------------


def test_http_needs_allow_http(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def opens(**options: str) -> Objects:
        return open_objects(URI, {**SECRETS, **options}, ManualClock())

    for refused in ({}, {"allow_http": "false"}):
        with pytest.raises(errors.Usage, match="allow_http"):
            opens(aws_endpoint=server.endpoint, **refused)
    monkeypatch.setenv("AWS_ENDPOINT", server.endpoint)
    with pytest.raises(errors.Usage, match="allow_http"):
        opens()

    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    server.script = [Reply(body=b"data")]
    assert opens().get("a") == b"data"
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "spelling", ["ENDPOINT", "Aws_Endpoint", "endpoint_url", "AWS_ENDPOINT_URL"]
)
def test_options_have_the_spellings_of_object_store(server: ScriptedServer, spelling: str) -> None:
    server.script = [Reply(body=b"data")]
    options = {
        spelling: server.endpoint,
        "AWS_ALLOW_HTTP": "1",
        "access_key_id": "key-id",
        "SECRET_ACCESS_KEY": "secret",
        "token": "session",
        "Region": "eu-west-7",
        "unheard_of": "x",
    }

    assert open_objects(URI, options, ManualClock()).get("a") == b"data"
    headers = server.requests[0].headers
    assert "key-id/" in headers["authorization"]
    assert "/eu-west-7/s3/" in headers["authorization"]
    assert headers["x-amz-security-token"] == "session"


def test_a_virtual_hosted_endpoint_may_hold_the_bucket_and_proxies_lead_to_it(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", server.endpoint)
    objects = server.open(
        Reply(body=b"data"),
        Reply(),
        aws_endpoint="http://bucket.store.test",
        virtual_hosted_style_request="true",
    )

    assert objects.get("a") == b"data"
    objects.put("a", b"data")
    assert [request.path for request in server.requests] == [
        "http://bucket.store.test/some/table/a"
    ] * 2


def test_a_read_goes_to_the_region_where_the_bucket_is(server: ScriptedServer) -> None:
    elsewhere = fault(400, "AuthorizationHeaderMalformed", Region="eu-west-7")
    objects = server.open(elsewhere, elsewhere, listing(), Reply(body=b"data"))

    assert [objects.get("a"), objects.get("b")] == [b"data"] * 2
    regions = [r.headers["authorization"].split("/")[2] for r in server.requests]
    assert regions == ["us-east-1"] * 2 + ["eu-west-7"] * 3


def test_a_region_that_is_not_found_is_asked_for(server: ScriptedServer) -> None:
    nowhere = replace(fault(301, "PermanentRedirect"), headers={"x-amz-bucket-region": "us-east-1"})
    objects = server.open(nowhere)

    for call in (lambda: objects.get("a"), lambda: [*objects.list("")]):
        with pytest.raises(errors.Usage, match="is the storage option aws_region right"):
            call()


def use_profile(monkeypatch: pytest.MonkeyPatch, folder: Path, process: object) -> None:
    """Let boto3 find keys by a profile, whose process tells them."""
    config = folder / "config"
    config.write_text(f"[profile lake]\ncredential_process = {process}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_reads_are_signed_with_what_a_profile_tells_and_with_what_comes_after(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process of the profile tells other keys each time; the first two are about to expire."""
    tells = tmp_path / "tells.py"
    tells.write_text(
        "import json, pathlib, datetime as d\n"
        f"file = pathlib.Path({str(tmp_path / 'asked')!r})\n"
        "asked = len(file.read_text()) if file.exists() else 0\n"
        "file.write_text('x' * (asked + 1))\n"
        "until = d.datetime.now(d.UTC) + d.timedelta(minutes=1 + 100 * (asked > 1))\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': f'key-{asked}', 'SecretAccessKey': 's',\n"
        "    'SessionToken': f'token-{asked}', 'Expiration': until.isoformat()}))\n"
    )
    use_profile(monkeypatch, tmp_path, f"{sys.executable} {tells}")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    server.script = [Reply(body=b"data"), listing()]
    options = {"endpoint": server.endpoint, "allow_http": "true"}
    objects = open_objects(URI, options, ManualClock())

    objects.get("a")
    [*objects.list("")]
    told = [
        (r.headers["authorization"], r.headers["x-amz-security-token"]) for r in server.requests
    ]
    assert [token for _, token in told] == ["token-1", "token-2"]
    assert ["key-1/" in told[0][0], "key-2/" in told[1][0]] == [True, True]


def test_keys_that_can_t_be_renewed_are_no_missing_object(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {"Version": 1, "AccessKeyId": "k", "SecretAccessKey": "s", "SessionToken": "t"}
    until = datetime.now(UTC) + timedelta(minutes=1)
    program = tmp_path / "tells"
    program.write_text(f"#!/bin/sh\necho '{json.dumps({**told, 'Expiration': str(until)})}'\n")
    program.chmod(0o755)
    use_profile(monkeypatch, tmp_path, program)
    options = {"endpoint": server.endpoint, "allow_http": "true"}
    objects = open_objects(URI, options, ManualClock())
    program.unlink()

    with pytest.raises(errors.BadCredentials, match="No such file"):
        objects.exists("a")
    assert server.requests == []


def test_reads_trust_the_authorities_that_a_variable_names(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"]
    words += ["-keyout", str(key), "-out", str(certificate), "-days", "2"]
    for extension in ("subjectAltName=IP:127.0.0.1", "basicConstraints=critical,CA:FALSE"):
        words += ["-addext", extension]
    subprocess.run(words, check=True, capture_output=True)
    server.encrypt(certificate, key)
    limits = StoreLimits(retry_attempts_max=1)

    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    with pytest.raises(errors.StoreUnavailable):
        server.open(Reply(body=b"data"), Reply(), limits=limits).get("a")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    objects = server.open(limits=limits)
    assert objects.get("a") == b"data"
    objects.put("a", b"data")
    for wrong in (key, tmp_path / "none"):
        monkeypatch.setenv("AWS_CA_BUNDLE", str(wrong))
        with pytest.raises(errors.Usage, match="AWS_CA_BUNDLE"):
            server.open(limits=limits).exists("a")


def test_encryption_options_go_with_each_put(server: ScriptedServer) -> None:
    objects = server.open(Reply(), aws_server_side_encryption="aws:kms", aws_sse_kms_key_id="key-7")
    objects.put_if_absent("a", b"x")

    assert server.requests[0].headers["x-amz-server-side-encryption"] == "aws:kms"
    assert server.requests[0].headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-7"
    with pytest.raises(errors.Unsupported, match="sse-c"):
        server.open(aws_server_side_encryption="sse-c")


@pytest.mark.parametrize(
    "options",
    [
        {"aws_access_key_id": "not-shown"},
        {"aws_secret_access_key": "not-shown"},
        {"region": "not-shown", "aws_region": "other"},
        {"endpoint": "not-shown"},
        {"endpoint": "https://user:not-shown@host"},
    ],
)
def test_contradictory_options_are_refused_without_showing_them(options: dict[str, str]) -> None:
    with pytest.raises(errors.Usage) as refused:
        open_objects(URI, options, ManualClock())
    assert "not-shown" not in str(refused.value)


def test_stores_with_the_same_options_share_a_client(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(**options: str) -> object:
        return vars(server.open(**options))["_client"]

    first = client()
    assert client() is first
    assert client(aws_region="eu-west-7") is not first
    monkeypatch.setenv("AWS_CA_BUNDLE_OF_NOBODY", "x")
    assert client() is not first
    monkeypatch.undo()
    assert client() is first
    with pytest.raises(errors.BadCredentials):
        server.open(fault(403, "AccessDenied")).get("a")
    assert client() is not first
