"""Objects on Google Cloud Storage and Azure, by obstore: the object stores that Lance itself uses.

Storage options and variables so have the names that pylance knows. On S3 boto3 writes (see there).
Local files stay with us: obstore's local store does not sync, stages beside the file, where readers
list, and follows links. Objects are deleted one by one: its batches end at the first error, and do
not say what is gone by then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import obstore
from obstore import exceptions as obs
from obstore.store import AzureStore, GCSStore

from memwal import errors
from memwal.config.namespaces import OPTION
from memwal.ports import PART_BYTES, Clock
from memwal.store.objects.base import StoreLimits
from memwal.store.objects.faults import Meaning, fault_of
from memwal.store.objects.remote import RemoteObjects, settings

# What one request lists, by the services' own bounds.
_PAGE_OBJECTS = {"gs": 1000, "az": 5000, "abfss": 5000}
_PARTS_MAX = 2  # of one upload on the way, all in memory
_TRUE = {"1", "true", "on", "yes", "y"}
# Variables that options may come from, instead of the command line.
_VARIABLES = ("AZURE_", "GOOGLE_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
# An option of pylance's own, which obstore does not know.
_TOKEN = "google_storage_token"


class CloudObjects(RemoteObjects):
    """The Objects port on a bucket or container, and a prefix. Safe to share between threads."""

    def __init__(
        self, uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
    ) -> None:
        super().__init__(uri, clock, limits)
        self._scheme = uri.partition("://")[0]
        self.page_objects = _PAGE_OBJECTS[self._scheme]
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

    def _put(self, key: str, data: bytes, *, create: bool) -> None:
        mode: Any = "create" if create else "overwrite"
        obstore.put(self._obstore, key, data, mode=mode, use_multipart=False)

    def _upload(self, path: str, parts: Iterable[bytes], begun: Iterable[bytes]) -> None:
        """The library's uploads know no condition: the object is looked up when one begins.

        A fault begins it anew.
        """
        if self.exists(path):
            raise errors.AlreadyExists(f"{self._address(path)} exists")
        key = self._key(path)
        again = begun

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

    def _delete_keys(self, keys: Sequence[str]) -> Mapping[str, str]:
        for key in keys:
            try:
                obstore.delete(self._obstore, key)
            except FileNotFoundError as error:
                if fault_of(error).meaning is not Meaning.MISSING:
                    raise
        return {}

    def _forget(self) -> None:
        _connect.cache_clear()


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
            text = fault_of(error).cause
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
