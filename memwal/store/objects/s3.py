"""Objects on S3 and what speaks its protocol. With `s3_client` all that knows boto3.

boto3 writes and finds the way: it looks for credentials wherever AWS's own tools do (profiles, SSO,
processes), follows a bucket to its region, and says of a batch delete which objects failed, where
obstore ends at the first. obstore reads, for a tenth of the processor's time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from botocore import exceptions as boto
from obstore import exceptions as obs
from obstore.store import S3Store

from memwal import errors
from memwal.model import StoredFile
from memwal.ports import Clock, DeleteResult, check_object_path
from memwal.store.objects.base import StoreLimits, nanos_of
from memwal.store.objects.reads import (
    READ_FAULTS,
    REFUSED_CODES,
    WRONG_REGION_CODES,
    ReadObjects,
    is_wrong_region,
)
from memwal.store.objects.s3_client import (
    NO_CREDENTIALS,
    S3_FAULTS,
    KeysThrottled,
    canonical,
    cause_of,
    code_of,
    connect,
    encryption,
    forget_clients,
    passes,
    place_of,
    status_of,
)
from memwal.text import count_of

_PAGE_OBJECTS = 1000

T = TypeVar("T")


class S3Objects(ReadObjects):
    """The Objects port on a bucket and prefix. Safe to share between threads."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        super().__init__(uri, clock, limits, S3_FAULTS | READ_FAULTS)
        options = canonical(storage_options)
        self._put_options = encryption(options)
        self._told: str | None = None
        try:
            self._connection = connect(self._bucket, options, limits)
            self._client = self._connection.client
            self._place = place_of(self._client, self._bucket)
        except NO_CREDENTIALS as error:
            raise errors.BadCredentials(f"{uri}: {cause_of(error)}") from error
        except boto.BotoCoreError as error:
            raise errors.Usage(f"{uri}: {cause_of(error)}") from error

    @property
    def _obstore(self) -> S3Store:
        return self._connection.reader(self._place)

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

    def _request(self, counter: str, operation: str, path: str, send: Callable[[], T]) -> T:
        def follow() -> T:
            try:
                return send()
            except obs.BaseError as error:
                if not is_wrong_region(error):
                    raise
            # boto3 finds out where the bucket is, and asks there from then on.
            self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._below_root, MaxKeys=1)
            self._place = place_of(self._client, self._bucket)
            return send()

        return super()._request(counter, operation, path, follow)

    def _pages(
        self, folder: str, last: str | None = None
    ) -> Iterator[tuple[Sequence[StoredFile], bool]]:
        """The same, without keys that are no valid relative path: nothing could be done with them.

        obstore lists no folder that has one, and takes the mark of an empty folder (`a/`) for an
        object `a`.
        """
        with suppress(errors.Unsupported):
            for page, more in super()._pages(folder, last):
                if not all(file.size_bytes for file in page):
                    break
                yield page, more
                if not more:
                    return
                last = self._below_root + page[-1].path
        arguments = {"StartAfter": last} if last else {}
        arguments["Prefix"] = f"{self._below_root}{folder}/" if folder else self._below_root
        more = True
        while more:
            ask = partial(self._client.list_objects_v2, Bucket=self._bucket, **arguments)
            reply = self._request("list", "list", folder, ask)
            more = reply.get("IsTruncated", False)
            found = (_described(item) for item in reply.get("Contents", ()))
            files = [self._describe(item) for item in found]
            yield [file for file in files if _is_path(file.path)], more
            arguments["ContinuationToken"] = reply.get("NextContinuationToken", "")

    def _list_names(self, folder: str) -> set[str]:
        try:
            return super()._list_names(folder)
        except errors.Unsupported:
            return self._walk_names(folder)

    def _put(self, key: str, data: bytes, **arguments: str) -> None:
        reply = self._client.put_object(
            Bucket=self._bucket, Key=key, Body=data, **self._put_options, **arguments
        )
        self._told = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        self._count("bytes_written", len(data))

    def _explain(self, error: Exception, request: str, attempts: int) -> errors.MemWalError:
        if isinstance(error, READ_FAULTS.kinds) and not is_wrong_region(error):
            return super()._explain(error, request, attempts)
        status, code, cause = status_of(error), code_of(error), cause_of(error)
        if isinstance(error, NO_CREDENTIALS) or status in (401, 403) or code in REFUSED_CODES:
            self._forget()  # the next store looks for credentials anew
            return errors.BadCredentials(f"{request}: access refused: {cause}")
        if code == "NoSuchBucket":
            return errors.Usage(f"{self._uri}: there is no bucket {self._bucket!r}")
        if status == 301 or code in WRONG_REGION_CODES or is_wrong_region(error):
            return errors.Usage(f"{self._uri}: is the storage option aws_region right? {cause}")
        if status == 404:
            return errors.Missing(f"{request}: does not exist")
        if status == 501:
            return errors.Unsupported("MW-O05", f"{request}: the store cannot do this: {cause}")
        tries = count_of(attempts, "attempt")
        return errors.Unreachable(f"{request}: gave up after {tries}: {cause}")

    def _forget(self) -> None:
        forget_clients()


def _described(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """What boto3 says of an object, as obstore does."""
    return {
        "path": item["Key"],
        "size": item["Size"],
        "last_modified": item["LastModified"],
        "e_tag": item.get("ETag"),
    }


def _is_path(key: str) -> bool:
    try:
        check_object_path(key)
    except ValueError:
        return False
    return True
