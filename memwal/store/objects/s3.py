"""Objects on S3 and what speaks its protocol. With `s3_client` all that knows boto3.

It stays beside obstore, which speaks S3 too: boto3 finds credentials wherever AWS's own tools do
(profiles, SSO, processes), tells errors by their codes, and says of a batch delete which objects
failed, where obstore ends at the first.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Any

from botocore import exceptions as boto

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
    RemoteObjects,
    StoreLimits,
    check_range,
    check_tail_length,
    nanos_of,
)
from memwal.store.objects.s3_client import (
    NO_CREDENTIALS,
    REFUSED_CODES,
    S3_FAULTS,
    WRONG_REGION_CODES,
    KeysThrottled,
    canonical,
    cause_of,
    code_of,
    encryption,
    forget_clients,
    passes,
    shared_client,
    status_of,
)
from memwal.text import count_of

_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_PAGE_OBJECTS = 1000
# Stores that this process saw answer `bytes=-N` wrongly.
_without_suffixes: set[str] = set()


class S3Objects(RemoteObjects):
    """The Objects port on a bucket and prefix. Safe to share between threads.

    `counts` has every request that was sent, retries included.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        super().__init__(uri, clock, limits, S3_FAULTS)
        options = canonical(storage_options)
        self._put_options = encryption(options)
        self._told: str | None = None
        try:
            self._client = shared_client(self._bucket, options, limits)
        except NO_CREDENTIALS as error:
            raise errors.BadCredentials(f"{uri}: {cause_of(error)}") from error

    @property
    def store(self) -> str:
        """The endpoint and the bucket."""
        return f"{self._client.meta.endpoint_url}/{self._bucket}"

    @property
    def told_nanos(self) -> int | None:
        """The time in the reply to the last put."""
        try:
            return nanos_of(parsedate_to_datetime(self._told or ""))
        except ValueError:
            return None

    @property
    def page_objects(self) -> int:
        """S3's bound on a listing's page."""
        return _PAGE_OBJECTS

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every object below the folder `prefix`, page by page as it is read.

        Keys that are no valid relative path are left out: nothing could be done with them.
        """
        return self._walk(self._key_prefix(prefix))

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted.

        What one page of objects does not tell is asked by a listing of folders. Some servers leave
        folders out of it, and say nothing; one that lacks what the page showed is not believed.
        """
        below = self._key_prefix(prefix)
        page = next(self._pages(below))
        names = _folders_of(page, below)
        if page.get("IsTruncated"):
            listed = {
                folder["Prefix"][len(below) : -1]
                for page in self._pages(below, Delimiter="/")
                for folder in page.get("CommonPrefixes", ())
            }
            if not names <= listed:
                listed = {name for page in self._pages(below) for name in _folders_of(page, below)}
            names = listed
        return sorted(name for name in names if _is_path(name))

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises Missing; Corruption when it is larger."""
        data, _, _ = self._fetch("get", path, None, size_bytes_max)
        return data

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the object is shorter."""
        check_range(start, end)
        # HTTP has no empty range; then one byte is asked for, for the object's size.
        asked = f"bytes={start}-{end - 1}" if start < end else "bytes=0-0"
        data, first, size_bytes = self._fetch("get_range", path, asked)
        if size_bytes < end:
            raise errors.Corruption(
                "MW-O02",
                f"{self._address(path)} ends before byte {end}; "
                f"bytes [{start}, {end}) were expected",
            )
        if start == end:
            return b""
        if not first <= start < end <= first + len(data):
            raise self._wrong_bytes(path, asked)
        return data[start - first : end - first]

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the object's size. Raises Missing."""
        check_tail_length(size_bytes_max)
        believed = self.store not in _without_suffixes
        asked = f"bytes=-{size_bytes_max}" if believed else f"bytes=0-{size_bytes_max - 1}"
        data, first, size_bytes = self._fetch("get_tail", path, asked)
        # Some servers count such a range from the start, or satisfy none, or none that is longer
        # than the object. By offsets they answer right: first for the size, where that isn't known.
        for _ in range(2):
            if _is_tail(data, first, size_bytes, size_bytes_max):
                break
            start = max(0, size_bytes - size_bytes_max)
            asked = f"bytes={start}-{start + size_bytes_max - 1}"
            data, first, size_bytes = self._fetch("get_tail", path, asked)
            if size_bytes == 0:
                return b"", 0
            _without_suffixes.add(self.store)
        if not _is_tail(data, first, size_bytes, size_bytes_max):
            raise self._wrong_bytes(path, asked)
        return data[-size_bytes_max:], size_bytes

    def exists(self, path: str) -> bool:
        """Whether the object exists.

        Asked with a one-byte GET: the reply to a HEAD has no body, so a missing bucket or an
        expired token could not be told from a missing object.
        """
        try:
            self._fetch("exists", path, "bytes=0-0")
        except errors.Missing:
            return False
        return True

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object whole, or raise AlreadyExists.

        After a lost reply the retry meets our own object and reports it as existing; the port
        leaves telling the two apart to the caller. A conflict (409) is retried as well: of writes
        that met, perhaps none has won.
        """
        key = self._key(path)
        exists = errors.AlreadyExists(f"{self._address(path)} exists")

        def send() -> None:
            try:
                self._put(key, data, IfNoneMatch="*")
            except boto.ClientError as error:
                if status_of(error) == 412:
                    raise exists from None
                raise

        try:
            self._request("put", "put_if_absent", path, send)
        except errors.StoreUnavailable as error:
            if status_of(error.__cause__) == 409 and self.exists(path):
                raise exists from None
            raise

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any."""
        key = self._key(path)
        self._request("put", "put", path, lambda: self._put(key, data))

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """Create the object out of its parts, or raise AlreadyExists; parts are retried alone."""
        asked = iter(parts)
        first, second = next(asked, b""), next(asked, None)
        if second is None:
            self.put_if_absent(path, first)
            return
        place = {"Bucket": self._bucket, "Key": self._key(path)}
        begin = partial(self._client.create_multipart_upload, **place, **self._put_options)
        upload = self._request("put", "put_parts", path, begin)["UploadId"]
        try:
            tags = []
            for number, part in enumerate(chain((first, second), asked), 1):
                send = partial(
                    self._client.upload_part,
                    **place,
                    UploadId=upload,
                    PartNumber=number,
                    Body=part,
                )
                reply = self._request("put", "put_parts", path, send)
                tags.append({"PartNumber": number, "ETag": reply["ETag"]})
                self._count("bytes_written", len(part))
            self._complete(path, place, upload, tags)
        except BaseException:
            with suppress(errors.MemWalError):
                abort = partial(self._client.abort_multipart_upload, **place, UploadId=upload)
                self._request("delete", "put_parts", path, abort)
            raise

    def _complete(
        self, path: str, place: Mapping[str, str], upload: str, tags: Sequence[Mapping[str, Any]]
    ) -> None:
        exists = errors.AlreadyExists(f"{self._address(path)} exists")

        def send() -> None:
            try:
                self._client.complete_multipart_upload(
                    **place, UploadId=upload, MultipartUpload={"Parts": tags}, IfNoneMatch="*"
                )
            except boto.ClientError as error:
                if status_of(error) == 412:
                    raise exists from None
                raise

        try:
            self._request("put", "put_parts", path, send)
        except errors.Missing:  # the upload: the reply to the attempt that completed it was lost
            if self.exists(path):
                raise exists from None
            raise errors.StoreUnavailable(f"{self._address(path)}: its upload is gone") from None

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete in batches, some at a time. What failed is returned, not raised.

        When a batch meets the deadline its objects are among the failed, and batches that were
        not begun are not tried: the store does not answer. Refused credentials are raised.
        """
        wanted = [check_object_path(path) for path in dict.fromkeys(paths)]
        size = self._limits.delete_batch_objects_max
        batches = [wanted[at : at + size] for at in range(0, len(wanted), size)]
        gave_up = threading.Event()

        def delete_batch(batch: Sequence[str]) -> Mapping[str, str]:
            return self._delete_batch(batch, gave_up)

        with ThreadPoolExecutor(max_workers=self._limits.deletes_in_flight_max) as threads:
            failures = [*threads.map(delete_batch, batches)]
        failed = tuple(item for failure in failures for item in failure.items())
        return DeleteResult(deleted=len(wanted) - len(failed), failed=failed)

    def _delete_batch(self, batch: Sequence[str], gave_up: threading.Event) -> Mapping[str, str]:
        """Delete one batch; path -> reason of each that failed."""
        if gave_up.is_set():
            return dict.fromkeys(batch, "not tried: an earlier batch failed")
        pending = {self._key(path): path for path in batch}
        failed: dict[str, str] = {}

        def send() -> None:
            nonlocal pending
            reply = self._client.delete_objects(
                Bucket=self._bucket,
                Delete={"Objects": [{"Key": key} for key in pending], "Quiet": True},
            )
            faults = {
                fault.get("Key", ""): str(fault.get("Code"))
                for fault in reply.get("Errors", ())
                if fault.get("Code") != "NoSuchKey"
            }
            again = {key: path for key, path in pending.items() if passes(faults.get(key))}
            failed.update({pending[key]: faults[key] for key in faults if key not in again})
            pending = again
            if again:
                raise KeysThrottled

        try:
            self._request("delete", "delete", batch[0], send)
        except errors.StoreUnavailable as error:
            gave_up.set()
            failed.update(dict.fromkeys(pending.values(), str(error)))
        except errors.MemWalError:
            gave_up.set()
            raise
        return failed

    def _walk(self, below: str) -> Iterator[StoredFile]:
        for page in self._pages(below):
            for item in page.get("Contents", ()):
                path = item["Key"][len(self._below_root) :]
                if _is_path(path):
                    yield StoredFile(
                        path=path,
                        size_bytes=item["Size"],
                        modified_at_nanos=nanos_of(item["LastModified"]),
                        etag=item.get("ETag", ""),
                    )

    def _pages(self, below: str, **arguments: str) -> Iterator[Mapping[str, Any]]:
        def send() -> Mapping[str, Any]:
            reply: Mapping[str, Any] = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=below, **arguments
            )
            return reply

        while True:
            page = self._request("list", "list", below[len(self._below_root) :], send)
            yield page
            if not page.get("IsTruncated"):
                return
            arguments["ContinuationToken"] = page["NextContinuationToken"]

    def _fetch(
        self, operation: str, path: str, asked: str | None, size_bytes_max: int | None = None
    ) -> tuple[bytes, int, int]:
        """What `asked` (a Range header) gives: data, where it begins, and the object's size.

        A server may ignore the header and send everything. A range that begins behind the end
        gives nothing; so does any range of an empty object.
        """
        key = self._key(path)
        extra = {} if asked is None else {"Range": asked}

        def send() -> tuple[bytes, int, int]:
            try:
                reply = self._client.get_object(Bucket=self._bucket, Key=key, **extra)
            except boto.ClientError as error:
                if status_of(error) == 416:
                    return b"", 0, 0
                raise
            with closing(reply["Body"]) as body:
                if size_bytes_max is not None:
                    size_bytes = reply.get("ContentLength", 0)
                    check_object_size(self._address(path), size_bytes, size_bytes_max)
                data: bytes = body.read()
            part = _CONTENT_RANGE.fullmatch(reply.get("ContentRange", ""))
            if part is not None:
                return data, int(part[1]), int(part[2])
            if reply["ResponseMetadata"]["HTTPStatusCode"] == 206:
                raise self._wrong_bytes(path, asked)
            return data, 0, len(data)

        received = self._request("get", operation, path, send)
        self._count("bytes_read", len(received[0]))
        return received

    def _put(self, key: str, data: bytes, **arguments: str) -> None:
        reply = self._client.put_object(
            Bucket=self._bucket, Key=key, Body=data, **self._put_options, **arguments
        )
        self._told = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        self._count("bytes_written", len(data))

    def _wrong_bytes(self, path: str, asked: str | None) -> errors.Unsupported:
        return errors.Unsupported(
            "MW-O03",
            f"{self._address(path)}: the store answers a request for {asked} with other bytes; "
            "nothing can be read from it safely",
        )

    def _explain(self, error: Exception, request: str, attempts: int) -> errors.MemWalError:
        status, code, cause = status_of(error), code_of(error), cause_of(error)
        if isinstance(error, NO_CREDENTIALS) or status in (401, 403) or code in REFUSED_CODES:
            forget_clients()  # the next store looks for credentials anew
            return errors.BadCredentials(f"{request}: access refused: {cause}")
        if code == "NoSuchBucket":
            return errors.Usage(f"{self._uri}: there is no bucket {self._bucket!r}")
        if status == 301 or code in WRONG_REGION_CODES:
            return errors.Usage(f"{self._uri}: is the storage option aws_region right? {cause}")
        if status == 404:
            return errors.Missing(f"{request}: does not exist")
        if status == 501:
            return errors.Unsupported("MW-O05", f"{request}: the store cannot do this: {cause}")
        tries = count_of(attempts, "attempt")
        return errors.Unreachable(f"{request}: gave up after {tries}: {cause}")

    def _key_prefix(self, folder: str) -> str:
        folder = check_folder(folder)
        return f"{self._below_root}{folder}/" if folder else self._below_root


def _folders_of(page: Mapping[str, Any], below: str) -> set[str]:
    """The folders directly below that a page's objects are in."""
    rests = (item["Key"][len(below) :] for item in page.get("Contents", ()))
    return {rest.partition("/")[0] for rest in rests if "/" in rest}


def _is_tail(data: bytes, first: int, size_bytes: int, size_bytes_max: int) -> bool:
    """Whether bytes that begin at `first` hold so much of an object's end, or all of it."""
    return first + len(data) == size_bytes and len(data) >= min(size_bytes, size_bytes_max) > 0


def _is_path(key: str) -> bool:
    try:
        check_object_path(key)
    except ValueError:
        return False
    return True
