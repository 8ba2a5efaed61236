"""Objects on Google Cloud Storage and Azure, by obstore: the object stores that Lance itself uses.

Storage options and variables so have the names that pylance knows. S3 stays on boto3 (see there).
Local files stay with us: obstore's local store does not sync, stages beside the file, where readers
list, and follows links. Objects are deleted one by one: its batches end at the first error, and do
not say what is gone by then.

obstore gives most errors one class, and tells them apart in the text. The texts quote whole
requests, and a signature may be in an address: no more is shown of them than the store's own
status, code and message.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

import obstore
from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore

from memwal import errors
from memwal.config.namespaces import OPTION
from memwal.model import StoredFile
from memwal.ports import (
    OBJECT_BYTES_MAX,
    PART_BYTES,
    Clock,
    DeleteResult,
    check_folder,
    check_object_path,
    check_object_size,
)
from memwal.store.objects.base import (
    Faults,
    RemoteObjects,
    StoreLimits,
    check_range,
    check_tail_length,
    nanos_of,
)
from memwal.text import count_of
from memwal.threads import side_by_side

_STATUS = re.compile(r"(?:status code: |\(code: )([0-9]{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)|Bulk delete request failed for key .*?: ([^\n]*) \(code")
_ADDRESS = re.compile(r"https?://\S+")
_DEBUG = "\n\nDebug source:"
_REFUSALS = {
    "ConnectionRefused": "connection refused",
    "Name or service not known": "no such host",
    "nodename nor servname": "no such host",
}
_ODD_RANGES = ("ParseContentRange", "NotPartial", "UnexpectedRange")
_BROKEN = {"Timeout": "no answer in time", "Connect": "no connection"}
_REFUSED_CODES = {"AuthenticationFailed", "ExpiredToken", "InvalidAuthenticationInfo"}
_NO_BUCKET_CODES = {"ContainerNotFound", "NoSuchBucket"}
# Where those who gave no credentials are asked for them, on hosts of the cloud alone.
_METADATA = ("169.254.169.254", "metadata.google.internal")


def status_of(error: BaseException) -> int:
    """The HTTP status of a refusal; 0 for what is none."""
    found = _STATUS.search(_text_of(error))
    return int(found[1]) if found else 0


def passes(error: BaseException) -> bool:
    """Whether a fault may be gone at the next try."""
    if is_refusal(error):
        return False
    status = status_of(error)
    if status:
        # 409: writes of one name met, and perhaps none has won.
        return status in (408, 409, 429) or (status >= 500 and status != 501)
    return "HttpError {" in str(error) and not is_plain_http(error)


def throttles(error: BaseException) -> bool:
    """Whether the store asks for fewer requests."""
    return status_of(error) in (429, 503)


def refusal_of(error: BaseException) -> str | None:
    """Why no connection came about, where waiting seldom helps; else None."""
    return next((says for sign, says in _REFUSALS.items() if sign in str(error)), None)


def cause_of(error: BaseException) -> str:
    """What the error says, in one line."""
    text, status = _text_of(error), status_of(error)
    if _is_nobody(text):
        return "no credentials in options or variables, and this host has no identity of its own"
    if status:
        code, message = _CODE.search(text), _MESSAGE.search(text)
        said = (message[1] or message[2]) if message else ""
        return f"HTTP {status} {code[1] if code else ''}: {said}".replace(" :", ":")
    broken = re.search(r"HttpError \{\s*kind: ([A-Za-z]+)", str(error))
    if broken:
        return refusal_of(error) or _BROKEN.get(broken[1], "the connection broke")
    said = _ADDRESS.sub("…", text.partition("\n")[0])
    return re.sub(r"^Generic \w+ error: ", "", said)


def is_refusal(error: BaseException) -> bool:
    """Whether the store, or who gives tokens for it, does not take these credentials."""
    text = _text_of(error)
    return (
        _is_nobody(text)
        or isinstance(error, obs.PermissionDeniedError | obs.UnauthenticatedError)
        or status_of(error) in (401, 403)
        or ("token request" in text and 400 <= status_of(error) < 500 and status_of(error) != 429)
        or _code_of(error) in _REFUSED_CODES
    )


def is_no_bucket(error: BaseException) -> bool:
    """Whether there is no such bucket or container."""
    return _code_of(error) in _NO_BUCKET_CODES


def is_behind_end(error: BaseException) -> bool:
    """Whether the range that was asked for begins behind the object's end."""
    return status_of(error) == 416 or "StartTooLarge" in str(error)


def is_odd_range(error: BaseException) -> bool:
    """Whether what came is not the range that was asked for."""
    return any(
        sign in str(error) for sign in ("ParseContentRange", "NotPartial", "UnexpectedRange")
    )


