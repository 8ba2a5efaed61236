"""What all stores behind a network have in common: requests, retries, and what obstore reads.

obstore has the object stores that Lance itself uses. Who writes is each store's own.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, NoReturn, TypeVar

import obstore
from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore, S3Store

from memwal import errors
from memwal.model import StoredFile
from memwal.ports import (
    OBJECT_BYTES_MAX,
    Clock,
    DeleteResult,
    check_folder,
    check_object_path,
    check_object_size,
)
from memwal.store.objects.base import (
    WAITS,
    CountedObjects,
    StoreLimits,
    check_range,
    check_tail_length,
    nanos_of,
    retry,
)
from memwal.store.objects.faults import OBSTORE_KINDS, Fault, KeysThrottled, Meaning, fault_of
from memwal.store.objects.pace import pace_of
from memwal.threads import side_by_side

T = TypeVar("T")
_TAIL_READS_MAX = 4
_TIMEOUT = "10m"  # of an object that keeps coming; one that doesn't has the read timeout
# Stores that this process saw answer ranges from the end wrongly.
_without_suffixes: set[str] = set()
# Stores that answered this process. One that refuses connections from the beginning, or whose name
# is unknown, is not waited for: its address is wrong, or nobody is there.
_answered: set[str] = set()


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


class RemoteObjects(CountedObjects):
    """The Objects port on a bucket or container, and a prefix. Safe to share between threads.

    `_request` is the one place that counts, waits, retries and tells. A library's own retries are
    off: they know nothing of the total deadline, and would multiply with ours. `counts` has every
    request that was sent, retries included; of a listing, its pages.
    """

    page_objects: int
    """The service's bound on a listing's page."""
    _delete_batch_objects = 1
    _deletes_in_flight = 16
    _has_suffixes = True  # ranges from the end
    _kinds: ClassVar[tuple[type[Exception], ...]] = OBSTORE_KINDS
    """Faults: what the store's libraries raise."""

    def __init__(self, uri: str, clock: Clock, limits: StoreLimits) -> None:
        super().__init__(uri)
        _, _, place = uri.partition("://")
        self._bucket, _, prefix = place.partition("/")
        self._below_root = f"{prefix}/" if prefix else ""
        self._clock = clock
        self._limits = limits

    @property
    @abstractmethod
    def store(self) -> str:
        """The endpoint and the bucket or container."""

    @property
    @abstractmethod
    def _obstore(self) -> AzureStore | GCSStore | S3Store:
        """What sends the next request that reads."""

    @abstractmethod
    def _put(self, key: str, data: bytes, *, create: bool) -> None:
        """Write an object, or `create` it where there is none: one request."""

    @abstractmethod
    def _upload(self, path: str, parts: Iterable[bytes], begun: Iterable[bytes]) -> None:
        """Create an object of several parts, which are asked for already: the rest is `begun`."""

    @abstractmethod
    def _delete_keys(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Delete by one request; the code of each key that failed."""

    @abstractmethod
    def _forget(self) -> None:
        """Make what sends requests anew in stores from here on."""

    def _fault_of(self, error: BaseException) -> Fault:
        """What one of the `_kinds` says."""
        return fault_of(error)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object whole, or raise AlreadyExists.

        After a lost reply the retry meets our own object and reports it as existing; the port
        leaves telling the two apart to the caller.
        """
        key = self._key(path)
        self._create("put_if_absent", path, lambda: self._put(key, data, create=True))
        self._count("bytes_written", len(data))

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any."""
        key = self._key(path)
        self._request("put", "put", path, lambda: self._put(key, data, create=False))
        self._count("bytes_written", len(data))

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """Create the object out of its parts, or raise AlreadyExists."""
        asked = iter(parts)
        first, second = next(asked, b""), next(asked, None)
        if second is None:
            self.put_if_absent(path, first)
        else:
            self._upload(path, parts, chain((first, second), asked))

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete, some at a time. What failed is returned, not raised.

        When a request meets the deadline its objects are among the failed, and those that were not
        begun are not tried: the store does not answer. Refused credentials are raised.
        """
        wanted = [check_object_path(path) for path in dict.fromkeys(paths)]
        size = self._delete_batch_objects
        batches = [wanted[at : at + size] for at in range(0, len(wanted), size)]
        gave_up = threading.Event()

        def delete_batch(batch: Sequence[str]) -> Mapping[str, str]:
            return self._delete_batch(batch, gave_up)

        failures = side_by_side(delete_batch, batches, self._deletes_in_flight)
        failed = tuple(item for failure in failures for item in failure.items())
        return DeleteResult(deleted=len(wanted) - len(failed), failed=failed)

    def _delete_batch(self, batch: Sequence[str], gave_up: threading.Event) -> Mapping[str, str]:
        """Delete what one request does; path -> reason of each that failed."""
        if gave_up.is_set():
            return dict.fromkeys(batch, "not tried: an earlier delete failed")
        pending = {self._key(path): path for path in batch}
        failed: dict[str, str] = {}

        def send() -> None:
            nonlocal pending
            codes = self._delete_keys([*pending])
            again = {key for key, code in codes.items() if Fault(text="", code=code).passes}
            failed.update({pending[key]: codes[key] for key in codes if key not in again})
            pending = {key: path for key, path in pending.items() if key in again}
            if again:
                raise KeysThrottled

        try:
            self._request("delete", "delete", batch[0], send)
        except errors.StoreUnavailable as error:
            if error.__cause__ is None or self._fault_of(error.__cause__).passes:
                gave_up.set()
            failed.update(dict.fromkeys(pending.values(), str(error)))
        return failed

    def _create(self, operation: str, path: str, send: Callable[[], object]) -> None:
        """Send what creates an object, or raise AlreadyExists.

        A conflict (409) is also for writes that met, of which perhaps none has won: the object is
        looked up, and where there is none the write is tried again.
        """
        key = self._key(path)

        def create() -> None:
            try:
                send()
            except self._kinds as error:
                status = self._fault_of(error).status
                if status != 412 and (status != 409 or not self._is_there(key)):
                    raise
                raise errors.AlreadyExists(f"{self._address(path)} exists") from None

        self._request("put", operation, path, create)

    def _is_there(self, key: str) -> bool:
        self._count("get")
        try:
            obstore.head(self._obstore, key)
        except FileNotFoundError:
            return False
        return True

    def _request(self, counter: str, operation: str, path: str, send: Callable[[], T]) -> T:
        """Send, and retry while the fault may pass and the limits allow it."""
        request, attempts = f"{operation} {self._address(path)}", 0
        fault: Fault | None = None
        pace = pace_of(self.store, self._clock)
        seconds_max = self._limits.retry_seconds_max
        deadline = self._clock.monotonic_seconds() + seconds_max

        def take_turn() -> None:
            before = wait.fault

            def say(why: str) -> None:
                wait.fault = f"{before}; {why}" if before else why

            try:
                pace.take_turn(self.uri, self._limits.requests_per_second_max, deadline, say)
            except TimeoutError as error:
                raise errors.StoreUnavailable(
                    f"{request}: given up after {seconds_max:.0f} s in a queue: {error}"
                ) from None
            wait.fault = before

        def attempt() -> T:
            nonlocal attempts, fault
            fault = None
            take_turn()
            attempts += 1
            wait.attempts = attempts
            self._count(counter)
            self._count("retries", attempts > 1)
            try:
                answer = send()
            except self._kinds as error:
                fault = self._fault_of(error)
                wait.fault = fault.refusal or fault.cause
                if fault.throttles:
                    pace.slow_down()
                if fault.refusal is not None and self.store in _answered:
                    WAITS.tell(wait)
                raise
            _answered.add(self.store)
            return answer

        def may_pass(_: BaseException) -> bool:
            refused = fault is not None and fault.refusal and self.store not in _answered
            return fault is not None and fault.passes and not refused

        try:
            with WAITS.watch(self.store, request, seconds_max) as wait:
                return retry(
                    attempt,
                    may_pass,
                    self._clock,
                    attempts_max=self._limits.retry_attempts_max,
                    seconds_max=seconds_max,
                    wait_seconds_max=self._limits.retry_wait_seconds_max,
                )
        except self._kinds as error:
            self._give_up(error, request, attempts)

    def _give_up(self, error: Exception, request: str, attempts: int) -> NoReturn:
        explained = self._fault_of(error).as_ours(request, self._uri, attempts)
        if not isinstance(explained, errors.BadCredentials):
            raise explained from error
        self._forget()  # the next store looks for credentials anew
        raise explained from None  # a refusal may quote the credentials

    def _key(self, path: str) -> str:
        return self._below_root + check_object_path(path)

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
                meaning = fault_of(error).meaning
                if meaning is Meaning.BEHIND_END:
                    return b"", start, start
                if meaning not in (Meaning.WHOLE, Meaning.ODD_RANGE):
                    raise
                ignored = meaning is Meaning.WHOLE
                if isinstance(asked, dict) and not ignored:
                    return b"", 0, 0
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

    def _listed(self, folder: str) -> str | None:
        return (self._below_root + folder).removesuffix("/") or None


def _folders_of(page: Sequence[StoredFile], folder: str) -> set[str]:
    """The folders directly below that a page's objects are in."""
    start = len(folder) + 1 if folder else 0
    rests = (file.path[start:] for file in page)
    return {rest.partition("/")[0] for rest in rests if "/" in rest}


def _header(asked: Any) -> str:
    return f"bytes={asked[0]}-{asked[1] - 1}" if isinstance(asked, tuple) else "the end"
