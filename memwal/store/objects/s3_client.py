"""Makes boto3 clients from storage options, shared by a process's stores; reads S3's errors."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.parsers import ResponseParserError
from obstore.store import S3Store

from memwal import errors
from memwal.clock import SystemClock
from memwal.config.namespaces import OPTION as NAMESPACE
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.faults import Fault, Meaning
from memwal.store.objects.remote import settings

BOTO_KINDS = (boto.BotoCoreError, boto.ClientError, ResponseParserError)
"""What `boto_fault_of` knows."""
_CAUSES_MAX = 10
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.SSOError,
    boto.ProfileNotFound,
)
_PASSING = (
    boto.ConnectionError,  # no connection came about
    boto.HTTPClientError,  # resets, timeouts, also while the body is read
    boto.IncompleteReadError,
    ResponseParserError,
)


def boto_fault_of(error: BaseException) -> Fault:
    """What an error of boto3's says."""
    if isinstance(error, boto.ClientError):
        said = error.response.get("Error", {})
        return Fault(
            text=said.get("Message", ""),
            status=int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)),
            code=str(said.get("Code", "")),
        )
    told = Meaning.PASSING if isinstance(error, _PASSING) else Meaning.OTHER
    told = Meaning.DENIED if isinstance(error, _NO_CREDENTIALS) else told
    refusal = _find_refusal(error)
    return Fault(text=f"{refusal}: {error}" if refusal else str(error), told=told, refusal=refusal)


def _find_refusal(error: BaseException) -> str | None:
    """Why no connection came about, where waiting seldom helps; else None."""
    cause: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return "no such host"
        cause = cause and (cause.__cause__ or cause.__context__)
    return None


# Other spellings that object_store (and so pylance) takes for the options read here.
_ALIASES = {"endpoint_url": "endpoint", "token": "session_token"}
_TRUE = {"1", "true", "on", "yes", "y"}
_POOL_CONNECTIONS = 64  # one client serves the threads of several tables
_CLIENTS_MAX = 16
_NO_KEY = "-"
_UNSENT = "GetObject"  # those that read are sent by obstore
_EXPIRY = "expires_at_millis"
_VENDED = {"access_key_id", "secret_access_key", "session_token", _EXPIRY}
_RENEWED_SECONDS_BEFORE = 300.0

_clients: dict[Hashable, Connection] = {}
_clients_lock = threading.Lock()


def canonical(storage_options: Mapping[str, str]) -> Mapping[str, str]:
    """Options under one spelling each: lower case, without `aws_`. Values never show in errors."""
    options: dict[str, str] = {}
    for name, value in storage_options.items():
        short = name.lower().removeprefix("aws_")
        short = _ALIASES.get(short, short)
        if options.setdefault(short, value) != value:
            raise errors.Usage(f"the storage option {name} is given twice, with different values")
    return options


class Place(NamedTuple):
    """Where boto3 sends requests for a bucket, and how it signs them."""

    bucket: str
    address: str
    region: str
    signature: object


class _Kept(Exception):
    """A request that was made and is not sent: its address, region, and signature."""


def place_of(client: Any, bucket: str) -> Place:
    """Where the client would send requests for the bucket: endpoints are by region, options,
    variables and profiles, with the bucket in the path or in the host. Nothing is sent.
    """
    try:
        client.get_object(Bucket=bucket, Key=_NO_KEY)
    except _Kept as kept:
        return Place(bucket, *kept.args)
    raise AssertionError("a request that is only made was sent")


def _keep(request: Any, region_name: str, signature_version: object, **_: object) -> None:
    region = request.context.get("signing", {}).get("region", region_name)
    raise _Kept(request.url.removesuffix(f"/{_NO_KEY}"), region, signature_version)


def _send_at_once(request: Any, **_: object) -> None:
    """Don't ask first whether the body may come: that is a round trip, or a second of silence."""
    del request.headers["Expect"]


