"""Objects on Google Cloud Storage and Azure, by obstore: the object stores that Lance itself uses.

Storage options and variables so have the names that pylance knows. On S3 boto3 writes (see there).
Local files stay with us: obstore's local store does not sync, stages beside the file, where readers
list, and follows links. Objects are deleted one by one: its batches end at the first error, and do
not say what is gone by then.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any

import obstore
from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore

from memwal import errors
from memwal.config.namespaces import OPTION
from memwal.ports import (
    PART_BYTES,
    Clock,
    DeleteResult,
    check_object_path,
)
from memwal.store.objects.base import (
    StoreLimits,
)
from memwal.store.objects.reads import READ_FAULTS, ReadObjects, cause_of, passes, settings
from memwal.threads import side_by_side

# What one request lists, by the services' own bounds.
_PAGE_OBJECTS = {"gs": 1000, "az": 5000, "abfss": 5000}
_DELETES_IN_FLIGHT_MAX = 16
_PARTS_MAX = 2  # of one upload on the way, all in memory
_TRUE = {"1", "true", "on", "yes", "y"}
# Variables that options may come from, instead of the command line.
_VARIABLES = ("AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# An option of pylance's own, which obstore does not know.
_TOKEN = "google_storage_token"


class CloudObjects(ReadObjects):
    """The Objects port on a bucket or container, and a prefix. Safe to share between threads."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        super().__init__(uri, clock, limits, READ_FAULTS)
        self._scheme = uri.partition("://")[0]
        self._has_suffixes = self._scheme == "gs"
        self._environment = frozenset(
            pair for pair in os.environ.items() if pair[0].upper().startswith(_VARIABLES)
        )
        self._choose: Callable[[], Mapping[str, str]] = lambda: storage_options
        if OPTION in storage_options:
            from memwal.store.tables.namespaces import Renewed  # lance takes long to import

            self._choose = Renewed(storage_options, clock).now
        self._store = _name_store(self._obstore)

    @property
    def _obstore(self) -> AzureStore | GCSStore:
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
                obstore.put(self._obstore, key, data, mode="create")
            except obs.AlreadyExistsError:
                self._count("get")
                try:
                    obstore.head(self._obstore, key)
                except FileNotFoundError:
                    raise CreatesMet from None
                raise errors.AlreadyExists(f"{self._address(path)} exists") from None
            self._count("bytes_written", len(data))

        self._request("put", "put_if_absent", path, send)

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any."""
        key = self._key(path)

        def send() -> None:
            obstore.put(self._obstore, key, data, use_multipart=False)
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
                    self._obstore, key, read(), chunk_size=PART_BYTES, max_concurrency=_PARTS_MAX
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
                self._request("delete", "delete", path, lambda: obstore.delete(self._obstore, key))
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

    def _forget(self) -> None:
        _connect.cache_clear()


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
    given_settings = settings(limits, given.pop("allow_http", "").lower() in _TRUE)
    if root.startswith("gs://") and token:
        given_settings["credential_provider"] = lambda: {"token": token, "expires_at": None}
    kind = GCSStore if root.startswith("gs://") else AzureStore
    while True:
        try:
            return kind.from_url(root, config=given, **given_settings)
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
