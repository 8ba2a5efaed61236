"""What faults mean: one table for all stores, whether boto3 or obstore asks."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event

import pytest

from memwal.errors import (
    AlreadyExists,
    BadCredentials,
    Corruption,
    MemWalError,
    Missing,
    StoreUnavailable,
    Unreachable,
    Unsupported,
    Usage,
)
from memwal.ports import Objects
from memwal.store.objects.base import StoreLimits
from memwal.testing import ManualClock
from tests.support.scripted_server import (
    DONE,
    SECRET,
    SECRETS,
    SLOW_DOWN,
    Reply,
    ScriptedServer,
    fault,
    found,
)
from tests.support.scripted_server import scripted as scripted
from tests.support.scripted_server import server as server

pytestmark = pytest.mark.integration

GONE = Reply(status=404)
CONFLICT = fault(409, "ConditionalRequestConflict")
TAKEN = fault(412, "PreconditionFailed")
KEY_ID = SECRETS["aws_access_key_id"]
# Those that pass are retried.
FAULTS: list[tuple[Reply, type[MemWalError], str]] = [
    (SLOW_DOWN, Unreachable, "HTTP 503 SlowDown: text of SlowDown"),
    (Reply(status=500), Unreachable, "HTTP 500"),
    (Reply(status=502, body=b"<html>bad gateway</html>"), Unreachable, "HTTP 502"),
    (fault(500, "InternalError"), Unreachable, "HTTP 500 InternalError"),
    (fault(429, "TooManyRequests"), Unreachable, "HTTP 429 TooManyRequests"),
    (fault(400, "RequestTimeout"), Unreachable, "HTTP 400 RequestTimeout"),
    (Reply(hang_up=True), Unreachable, "gave up after 3 attempts"),
    (fault(400, "Odd"), Unreachable, "after 1 attempt: HTTP 400 Odd: text of Odd"),
    (fault(403, "AccessDenied"), BadCredentials, "refused: HTTP 403 AccessDenied: text"),
    (fault(403, "InvalidAccessKeyId", AWSAccessKeyId=KEY_ID), BadCredentials, "text of Invalid"),
    (fault(400, "ExpiredToken", **{"Token-0": SECRET}), BadCredentials, "text of Expired"),
    (fault(401, "Unauthorized"), BadCredentials, "text of Unauthorized"),
    (fault(404, "NoSuchBucket"), Usage, "no bucket or container 'bucket'"),
    (fault(404, "ContainerNotFound"), Usage, "no bucket or container 'bucket'"),
    (fault(404, "NoSuchKey"), Missing, "some/table/a: does not exist"),
    (fault(501, "NotImplemented"), Unsupported, "cannot do this: HTTP 501 NotImplemented"),
]
ASK = {"get": lambda objects: objects.get("a"), "put": lambda objects: objects.put("a", b"x")}


@pytest.fixture(params=["s3", "az", "gs"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("asked", ASK)
@pytest.mark.parametrize(("reply", "kind", "says"), FAULTS, ids=[row[2] for row in FAULTS])
def test_a_fault_is_told_as_what_it_is(
    server: ScriptedServer,
    scheme: str,
    asked: str,
    reply: Reply,
    kind: type[MemWalError],
    says: str,
) -> None:
    clock = ManualClock()
    limits = StoreLimits(retry_attempts_max=3)
    objects = server.open(reply, scheme=scheme, clock=clock, limits=limits)
    with pytest.raises(kind, match=says) as raised:
        ASK[asked](objects)
    assert type(raised.value) is kind
    passes = kind is Unreachable and "after 1 attempt" not in says
    assert len(server.requests) == (3 if passes else 1)
    assert len(clock.slept_seconds) == objects.counts.retries == len(server.requests) - 1
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r} {objects!r}"


def test_what_came_in_half_is_asked_for_again(server: ScriptedServer, scheme: str) -> None:
    half = replace(found(b"half of it"), cut_after_bytes=5)
    objects = server.open(SLOW_DOWN, half, found(b"data"), scheme=scheme)

    assert objects.get("a/b") == b"data"
    assert (objects.counts.get, objects.counts.retries, objects.counts.bytes_read) == (3, 2, 4)


def test_a_read_that_hangs_is_retried(server: ScriptedServer, scheme: str) -> None:
    release = Event()
    hangs = Reply(wait_for=release, hang_up=True)
    limits = StoreLimits(read_timeout_seconds=0.3)
    objects = server.open(hangs, found(b"data"), scheme=scheme, limits=limits)
    assert objects.get("a") == b"data"
    release.set()


def test_refused_credentials_are_no_missing_object(server: ScriptedServer, scheme: str) -> None:
    objects = server.open(fault(403, "AccessDenied"), scheme=scheme)
    for call in (
        lambda: objects.exists("a"),
        lambda: objects.put_if_absent("a", b"x"),
        lambda: [*objects.list("")],
        lambda: objects.list_folders(""),
        lambda: objects.delete(["a"]),
    ):
        with pytest.raises(BadCredentials, match="text of AccessDenied"):
            call()
    assert objects.counts.retries == 0


def test_the_total_deadline_ends_the_retries(server: ScriptedServer, scheme: str) -> None:
    clock = ManualClock()
    limits = StoreLimits(retry_seconds_max=5, retry_attempts_max=1000, retry_wait_seconds_max=2)
    objects = server.open(SLOW_DOWN, scheme=scheme, clock=clock, limits=limits)

    with pytest.raises(StoreUnavailable) as gave_up:
        objects.put_if_absent("a/b", b"data")
    attempts = len(server.requests)
    assert 3 <= sum(clock.slept_seconds) <= 5
    assert max(clock.slept_seconds) <= 2
    assert len(set(clock.slept_seconds)) == attempts - 1  # jitter
    for part in ("put_if_absent", "some/table/a/b", f"{attempts} attempts", "HTTP 503 SlowDown"):
        assert part in str(gave_up.value)


def test_a_port_where_nobody_listens_is_refused_soon(scheme: str) -> None:
    gone = ScriptedServer()
    gone.close()
    objects = gone.open(scheme=scheme, limits=StoreLimits(retry_seconds_max=0.5))
    started = time.monotonic()

    with pytest.raises(StoreUnavailable, match="gave up after 1 attempt: connection refused"):
        objects.get("a")
    assert time.monotonic() - started < 10


def test_nothing_is_deleted_where_there_is_no_bucket(server: ScriptedServer, scheme: str) -> None:
    objects = server.open(fault(404, "NoSuchBucket"), scheme=scheme)
    with pytest.raises(Usage, match="no bucket or container"):
        objects.delete(["a"])


# ---- put-if-absent


def conditions(server: ScriptedServer) -> list[str | None]:
    """Of each put: `*`, or Google's `0`, for one that only creates."""
    names = ("if-none-match", "x-goog-if-generation-match")
    puts = [request.headers for request in server.requests if request.method == "PUT"]
    return [next((put[name] for name in names if name in put), None) for put in puts]