class Connection:
    """What sends requests with some options: boto3's client, and a store of obstore's a bucket."""

    def __init__(self, client: Any, session: Any, limits: StoreLimits) -> None:
        self.client = client
        self._session = session
        self._limits = limits
        self._lock = threading.Lock()
        self._readers: dict[Place, tuple[object, S3Store]] = {}

    def reader(self, place: Place) -> S3Store:
        """What reads there with the credentials of this moment. Raises what boto3 says of them."""
        keys = None if place.signature is UNSIGNED else self._find_keys()
        with self._lock:
            if place not in self._readers or self._readers[place][0] != keys:
                self._readers[place] = keys, self._open(place, keys)
            return self._readers[place][1]

    def _find_keys(self) -> Any:
        try:
            found = self._session.get_credentials()
            if found is None:
                raise boto.NoCredentialsError
            return found.get_frozen_credentials()
        except OSError as error:  # of a token's file: no object is missing
            raise boto.CredentialRetrievalError(provider="boto3", error_msg=error) from error

    def _open(self, place: Place, keys: Any) -> S3Store:
        # obstore reads variables as well: what could lead it elsewhere is said here. An endpoint
        # that is virtually hosted is taken as it is, the bucket in it.
        config: Any = {
            "aws_endpoint_url_s3": place.address,
            "virtual_hosted_style_request": True,
            "region": place.region,
            "skip_signature": keys is None,
            "s3_express": place.signature == "v4-s3express",
        }
        more = settings(self._limits, place.address.startswith("http://"))
        if keys is not None:
            given = {"access_key_id": keys.access_key, "secret_access_key": keys.secret_key}
            given |= {"token": keys.token or None, "expires_at": None}
            more["credential_provider"] = lambda: given
        bundle = self._session.get_config_variable("ca_bundle")
        try:
            if bundle and place.address.startswith("https://"):
                more["client_options"]["root_certificate"] = Path(bundle).read_bytes()
            return S3Store(place.bucket, config=config, **more)
        except (OSError, ValueError) as error:
            raise errors.Usage(f"AWS_CA_BUNDLE, or ca_bundle of the profile: {error}") from None


def connect(bucket: str, options: Mapping[str, str], limits: StoreLimits) -> Connection:
    """A connection, shared by the stores of this process that would make the same one.

    Making one takes some 70 ms and 14 MB, and a run opens a store for each table and each unit. One
    client serves all buckets, unless the bucket stands in the endpoint. `options` are canonical
    ones. Raises Usage, and what boto3 says about credentials.
    """
    environment = frozenset(pair for pair in os.environ.items() if pair[0].startswith("AWS_"))
    # A forked process must not go on with its parent's connections.
    lasting = {k: v for k, v in options.items() if k not in _VENDED or not _are_vended(options)}
    named = bucket if _flag(options, "virtual_hosted_style_request") else ""
    key = (os.getpid(), named, frozenset(lasting.items()), limits, environment)
    with _clients_lock:
        if key not in _clients:
            made = _connect(bucket, options, limits)
            while len(_clients) >= _CLIENTS_MAX:
                del _clients[next(iter(_clients))]
            _clients[key] = made
        return _clients[key]


def forget_clients() -> None:
    """Make new clients from here on; open stores keep theirs."""
    with _clients_lock:
        _clients.clear()


def encryption(options: Mapping[str, str]) -> Mapping[str, str]:
    """Arguments of each put, so that it is encrypted as pylance's own are."""
    kind = options.get("server_side_encryption")
    if kind is None:
        return {}
    if kind not in ("AES256", "aws:kms", "aws:kms:dsse"):
        raise errors.Unsupported("MW-O10", f"aws_server_side_encryption={kind} is not supported")
    key = options.get("sse_kms_key_id")
    return {"ServerSideEncryption": kind} | ({"SSEKMSKeyId": key} if key else {})