def is_no_path(error: BaseException) -> bool:
    """Whether a folder holds an object whose key is no path."""
    return "object with invalid path" in _text_of(error)


def is_plain_http(error: BaseException) -> bool:
    """Whether the request was not sent because the connection would have been unencrypted."""
    return "BadScheme" in str(error)


def _is_nobody(text: str) -> bool:
    """Whether no credentials were given, and the host's metadata service has none either."""
    return "token request" in text and any(host in text for host in _METADATA)


def _text_of(error: BaseException) -> str:
    return str(error).partition(_DEBUG)[0]


def _code_of(error: BaseException) -> str:
    found = _CODE.search(_text_of(error))
    return found[1] if found else ""


CLOUD_FAULTS = Faults(
    kinds=(obs.BaseError, FileNotFoundError),
    passes=passes,
    refusal_of=refusal_of,
    cause_of=cause_of,
    throttles=throttles,
)


# What one request lists, by the services' own bounds.
_PAGE_OBJECTS = {"gs": 1000, "az": 5000, "abfss": 5000}
_DELETES_IN_FLIGHT_MAX = 16
_TAIL_READS_MAX = 3
_PARTS_MAX = 2  # of one upload on the way, all in memory
_TIMEOUT = "10m"  # of an object that keeps coming; one that doesn't has the read timeout
_TRUE = {"1", "true", "on", "yes", "y"}
# Variables that options may come from, instead of the command line.
_VARIABLES = ("AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# An option of pylance's own, which obstore does not know.
_TOKEN = "google_storage_token"


class CloudObjects(RemoteObjects):
    """The Objects port on a bucket or container, and a prefix. Safe to share between threads.

    `counts` has every request that was sent, retries included; of a listing, its pages.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        super().__init__(uri, clock, limits, CLOUD_FAULTS)
        self._scheme = uri.partition("://")[0]
        self._environment = frozenset(
            pair for pair in os.environ.items() if pair[0].upper().startswith(_VARIABLES)
        )
        self._choose: Callable[[], Mapping[str, str]] = lambda: storage_options
        if OPTION in storage_options:
            from memwal.store.tables.namespaces import Renewed  # lance takes long to import

            self._choose = Renewed(storage_options, clock).now
        self._store = _name_store(self._client)

    @property
    def _client(self) -> AzureStore | GCSStore:
        root, options = f"{self._scheme}://{self._bucket}", frozenset(self._choose().items())
        return _connect(root, options, self._limits, self._environment)

    @property
    def store(self) -> str:
        """The endpoint and the bucket or container."""
        return self._store

    @property
    def page_objects(self) -> int:
        """The service's bound on a listing's page."""
        return _PAGE_OBJECTS[self._scheme]

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every object below the folder `prefix`, page by page as it is read.

        Raises Unsupported where a key is no path (`a//b`), as Lance does: the library lists none.
        """
        return self._walk(check_folder(prefix))

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted.

        What one page of objects does not tell is asked by a listing of folders.
        """
        folder = check_folder(prefix)
        below = self._listed(folder)
        page = next(self._pages(folder))
        keys = [item["path"] for item in page]
        if len(page) == self.page_objects:
            found = self._request(
                "list", "list", folder, lambda: obstore.list_with_delimiter(self._client, below)
            )
            keys = [f"{key}/" for key in found["common_prefixes"]]
        start = len(below) + 1 if below else 0
        return sorted({key[start:].partition("/")[0] for key in keys if "/" in key[start:]})

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises Missing; Corruption when it is larger."""
        return self._fetch("get", path, None, size_bytes_max)[0]

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the object is shorter."""
        check_range(start, end)
        # HTTP has no empty range; then one byte is asked for, for the object's size.
        asked = (start, end) if start < end else (0, 1)
        data, _, size_bytes = self._fetch("get_range", path, asked)
        if size_bytes < end:
            raise errors.Corruption(
                "MW-O02",
                f"{self._address(path)} ends before byte {end}; "
                f"bytes [{start}, {end}) were expected",
            )
        return data if start < end else b""

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the object's size. Raises Missing."""
        check_tail_length(size_bytes_max)
        # Azure has no ranges from the end. What is no longer than was asked for comes whole.
        asked: Any = {"suffix": size_bytes_max} if self._scheme == "gs" else (0, size_bytes_max)
        for _ in range(_TAIL_READS_MAX):
            data, end, size_bytes = self._fetch("get_tail", path, asked)
            if end == size_bytes:
                return data, size_bytes
            asked = (max(0, size_bytes - size_bytes_max), size_bytes)
        raise errors.StoreUnavailable(f"{self._address(path)} changed each time it was read")

    def exists(self, path: str) -> bool:
        """Whether the object exists.

        Asked for a byte: the reply to a HEAD has no body, so a missing container could not be told
        from a missing object.
        """
        try:
            self._fetch("exists", path, (0, 1))
        except errors.Missing:
            return False
        return True

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object whole, or raise AlreadyExists.

        After a lost reply the retry meets our own object and reports it as existing; the port
        leaves telling the two apart to the caller. A refusal alone does not say that the object is
        there (409 is also for writes that met, of which perhaps none has won): it is looked up,
        and where there is none the write is tried again.
        """
        key = self._key(path)

        def send() -> None:
            try:
                obstore.put(self._client, key, data, mode="create")
            except obs.AlreadyExistsError:
                self._count("get")
                try:
                    obstore.head(self._client, key)
                except FileNotFoundError:
                    raise CreatesMet from None
                raise errors.AlreadyExists(f"{self._address(path)} exists") from None
            self._count("bytes_written", len(data))

        self._request("put", "put_if_absent", path, send)

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any."""
        key = self._key(path)

        def send() -> None:
            obstore.put(self._client, key, data, use_multipart=False)
            self._count("bytes_written", len(data))

        self._request("put", "put", path, send)

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """Create the object out of its parts; AlreadyExists if it is there when that begins.

        The library's uploads know no condition. A fault begins the upload anew.
        """
        asked = iter(parts)
        first, second = next(asked, b""), next(asked, None)
        if second is None:
            self.put_if_absent(path, first)
            return
        if self.exists(path):
            raise errors.AlreadyExists(f"{self._address(path)} exists")
        key = self._key(path)
        again: Iterable[bytes] = chain((first, second), asked)

        def send() -> None:
            nonlocal again
            raised: list[BaseException] = []
            sent, now, again = 0, again, parts

            def read() -> Iterator[bytes]:
                nonlocal sent
                try:
                    for part in now:
                        self._count("put")
                        sent += len(part)
                        yield part
                except BaseException as error:
                    raised.append(error)
                    raise

            try:
                obstore.put(
                    self._client, key, read(), chunk_size=PART_BYTES, max_concurrency=_PARTS_MAX
                )
            except Exception:
                for error in raised:
                    raise error from None
                raise
            self._count("bytes_written", sent)

        self._request("put", "put_parts", path, send)

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete one by one, some at a time. What failed is returned, not raised.

        When one meets the deadline those that were not begun are not tried: the store does not
        answer. Refused credentials are raised.
        """
        wanted = [check_object_path(path) for path in dict.fromkeys(paths)]
        gave_up = threading.Event()

        def delete_one(path: str) -> str | None:
            if gave_up.is_set():
                return "not tried: an earlier delete failed"
            key = self._key(path)
            try:
                self._request("delete", "delete", path, lambda: obstore.delete(self._client, key))
            except errors.Missing:
                pass
            except errors.StoreUnavailable as error:
                if error.__cause__ is not None and passes(error.__cause__):
                    gave_up.set()
                return str(error)
            return None

        reasons = side_by_side(delete_one, wanted, _DELETES_IN_FLIGHT_MAX)
        failed = tuple((p, why) for p, why in zip(wanted, reasons, strict=True) if why is not None)
        return DeleteResult(deleted=len(wanted) - len(failed), failed=failed)

    def _walk(self, folder: str) -> Iterator[StoredFile]:
        for page in self._pages(folder):
            for item in page:
                yield StoredFile(
                    path=item["path"][len(self._below_root) :],
                    size_bytes=item["size"],
                    modified_at_nanos=nanos_of(item["last_modified"]),
                    etag=item["e_tag"] or "",
                )

    def _pages(self, folder: str) -> Iterator[Sequence[Any]]:
        """At least one page. A fault loses none: the listing goes on behind the last key."""
        stream: Any = None
        last: str | None = None

        def send() -> Sequence[Any]:
            nonlocal stream
            if stream is None:
                stream = obstore.list(
                    self._client, self._listed(folder), offset=last, chunk_size=self.page_objects
                )
            try:
                return next(stream, ())
            except Exception:
                stream = None
                raise

        while True:
            page = self._request("list", "list", folder, send)
            yield page
            if len(page) < self.page_objects:
                return
            last = page[-1]["path"]

    def _fetch(
        self, operation: str, path: str, asked: Any, size_bytes_max: int | None = None
    ) -> tuple[bytes, int, int]:
        """What `asked` (a range) gives: data, where it ends, and the object's size.

        A range that begins behind the end gives nothing, and a size that is no larger than that; so
        does any range of an empty object.
        """
        key = self._key(path)

        def send() -> tuple[bytes, int, int]:
            try:
                reply = obstore.get(self._client, key, options={"range": asked} if asked else None)
                size_bytes = reply.meta["size"]
                if size_bytes_max is not None:
                    check_object_size(self._address(path), size_bytes, size_bytes_max)
                return bytes(reply.bytes()), reply.range[1], size_bytes
            except obs.BaseError as error:
                if is_behind_end(error):
                    return b"", 0, asked[0] if isinstance(asked, tuple) else 0
                if not is_odd_range(error):
                    raise
            # Of an empty object some answer that, others oddly.
            self._count("get")
            if obstore.get(self._client, key).meta["size"]:
                raise errors.Unsupported(
                    "MW-O03",
                    f"{self._address(path)}: the store answers a request for a range with other "
                    "bytes; nothing can be read from it safely",
                )
            return b"", 0, 0

        received = self._request("get", operation, path, send)
        self._count("bytes_read", len(received[0]))
        return received

    def _explain(self, error: Exception, request: str, attempts: int) -> errors.MemWalError:
        status, cause = status_of(error), cause_of(error)
        if is_refusal(error):
            _connect.cache_clear()  # the next store looks for credentials anew
            return errors.BadCredentials(f"{request}: access refused: {cause}")
        if is_no_bucket(error):
            return errors.Usage(f"{self._uri}: there is no bucket or container {self._bucket!r}")
        if isinstance(error, FileNotFoundError) or status == 404:
            return errors.Missing(f"{request}: does not exist")
        if is_plain_http(error):
            return errors.Usage(
                f"{self._uri}: the endpoint is not https://; set the storage option "
                "allow_http=true if requests may go over the network in the clear"
            )
        if is_no_path(error):
            return errors.Unsupported(
                "MW-O04", f"{request}: {cause}; it can be listed once that is gone"
            )
        if status == 501 or isinstance(error, obs.NotSupportedError):
            return errors.Unsupported("MW-O05", f"{request}: the store cannot do this: {cause}")
        tries = count_of(attempts, "attempt")
        return errors.Unreachable(f"{request}: gave up after {tries}: {cause}")

    def _listed(self, folder: str) -> str | None:
        return (self._below_root + folder).removesuffix("/") or None


class CreatesMet(obs.BaseError):
    """A create was refused, and yet there is no object."""

    def __str__(self) -> str:
        return "Server returned non-2xx status code: 409: writes of one name met, and none has won"


@lru_cache(maxsize=16)
def _connect(
    root: str,
    options: frozenset[tuple[str, str]],
    limits: StoreLimits,
    environment: frozenset[tuple[str, str]],
) -> AzureStore | GCSStore:
    """A client, shared by the stores of this process that would make the same one.

    obstore reads the environment itself. Options that it does not know are pylance's, or for other
    stores. Raises Usage, which shows no value.
    """
    given: Any = {name.lower(): value for name, value in options}
    if len(given) < len(options):
        raise errors.Usage(f"{root}: a storage option is given twice, with different values")
    token = given.pop(_TOKEN, None) or dict(environment).get(_TOKEN.upper())
    settings: Any = {
        "client_options": {
            "connect_timeout": f"{min(limits.connect_timeout_seconds, limits.retry_seconds_max)}s",
            "read_timeout": f"{min(limits.read_timeout_seconds, limits.retry_seconds_max)}s",
            "timeout": _TIMEOUT,
            "allow_http": given.pop("allow_http", "").lower() in _TRUE,
        },
        "retry_config": {"max_retries": 0},
    }
    if root.startswith("gs://") and token:
        settings["credential_provider"] = lambda: {"token": token, "expires_at": None}
    kind = GCSStore if root.startswith("gs://") else AzureStore
    while True:
        try:
            return kind.from_url(root, config=given, **settings)
        except obs.UnknownConfigurationKeyError as error:
            unknown = re.search(r"key: '([^']*)'", str(error))
            if unknown is None or given.pop(unknown[1], None) is None:
                raise errors.Usage(f"{root}: the storage options are not understood") from None
        except (obs.BaseError, ValueError) as error:
            text = cause_of(error)
            for value in given.values():
                text = text.replace(value, "***")
            if "Account must" in text:
                text = "account_name is missing"
            raise errors.Usage(f"{root}: the storage options do not lead to it: {text}") from None


def _name_store(client: AzureStore | GCSStore) -> str:
    config: Mapping[str, Any] = client.config
    if isinstance(client, GCSStore):
        return f"{config.get('base_url', 'https://storage.googleapis.com')}/{config.get('bucket')}"
    account = config.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    endpoint = config.get("endpoint") or os.environ.get("AZURE_STORAGE_ENDPOINT")
    endpoint = endpoint or f"https://{account}.blob.core.windows.net"
    return f"{endpoint}/{config.get('container_name')}"
