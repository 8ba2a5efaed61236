"""What our object stores read by obstore, the object stores that Lance itself uses.

obstore gives most errors one class, and tells them apart in the text. The texts quote whole
requests, and a signature may be in an address: no more is shown of them than the store's own
status, code and message.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import obstore
from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore, S3Store

from memwal import errors
from memwal.model import StoredFile
from memwal.ports import OBJECT_BYTES_MAX, check_folder, check_object_size
from memwal.store.objects.base import (
    Faults,
    RemoteObjects,
    StoreLimits,
    check_range,
    check_tail_length,
    nanos_of,
)
from memwal.text import count_of

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
_ODD_RANGES = ("ParseContentRange", "NoContentRange", "NotPartial", "UnexpectedRange")
_BROKEN = {"Timeout": "no answer in time", "Connect": "no connection"}
REFUSED_CODES = {"AuthenticationFailed", "InvalidAuthenticationInfo", "ExpiredToken"}
REFUSED_CODES |= {"ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"}
WRONG_REGION_CODES = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
THROTTLE_CODES = {"SlowDown", "ServiceUnavailable", "Throttling", "ThrottlingException"}
THROTTLE_CODES |= {"TooManyRequests", "RequestLimitExceeded"}
TRANSIENT_CODES = {"RequestTimeout", "InternalError"} | THROTTLE_CODES
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
        return (
            status in (408, 409, 429)
            or (status >= 500 and status != 501)
            or _code_of(error) in TRANSIENT_CODES
        )
    broken = "HttpError {" in str(error) or "invalid list response" in str(error)
    return broken and not is_plain_http(error)


def throttles(error: BaseException) -> bool:
    """Whether the store asks for fewer requests."""
    return status_of(error) in (429, 503) or _code_of(error) in THROTTLE_CODES


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
        or _code_of(error) in REFUSED_CODES
    )


def is_no_bucket(error: BaseException) -> bool:
    """Whether there is no such bucket or container."""
    return _code_of(error) in _NO_BUCKET_CODES


def is_behind_end(error: BaseException) -> bool:
    """Whether the range that was asked for begins behind the object's end."""
    return status_of(error) == 416 or "StartTooLarge" in str(error)


def is_whole(error: BaseException) -> bool:
    """Whether the store did not look at the range that was asked for, and began to send it all."""
    return "NotPartial" in str(error)


def is_odd_range(error: BaseException) -> bool:
    """Whether what came is not the range that was asked for."""
    return any(sign in str(error) for sign in _ODD_RANGES)


def is_wrong_region(error: BaseException) -> bool:
    """Whether the bucket is in another region of S3."""
    return "redirect without LOCATION" in str(error) or _code_of(error) in WRONG_REGION_CODES


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


READ_FAULTS = Faults(
    kinds=(obs.BaseError, FileNotFoundError),
    passes=passes,
    refusal_of=refusal_of,
    cause_of=cause_of,
    throttles=throttles,
)


_TAIL_READS_MAX = 4
_TIMEOUT = "10m"  # of an object that keeps coming; one that doesn't has the read timeout
# Stores that this process saw answer ranges from the end wrongly.
_without_suffixes: set[str] = set()


def settings(limits: StoreLimits, allow_http: bool) -> dict[str, Any]:
    """How a store of obstore's is asked: by our limits, and without retries of its own."""
    return {
        "client_options": {
            "connect_timeout": f"{min(limits.connect_timeout_seconds, limits.retry_seconds_max)}s",
            "read_timeout": f"{min(limits.read_timeout_seconds, limits.retry_seconds_max)}s",
            "timeout": _TIMEOUT,
            "allow_http": allow_http,
        },
        "retry_config": {"max_retries": 0},
    }