def _connect(bucket: str, options: Mapping[str, str], limits: StoreLimits) -> Connection:
    if ("access_key_id" in options) != ("secret_access_key" in options):
        raise errors.Usage(
            "the storage options aws_access_key_id and aws_secret_access_key go together"
        )
    core = botocore.session.get_session()
    vended = _are_vended(options)
    given = "access_key_id" in options and not vended
    if vended:
        core._credentials = _renewed(options)  # where botocore's own providers put theirs
    session = boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=options["access_key_id"] if given else None,
        aws_secret_access_key=options["secret_access_key"] if given else None,
        aws_session_token=options.get("session_token") if given else None,
    )
    virtual_hosted = _flag(options, "virtual_hosted_style_request")
    endpoint = _endpoint(options)
    if endpoint is not None and virtual_hosted:
        # object_store wants the bucket in the endpoint then; boto3 puts it there by itself.
        endpoint = endpoint.replace(f"://{bucket}.", "://", 1)
    config = Config(
        connect_timeout=min(limits.connect_timeout_seconds, limits.retry_seconds_max),
        read_timeout=min(limits.read_timeout_seconds, limits.retry_seconds_max),
        max_pool_connections=max(_POOL_CONNECTIONS, limits.deletes_in_flight_max),
        tcp_keepalive=True,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Checksums by default break older S3-compatible stores, which pylance works with.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        signature_version=UNSIGNED if _flag(options, "skip_signature") else None,
        s3={
            "addressing_style": "virtual" if virtual_hosted else "path" if endpoint else "auto",
        },
    )
    region = (
        options.get("region")
        or options.get("default_region")
        or os.environ.get("AWS_REGION")
        or session.region_name
        or "us-east-1"
    )
    try:
        client = session.client("s3", region_name=region, endpoint_url=endpoint, config=config)
    except ValueError:
        raise errors.Usage("the storage option aws_endpoint is not a URL") from None
    if not client.meta.endpoint_url.startswith("https://") and not _flag(options, "allow_http"):
        raise errors.Usage(
            "the endpoint is not https://; set the storage option allow_http=true "
            "if requests may go over the network in the clear"
        )
    client.meta.events.register(f"before-sign.s3.{_UNSENT}", _keep)
    client.meta.events.register("before-sign.s3.PutObject", _send_at_once)
    return Connection(client, core, limits)


def _are_vended(options: Mapping[str, str]) -> bool:
    """Whether a namespace vends credentials that expire."""
    return {NAMESPACE, _EXPIRY, "access_key_id"} <= options.keys()


def _renewed(options: Mapping[str, str]) -> RefreshableCredentials:
    """Credentials that are asked for again before they expire; in the last moments, waited for."""

    def ask() -> dict[str, str]:
        from memwal.store.tables.namespaces import renew  # lance takes long to import

        return _describe(canonical(renew({NAMESPACE: options[NAMESPACE]})))

    left = float(options[_EXPIRY]) / 1000 - SystemClock().now_nanos() / 1e9
    before = max(0.0, min(_RENEWED_SECONDS_BEFORE, left / 3))
    return RefreshableCredentials.create_from_metadata(
        _describe(options),
        ask,
        "namespace",
        advisory_timeout=before,
        mandatory_timeout=before / 5,
    )


def _describe(options: Mapping[str, str]) -> dict[str, str]:
    """Credentials as botocore takes them."""
    if _VENDED - options.keys() - {"session_token"}:
        raise errors.BadCredentials("the namespace vends no credentials for S3 any more")
    moment = datetime.fromtimestamp(float(options[_EXPIRY]) / 1000, UTC)
    return {
        "access_key": options["access_key_id"],
        "secret_key": options["secret_access_key"],
        "token": options.get("session_token", ""),
        "expiry_time": moment.isoformat(),
    }


def _endpoint(options: Mapping[str, str]) -> str | None:
    """The endpoint by option, or AWS_ENDPOINT as object_store reads it.

    None leaves it to boto3, which reads AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_S3 itself.
    """
    endpoint = options.get("endpoint")
    if endpoint is None and not {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} & os.environ.keys():
        endpoint = os.environ.get("AWS_ENDPOINT")
    if endpoint is not None and "@" in endpoint:
        raise errors.Usage("the endpoint holds a user name; give credentials as storage options")
    return endpoint or None


def _flag(options: Mapping[str, str], name: str) -> bool:
    value = options.get(name, os.environ.get(f"AWS_{name.upper()}", ""))
    return value.lower() in _TRUE
