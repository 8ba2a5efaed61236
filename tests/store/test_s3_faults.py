"""What S3Objects alone does: uploads, batches of deletes, odd ranges and listings, its options."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from memwal import errors
from memwal.ports import Objects
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.opening import open_objects
from memwal.testing import ManualClock
from tests.support.scripted_server import (
    SECRETS,
    SLOW_DOWN,
    Reply,
    Request,
    ScriptedServer,
    fault,
    listing,
    part,
)
from tests.support.scripted_server import scripted as scripted
from tests.support.scripted_server import server as server

pytestmark = pytest.mark.integration

URI = "s3://bucket/some/table"


def test_a_put_sends_its_body_without_asking_first(server: ScriptedServer) -> None:
    server.script = [Reply()]
    objects = server.open()
    objects.put("a", b"x")
    objects.put_if_absent("b", b"y")
    assert [(r.body, r.headers.get("expect")) for r in server.requests] == [
        (b"x", None),
        (b"y", None),
    ]


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
    # A client of its own remembers the region.
    replies = (elsewhere, elsewhere, listing(), Reply(body=b"data"))
    objects = server.open(*replies, unheard_of="x")

    assert [objects.get("a"), objects.get("b")] == [b"data"] * 2
    regions = [r.headers["authorization"].split("/")[2] for r in server.requests]
    assert regions == ["us-east-1"] * 2 + ["eu-west-7"] * 3


def test_a_region_that_is_not_found_is_asked_for(server: ScriptedServer) -> None:
    nowhere = replace(fault(301, "PermanentRedirect"), headers={"x-amz-bucket-region": "us-east-1"})
    objects = server.open(nowhere)

    for call in (lambda: objects.get("a"), lambda: [*objects.list("")]):
        with pytest.raises(errors.Usage, match="is the storage option aws_region right"):
            call()


def use_profile(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Let boto3 find keys by a profile: it shows a token, the returned file, and is told them."""
    token, config = folder / "token", folder / "config"
    token.write_text("a token")
    lines = (
        "[profile lake]",
        "role_arn = arn:aws:iam::1:role/r",
        f"web_identity_token_file = {token}",
    )
    config.write_text("\n".join(lines))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "lake")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-other-keys")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    return token


def keys(number: int, minutes: int) -> Reply:
    """Keys that expire then."""
    until = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
    told = {"AccessKeyId": f"key-{number}", "SecretAccessKey": "s", "Expiration": until}
    told["SessionToken"] = f"token-{number}"
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in told.items())
    result = "AssumeRoleWithWebIdentityResult"
    return Reply(body=f"<R><{result}><Credentials>{inner}</Credentials></{result}></R>".encode())


def test_reads_are_signed_with_what_a_profile_tells_and_with_what_comes_after(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_profile(server, monkeypatch, tmp_path)
    server.script = [keys(0, 1), Reply(body=b"data"), keys(1, 100), listing()]
    options = {"endpoint": server.endpoint, "allow_http": "true"}
    objects = open_objects(URI, options, ManualClock())

    objects.get("a")
    [*objects.list("")]
    told = [
        (r.headers["authorization"], r.headers["x-amz-security-token"])
        for r in server.requests
        if r.method == "GET"
    ]
    assert [token for _, token in told] == ["token-0", "token-1"]
    assert ["key-0/" in told[0][0], "key-1/" in told[1][0]] == [True, True]


def test_keys_that_can_t_be_renewed_are_no_missing_object(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = use_profile(server, monkeypatch, tmp_path)
    options = {"endpoint": server.endpoint, "allow_http": "true"}
    objects = open_objects(URI, options, ManualClock())
    token.unlink()

    with pytest.raises(errors.BadCredentials, match="No such file"):
        objects.exists("a")
    assert server.requests == []


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Files with a server's certificate, and with its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now, certificate = datetime.now(UTC), folder / "certificate.pem"
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=2))
    signed = made.add_extension(address, critical=True).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    certificate.write_bytes(signed.public_bytes(pem))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    return certificate, folder / "key.pem"


def test_reads_trust_the_authorities_that_a_variable_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate, key = make_certificate(tmp_path)
    server = ScriptedServer()
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
    server.close()


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
