"""Objects on S3 and what speaks its protocol. With `s3_client` all that knows boto3.

boto3 writes and finds the way: it looks for credentials wherever AWS's own tools do (profiles, SSO,
processes), follows a bucket to its region, and says of a batch delete which objects failed, where
obstore ends at the first. obstore reads, for a tenth of the processor's time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

from botocore import exceptions as boto
from obstore import exceptions as obs
from obstore.store import S3Store

from memwal import errors
from memwal.model import StoredFile
from memwal.ports import Clock, check_object_path
from memwal.store.objects.base import StoreLimits, nanos_of
from memwal.store.objects.faults import OBSTORE_KINDS, Fault, Meaning, fault_of
from memwal.store.objects.remote import RemoteObjects
from memwal.store.objects.s3_client import (
    BOTO_KINDS,
    boto_fault_of,
    canonical,
    connect,
    encryption,
    forget_clients,
    place_of,
)

T = TypeVar("T")


class S3Objects(RemoteObjects):
    """The Objects port on a bucket and prefix. Safe to share between threads."""

    page_objects = 1000
    _kinds = (*BOTO_KINDS, *OBSTORE_KINDS)

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        super().__init__(uri, clock, limits)
        self._delete_batch_objects = limits.delete_batch_objects_max
        self._deletes_in_flight = limits.deletes_in_flight_max
        options = canonical(storage_options)
        self._put_options = encryption(options)
        self._told: str | None = None
        try:
            self._connection = connect(self._bucket, options, limits)
            self._client = self._connection.client
            self._place = place_of(self._client, self._bucket)
        except boto.BotoCoreError as error:
            fault = boto_fault_of(error)
            denied = fault.meaning is Meaning.DENIED
            kind = errors.BadCredentials if denied else errors.Usage
            raise kind(f"{uri}: {fault.cause}") from error

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

    def _fault_of(self, error: BaseException) -> Fault:
        return boto_fault_of(error) if isinstance(error, BOTO_KINDS) else fault_of(error)

    def _put(self, key: str, data: bytes, *, create: bool) -> None:
        condition = {"IfNoneMatch": "*"} if create else {}
        reply = self._client.put_object(
            Bucket=self._bucket, Key=key, Body=data, **self._put_options, **condition
        )
        self._told = reply.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")

    def _upload(self, path: str, parts: Iterable[bytes], begun: Iterable[bytes]) -> None:
        """Parts are retried alone."""
        place = {"Bucket": self._bucket, "Key": self._key(path)}
        begin = partial(self._client.create_multipart_upload, **place, **self._put_options)
        upload = self._request("put", "put_parts", path, begin)["UploadId"]
        try:
            tags = []
            for number, part in enumerate(begun, 1):
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
        complete = partial(
            self._client.complete_multipart_upload,
            **place,
            UploadId=upload,
            MultipartUpload={"Parts": tags},
            IfNoneMatch="*",
        )
        try:
            self._create("put_parts", path, complete)
        except errors.Missing:  # the upload: the reply to the attempt that completed it was lost
            if self.exists(path):
                raise errors.AlreadyExists(f"{self._address(path)} exists") from None
            raise errors.StoreUnavailable(f"{self._address(path)}: its upload is gone") from None

    def _delete_keys(self, keys: Sequence[str]) -> Mapping[str, str]:
        reply = self._client.delete_objects(
            Bucket=self._bucket,
            Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True},
        )
        return {
            fault.get("Key", ""): str(fault.get("Code"))
            for fault in reply.get("Errors", ())
            if fault.get("Code") != "NoSuchKey"
        }

    def _request(self, counter: str, operation: str, path: str, send: Callable[[], T]) -> T:
        def follow() -> T:
            try:
                return send()
            except obs.BaseError as error:
                if fault_of(error).meaning is not Meaning.ELSEWHERE:
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