class ReadObjects(RemoteObjects):
    """The reading half of the Objects port, on a bucket or container, and a prefix.

    `counts` has every request that was sent, retries included; of a listing, its pages.
    """

    # Azure has no ranges from the end.
    _has_suffixes = True

    @property
    @abstractmethod
    def _obstore(self) -> AzureStore | GCSStore | S3Store:
        """What sends the next request."""

    @property
    @abstractmethod
    def page_objects(self) -> int:
        """The service's bound on a listing's page."""

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every object below the folder `prefix`, page by page as it is read.

        Raises Unsupported where a key is no path (`a//b`), as Lance does: the library lists none.
        """
        return chain.from_iterable(page for page, _ in self._pages(check_folder(prefix)))

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted.

        What one page of objects does not tell is asked by a listing of folders. Some servers leave
        folders out of it, and say nothing; one that lacks what the page showed is not believed.
        """
        folder = check_folder(prefix)
        page, more = next(self._pages(folder))
        names = _folders_of(page, folder)
        if more:
            listed = self._list_names(folder)
            names = listed if names <= listed else self._walk_names(folder)
        return sorted(names)

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises Missing; Corruption when it is larger."""
        return self._fetch("get", path, None, size_bytes_max)[0]

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the object is shorter."""
        check_range(start, end)
        # HTTP has no empty range; then one byte is asked for, for the object's size.
        asked = (start, end) if start < end else (0, 1)
        data, first, size_bytes = self._fetch("get_range", path, asked)
        if size_bytes < end:
            raise errors.Corruption(
                "MW-O02",
                f"{self._address(path)} ends before byte {end}; "
                f"bytes [{start}, {end}) were expected",
            )
        return data[start - first : end - first] if start < end else b""

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the object's size. Raises Missing."""
        check_tail_length(size_bytes_max)
        from_start = (0, size_bytes_max)  # what is no longer than that comes whole
        believed = self._has_suffixes and self.store not in _without_suffixes
        asked: Any = {"suffix": size_bytes_max} if believed else from_start
        for again in range(_TAIL_READS_MAX):
            data, first, size_bytes = self._fetch("get_tail", path, asked)
            if believed and again and size_bytes:
                _without_suffixes.add(self.store)
            whole = first + len(data) == size_bytes and len(data) >= min(size_bytes, size_bytes_max)
            if whole and (data or asked == from_start):
                return data[-size_bytes_max:], size_bytes
            # Some servers count a range from the end from the start, or satisfy none, or none that
            # is longer than the object. By offsets they answer right, first for the size.
            start = max(0, size_bytes - size_bytes_max)
            asked = (start, start + size_bytes_max)
        raise errors.StoreUnavailable(f"{self._address(path)} changed each time it was read")

    def exists(self, path: str) -> bool:
        """Whether the object exists.

        Asked for a byte: the reply to a HEAD has no body, so a missing bucket or an expired token
        could not be told from a missing object.
        """
        try:
            self._fetch("exists", path, (0, 1))
        except errors.Missing:
            return False
        return True

    def _pages(
        self, folder: str, last: str | None = None
    ) -> Iterator[tuple[Sequence[StoredFile], bool]]:
        """At least one page, and whether there are more. A fault loses none: the listing goes on
        behind the last key.
        """
        stream: Any = None

        def send() -> Sequence[Any]:
            nonlocal stream
            if stream is None:
                stream = obstore.list(
                    self._obstore, self._listed(folder), offset=last, chunk_size=self.page_objects
                )
            try:
                return next(stream, ())
            except Exception:
                stream = None
                raise

        while True:
            page = self._request("list", "list", folder, send)
            more = len(page) == self.page_objects
            yield [self._describe(item) for item in page], more
            if not more:
                return
            last = page[-1]["path"]

    def _describe(self, item: Any) -> StoredFile:
        return StoredFile(
            path=item["path"][len(self._below_root) :],
            size_bytes=item["size"],
            modified_at_nanos=nanos_of(item["last_modified"]),
            etag=item["e_tag"] or "",
        )

    def _walk_names(self, folder: str) -> set[str]:
        """The folders that the objects are in."""
        return {name for page, _ in self._pages(folder) for name in _folders_of(page, folder)}

    def _list_names(self, folder: str) -> set[str]:
        """The folders that a listing of folders has."""
        listed = self._listed(folder)
        found = self._request(
            "list", "list", folder, lambda: obstore.list_with_delimiter(self._obstore, listed)
        )
        return {key.rpartition("/")[2] for key in found["common_prefixes"]}

    def _fetch(
        self, operation: str, path: str, asked: Any, size_bytes_max: int | None = None
    ) -> tuple[bytes, int, int]:
        """What `asked` (a range) gives: data, where it begins, and the object's size.

        A server may ignore the range and send everything. A range that begins behind the end
        gives nothing, and a size that is no larger than that; so does any range of an empty object,
        and one from the end that is answered with other bytes.
        """
        key = self._key(path)

        def send() -> tuple[bytes, int, int]:
            try:
                reply = obstore.get(self._obstore, key, options={"range": asked} if asked else None)
                size_bytes = reply.meta["size"]
                if size_bytes_max is not None:
                    check_object_size(self._address(path), size_bytes, size_bytes_max)
                return bytes(reply.bytes()), reply.range[0], size_bytes
            except obs.BaseError as error:
                start = asked[0] if isinstance(asked, tuple) else 0
                if is_behind_end(error):
                    return b"", start, start
                if not is_odd_range(error):
                    raise
                if isinstance(asked, dict) and not is_whole(error):
                    return b"", 0, 0
                ignored = is_whole(error)
            # Of an empty object some answer that, others oddly.
            self._count("get")
            reply = obstore.get(self._obstore, key)
            if reply.meta["size"] and not ignored:
                raise errors.Unsupported(
                    "MW-O03",
                    f"{self._address(path)}: the store answers a request for {_header(asked)} with "
                    "other bytes; nothing can be read from it safely",
                )
            return bytes(reply.bytes()), 0, reply.meta["size"]

        received = self._request("get", operation, path, send)
        self._count("bytes_read", len(received[0]))
        return received

    def _explain(self, error: Exception, request: str, attempts: int) -> errors.MemWalError:
        status, cause = status_of(error), cause_of(error)
        if is_refusal(error):
            self._forget()  # the next store looks for credentials anew
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

    @abstractmethod
    def _forget(self) -> None:
        """Make what sends requests anew in stores from here on."""

    def _listed(self, folder: str) -> str | None:
        return (self._below_root + folder).removesuffix("/") or None


def _folders_of(page: Sequence[StoredFile], folder: str) -> set[str]:
    """The folders directly below that a page's objects are in."""
    start = len(folder) + 1 if folder else 0
    rests = (file.path[start:] for file in page)
    return {rest.partition("/")[0] for rest in rests if "/" in rest}


def _header(asked: Any) -> str:
    return f"bytes={asked[0]}-{asked[1] - 1}" if isinstance(asked, tuple) else "the end"