def methods(server: ScriptedServer) -> list[str]:
    return [request.method for request in server.requests]


@pytest.mark.parametrize(
    "replies", [(TAKEN,), (Reply(hang_up=True), TAKEN), (fault(409, "BlobAlreadyExists"), DONE)]
)
def test_a_create_of_what_is_there_has_lost(
    server: ScriptedServer, scheme: str, replies: tuple[Reply, ...]
) -> None:
    """After a lost reply what is there may be our own. A conflict is looked up."""
    objects = server.open(*replies, scheme=scheme)
    with pytest.raises(AlreadyExists, match="some/table/a exists"):
        objects.put_if_absent("a", b"data")
    looked_up = replies[-1] is DONE
    assert methods(server) == ["PUT", "HEAD"] if looked_up else ["PUT"] * len(replies)
    assert set(conditions(server)) == {"0" if scheme == "gs" else "*"}
    assert (objects.counts.get, objects.counts.bytes_written) == (looked_up, 0)


def test_creates_that_met_are_retried_where_none_has_won(
    server: ScriptedServer, scheme: str
) -> None:
    objects = server.open(CONFLICT, GONE, CONFLICT, GONE, DONE, scheme=scheme)
    objects.put_if_absent("a", b"data")
    assert methods(server) == ["PUT", "HEAD", "PUT", "HEAD", "PUT"]
    assert None not in conditions(server)
    assert objects.counts.bytes_written == 4


def test_creates_that_meet_to_the_last_are_no_lost_race(
    server: ScriptedServer, scheme: str
) -> None:
    limits = StoreLimits(retry_attempts_max=2)
    objects = server.open(CONFLICT, GONE, CONFLICT, GONE, scheme=scheme, limits=limits)
    with pytest.raises(StoreUnavailable, match="gave up after 2 attempts: HTTP 409"):
        objects.put_if_absent("a", b"data")


def test_a_plain_put_has_no_condition(server: ScriptedServer, scheme: str) -> None:
    server.open(DONE, scheme=scheme).put("a", b"data")
    assert conditions(server) == [None]
    assert server.requests[0].body == b"data"


# ---- ranges


def test_a_store_that_ignores_ranges_is_read_whole(server: ScriptedServer, scheme: str) -> None:
    """`Range` is optional in HTTP: a plain 200 with everything is a correct reply."""
    objects: Objects = server.open(found(b"0123456789"), scheme=scheme)
    assert objects.get_range("a", 2, 5) == b"234"
    assert objects.get_range("a", 10, 10) == b""
    with pytest.raises(Corruption):
        objects.get_range("a", 5, 11)
    assert objects.get_tail("a", 3) == (b"789", 10)
