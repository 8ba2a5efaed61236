"""Tables on Azure (Azurite) and what answers like Google's service, from the first row to the last
deleted object; and what the store makes of faults, against a server that answers by script.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from memwal import errors
from memwal.cli.app import app
from memwal.ports import Objects
from memwal.read.output import check_file
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.cloud import CloudObjects
from memwal.store.objects.opening import open_objects, same_place
from memwal.testing import ManualClock
from tests.store.test_s3_faults import Reply, ScriptedServer
from tests.support import garbage_runs as runs
from tests.support.azurite import Azurite
from tests.support.builders import Put, Table
from tests.support.stores import make_address

COLLECT = ("--execute", "--wal", "--retention", "0s", "--grace", "0s", "--allow-short-retention")
SECRET = "bm90LXNob3du"


# ---- tables


def memwal(table: Table, *words: str) -> dict[str, object]:
    """Run a command that has to succeed; its report."""
    command, *rest = words
    options = [f"--storage-option={k}={v}" for k, v in table.options.items()]
    done = CliRunner().invoke(app, [command, table.uri, *rest, *options, "--json"])
    assert done.exit_code == 0, done.stdout
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.integration
@pytest.mark.parametrize("scheme", ["s3", "az", "gs"])
def test_a_table_lives_on_it(request: pytest.FixtureRequest, scheme: str, tmp_path: Path) -> None:
    place = make_address(request, scheme, "a/table")
    table = runs.laid_out(place.uri, options=place.storage_options, generations=2)
    table.flush(table.shards[0], Put([700], 7))
    rows = pa.Table.from_pylist([table.row(800, 8)], schema=table.dataset.schema)
    pq.write_table(rows, tmp_path / "rows.parquet")

    assert memwal(table, "doctor")["outcome"] == "done"
    ingested = memwal(table, "ingest", str(tmp_path / "rows.parquet"), "--shard", table.shards[0])
    assert ingested["outcome"] == "done"
    first = memwal(table, "maintain", *COLLECT)
    assert first["outcome"] == "done"
    memwal(table, "maintain", *COLLECT)
    assert memwal(table, "garbage", *COLLECT)["outcome"] in ("done", "nothing_to_do")
    assert memwal(table, "verify")["outcome"] == "done"
    found = memwal(table, "read", "--columns", "n")
    rows_read = found["tables"][0]["rows"]  # type: ignore[index]
    assert {row["n"] for row in rows_read} >= {7, 8}, found
    left = [file.path for file in table.stores.objects.list("_mem_wal")]
    assert not any("_gen_" in path for path in left), left
    assert memwal(table, "status")["tables"][0]["reclaimable"]["generations"] == 0  # type: ignore[index]


@pytest.mark.integration
def test_an_abfss_address_leads_to_the_same_table(request: pytest.FixtureRequest) -> None:
    place = make_address(request, "az", "a/table")
    place.objects().put("x", b"1")
    container = place.uri.split("/")[2]
    other = f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/a/table"
    options = place.storage_options
    assert open_objects(other, options, ManualClock()).get("x") == b"1"
    assert same_place(other, options) == same_place(place.uri, options)
    assert same_place(place.uri, {**options, "account_name": "b"}) != same_place(place.uri, options)


@pytest.mark.integration
def test_what_is_wrong_on_azure_is_told_as_what_it_is(azurite: Azurite) -> None:
    options, container = azurite.storage_options, azurite.make_container()

    def ask(uri: str, **other: str) -> Callable[[], object]:
        return lambda: open_objects(uri, {**options, **other}, ManualClock()).get("a")

    for call, kind, says in (
        (ask("az://no-such-container/t"), errors.Usage, "no bucket or container 'no-such-cont"),
        (ask(f"az://{container}/t", account_key=SECRET), errors.BadCredentials, "HTTP 403 Auth"),
        (ask(f"az://{container}/t", account_key="not base64"), errors.Usage, "Access Key"),
        (ask(f"az://{container}/t", allow_http="false"), errors.Usage, "allow_http=true"),
        (ask(f"az://{container}/t"), errors.Missing, "does not exist"),
    ):
        with pytest.raises(kind, match=says) as raised:
            call()
        assert type(raised.value) is kind
        assert not any(v in str(raised.value) for v in (SECRET, "not base64", "http://127"))
    with pytest.raises(errors.Usage, match="account_name is missing"):
        open_objects(f"az://{container}/t", {}, ManualClock())


# ---- faults

HEADERS = {"Last-Modified": "Sun, 22 Nov 2026 20:56:26 GMT", "ETag": '"1"'}


def found(body: bytes) -> Reply:
    return Reply(body=body, headers=HEADERS)


def fault(status: int, code: str) -> Reply:
    text = f"<Error><Code>{code}</Code><Message>text of {code}\nmore</Message></Error>"
    return Reply(status=status, body=text.encode())


BUSY = fault(503, "ServerBusy")
CONFLICT = fault(409, "OperationInProgress")
EXISTS = fault(409, "BlobAlreadyExists")
GONE = Reply(status=404)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()


@pytest.fixture(params=["az", "gs"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def open_on(
    server: ScriptedServer,
    scheme: str,
    *replies: Reply,
    clock: ManualClock | None = None,
    limits: StoreLimits | None = None,
) -> Objects:
    server.script += replies
    options = {
        "az": {"account_name": "a", "account_key": SECRET, "azure_endpoint": server.endpoint},
        "gs": {"google_base_url": server.endpoint, "google_storage_token": SECRET},
    }[scheme]
    objects = open_objects(
        f"{scheme}://bucket/some/table",
        {**options, "allow_http": "true", "aws_region": "is for others"},
        clock or ManualClock(),
        limits or StoreLimits(),
    )
    assert isinstance(objects, CloudObjects)
    return objects


@pytest.mark.parametrize(
    "passing",
    [
        BUSY,
        Reply(status=500),
        Reply(status=502, body=b"<html>bad gateway</html>"),
        fault(429, "TooManyRequests"),
        Reply(hang_up=True),
        Reply(body=b"half of it", cut_after_bytes=5, headers=HEADERS),
    ],
)
def test_passing_faults_are_retried_on_the_clock_port(
    server: ScriptedServer, scheme: str, passing: Reply
) -> None:
    clock = ManualClock()
    objects = open_on(server, scheme, passing, passing, found(b"data"), clock=clock)

    assert objects.get("a/b") == b"data"
    assert len(server.requests) == 3
    assert len(clock.slept_seconds) == 2
    assert (objects.counts.get, objects.counts.retries, objects.counts.bytes_read) == (3, 2, 4)


def test_a_read_that_hangs_is_retried(server: ScriptedServer, scheme: str) -> None:
    release = Event()
    objects = open_on(
        server,
        scheme,
        Reply(wait_for=release, hang_up=True),
        found(b"data"),
        limits=StoreLimits(read_timeout_seconds=0.3),
    )
    assert objects.get("a") == b"data"
    release.set()


def test_the_total_deadline_ends_the_retries(server: ScriptedServer, scheme: str) -> None:
    clock = ManualClock()
    limits = StoreLimits(retry_seconds_max=5, retry_attempts_max=1000, retry_wait_seconds_max=2)
    objects = open_on(server, scheme, BUSY, clock=clock, limits=limits)

    with pytest.raises(errors.StoreUnavailable) as gave_up:
        objects.put_if_absent("a/b", b"data")
    assert 3 <= sum(clock.slept_seconds) <= 5
    attempts = len(server.requests)
    for part in ("put_if_absent", "some/table/a/b", f"{attempts} attempts", "HTTP 503 ServerBusy"):
        assert part in str(gave_up.value)


@pytest.mark.parametrize("refused", [EXISTS, fault(412, "ConditionNotMet")])
def test_a_lost_create_is_not_retried(server: ScriptedServer, scheme: str, refused: Reply) -> None:
    objects = open_on(server, scheme, refused, found(b""))

    with pytest.raises(errors.AlreadyExists, match="some/table/a exists"):
        objects.put_if_absent("a", b"data")
    assert [request.method for request in server.requests] == ["PUT", "HEAD"]
    sent = server.requests[0].headers
    assert (sent.get("if-none-match"), sent.get("x-goog-if-generation-match")) in (
        ("*", None),
        (None, "0"),
    )
    assert (objects.counts.put, objects.counts.get, objects.counts.retries) == (1, 1, 0)


def test_creates_that_met_are_retried_where_none_has_won(
    server: ScriptedServer, scheme: str
) -> None:
    created = Reply(status=201, headers={**HEADERS, "x-goog-generation": "1"})
    objects = open_on(server, scheme, CONFLICT, GONE, CONFLICT, GONE, created)

    objects.put_if_absent("a", b"data")
    assert [r.method for r in server.requests] == ["PUT", "HEAD", "PUT", "HEAD", "PUT"]
    assert objects.counts.bytes_written == 4


def test_creates_that_meet_to_the_last_are_no_lost_race(
    server: ScriptedServer, scheme: str
) -> None:
    limits = StoreLimits(retry_attempts_max=2)
    objects = open_on(server, scheme, CONFLICT, GONE, CONFLICT, GONE, limits=limits)

    with pytest.raises(errors.StoreUnavailable, match="gave up after 2 attempts: HTTP 409"):
        objects.put_if_absent("a", b"data")


@pytest.mark.parametrize("refusal", [fault(403, "AuthorizationFailure"), fault(401, "NoAuth")])
def test_refused_credentials_are_named_without_showing_them(
    server: ScriptedServer, scheme: str, refusal: Reply
) -> None:
    objects = open_on(server, scheme, refusal)

    for call in (
        lambda: objects.get("a"),
        lambda: objects.exists("a"),
        lambda: objects.put_if_absent("a", b"x"),
        lambda: objects.put("a", b"x"),
        lambda: [*objects.list("")],
        lambda: objects.list_folders(""),
        lambda: objects.delete(["a"]),
    ):
        with pytest.raises(errors.BadCredentials, match="text of") as refused:
            call()
        assert SECRET not in f"{refused.value!r} {refused.value.__cause__!r} {objects!r}"
    assert objects.counts.retries == 0


def test_a_signature_in_an_address_is_not_shown(server: ScriptedServer) -> None:
    signature = "sv=2026-01-01&sig=NOT-SHOWN"
    server.script += [fault(400, "Odd")]
    objects = open_objects(
        "az://bucket/t",
        {
            "account_name": "a",
            "sas_token": signature,
            "azure_endpoint": server.endpoint,
            "allow_http": "true",
        },
        ManualClock(),
    )
    with pytest.raises(errors.StoreUnavailable, match=r"HTTP 400 Odd: text of Odd$") as failed:
        objects.get("a")
    assert "NOT-SHOWN" in server.requests[0].path
    assert "NOT-SHOWN" not in str(failed.value)


def test_deletes_go_one_by_one_and_tell_which_failed(server: ScriptedServer) -> None:
    objects = open_on(server, "gs", Reply(status=204), fault(412, "Held"), GONE)

    results = [objects.delete([path]) for path in ("a", "b", "c")]
    assert [result.deleted for result in results] == [1, 0, 1]
    ((path, why),) = results[1].failed
    assert path == "b"
    assert "HTTP 412 Held" in why
    assert [r.method for r in server.requests] == ["DELETE"] * 3


def test_a_store_that_does_not_answer_is_asked_for_few_deletes(server: ScriptedServer) -> None:
    objects = open_on(server, "gs", BUSY, limits=StoreLimits(retry_attempts_max=2))

    result = objects.delete([f"a/{number}" for number in range(300)])
    assert result.deleted == 0
    assert "not tried" in result.failed[-1][1]
    assert len(server.requests) < 100


def listing(*keys: str, more: str = "") -> Reply:
    items = "".join(
        f"<Contents><Key>some/table/{key}</Key><Size>1</Size><ETag>1</ETag>"
        "<LastModified>2026-11-22T20:56:26.123Z</LastModified></Contents>"
        for key in keys
    )
    end = f"<NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    return Reply(body=f"<ListBucketResult>{items}{end}</ListBucketResult>".encode())


def test_a_listing_goes_on_where_a_fault_cut_it(server: ScriptedServer) -> None:
    keys = [f"d/{number:05}" for number in range(1500)]
    pages = (listing(*keys[:1000], more="x"), BUSY, listing(*keys[1000:]))
    objects = open_on(server, "gs", *pages)

    files = [*objects.list("d")]
    assert [file.path for file in files] == keys
    assert {file.modified_at_nanos for file in files} == {1795380986123000000}
    assert (objects.counts.list, objects.counts.retries) == (3, 1)
    assert "start-after=some%2Ftable%2Fd%2F00999" in server.requests[2].path


def test_a_port_where_nobody_listens_is_refused_soon(scheme: str) -> None:
    gone = ScriptedServer()
    gone.close()
    limits = StoreLimits(retry_seconds_max=0.5)
    objects = open_on(gone, scheme, BUSY, limits=limits)
    started = time.monotonic()

    with pytest.raises(errors.StoreUnavailable, match="connection refused"):
        objects.get("a")
    assert time.monotonic() - started < 10


def test_a_tail_that_changed_while_it_was_read_is_read_again(server: ScriptedServer) -> None:
    def part(first: int, body: bytes, size: int) -> Reply:
        span = {"Content-Range": f"bytes {first}-{first + len(body) - 1}/{size}"}
        return Reply(status=206, body=body, headers={**HEADERS, **span})

    objects = open_on(
        server, "az", part(0, b"01", 5), fault(416, "InvalidRange"), part(1, b"12", 3)
    )
    assert objects.get_tail("a", 2) == (b"12", 3)


def test_a_store_that_ignores_ranges_is_read_whole(server: ScriptedServer, scheme: str) -> None:
    objects = open_on(server, scheme, found(b"0123456789"))
    assert objects.get_range("a", 2, 4) == b"23"
    assert objects.get_tail("a", 3) == (b"789", 10)


def test_a_range_that_is_answered_with_other_bytes_is_not_read(
    server: ScriptedServer, scheme: str
) -> None:
    other = Reply(status=206, body=b"01", headers={**HEADERS, "Content-Range": "bytes 0-1/10"})
    objects = open_on(server, scheme, other, found(b"0123456789"))
    with pytest.raises(errors.Unsupported, match="nothing can be read from it safely"):
        objects.get_range("a", 2, 4)


def test_a_key_that_is_no_path_is_named(server: ScriptedServer) -> None:
    objects = open_on(server, "gs", listing("d/1", "d//2"))
    with pytest.raises(errors.Unsupported, match="some/table/d//2"):
        [*objects.list("d")]


def test_rows_are_written_to_local_files_only() -> None:
    with pytest.raises(errors.Unsupported, match="local files only"):
        check_file(Path("az://lake/rows.parquet"))
    with pytest.raises(errors.Usage, match="expected a name that ends in"):
        check_file(Path())
