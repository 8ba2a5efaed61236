"""Opens an object store by its address, and proves what writers need of it.

Put-if-absent is proved by trying it, before anything is written. All that keeps two writers apart
hangs on it: WAL entries, shard manifests, the lease, and the commits that Lance makes by itself.
Some servers that speak S3's protocol ignore `If-None-Match`, and then each put of a name replaces
the one before it, without an error.

A new store takes its scheme in `memwal.config.known_names.STORES` and, if obstore does not know it,
a module of its own and a case in `open_objects`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from memwal import errors
from memwal.config.known_names import STORES
from memwal.config.namespaces import OPTION
from memwal.config.namespaces import SCHEME as NAMESPACES
from memwal.errors import AlreadyExists, MemWalError, Missing, StoreUnavailable, Unsupported
from memwal.format import layout
from memwal.ports import Clock, Objects
from memwal.store.objects.base import StoreLimits, limit_requests

_FIRST, _SECOND = b"first", b"second"
_ATTEMPTS_MAX = 3
# Remembered by this process alone: a file that vouches for a store could be forged, or copied along
# with a table to a store for which it was never true.
_proven: set[str] = set()

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")
_BUCKET = re.compile(r"^[A-Za-z0-9$][A-Za-z0-9._-]{1,254}$")
_ABFSS = re.compile(r"abfss://([^/@]+)@([^/.]+)[^/]*(.*)")
_CONTAINER_AT_HOST = re.compile(
    r"^[A-Za-z0-9$][A-Za-z0-9-]{1,62}@([A-Za-z0-9-]+)(\.[A-Za-z0-9.-]+)?$"
)
# Options that make one address lead to different places.
_PLACES = ("endpoint", "account_name", "base_url")


def ensure_put_if_absent(objects: Objects, clock: Clock) -> None:
    """Prove put-if-absent, once a process for each store. Raises as `prove_put_if_absent` does."""
    if objects.store not in _proven:
        prove_put_if_absent(objects, clock)
        _proven.add(objects.store)


def prove_put_if_absent(objects: Objects, clock: Clock) -> None:
    """Put a scratch object twice: the second put has to fail. Four requests.

    Raises Unsupported when it does not, StoreUnavailable when that can't be settled,
    BadCredentials. The scratch object is removed; one that a fault leaves behind is garbage.
    """
    for _ in range(_ATTEMPTS_MAX):
        path = f"{layout.STAGING}/{clock.new_id()}"
        try:
            first, second = _create(objects, path, _FIRST), _create(objects, path, _SECOND)
            stored = _read_stored(objects, path)
        finally:
            with suppress(MemWalError):
                objects.delete([path])
        # What is stored decides, not the answers alone: a put whose reply was lost is sent again,
        # and then meets what it wrote itself.
        if first and stored == _SECOND:
            raise Unsupported(
                "MW-O11",
                f"{objects.uri}: this store does not keep put-if-absent (If-None-Match: * on S3): "
                "the second put of a name replaced the first. Writers, Lance's own too, would "
                "overwrite each other's rows and commits, so nothing was written: upgrade or "
                "reconfigure the store, or move the table to one that keeps it",
            )
        if not second and stored == _FIRST:
            return
    raise StoreUnavailable(
        f"{objects.uri}: whether this store keeps put-if-absent could not be settled: what was put "
        "was not read back; nothing was written, run again"
    )


def _create(objects: Objects, path: str, data: bytes) -> bool:
    try:
        objects.put_if_absent(path, data)
    except AlreadyExists:
        return False
    return True


def _read_stored(objects: Objects, path: str) -> bytes | None:
    try:
        return objects.get(path, len(_SECOND))
    except Missing:
        return None


def read_store_time(objects: Objects, name: str) -> int:
    """The store's own time, read off a file that is written under this name for the purpose."""
    path = f"{layout.STAGING}/{name}"
    objects.put(path, b"what time is it?")
    try:
        found = [i for i in objects.list(layout.STAGING) if i.path == path]
    finally:
        # If it can't be deleted, it is a leftover like any other.
        with suppress(MemWalError):
            objects.delete([path])
    if not found:
        raise StoreUnavailable(
            f"{objects.uri}: {path} was written and is not listed: the store's time is not known, "
            "so nothing is known to be old enough to go"
        )
    return found[0].modified_at_nanos


def open_objects(
    uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits | None = None
) -> Objects:
    """The store below `uri`. Nothing is read or written yet."""
    root, storage_options = find_address(normalise_uri(uri), storage_options)
    scheme = _SCHEME.match(root)
    if scheme is None:
        from memwal.store.objects.local import LocalObjects

        return LocalObjects(root)
    limits = limit_requests(storage_options, limits or StoreLimits())
    match scheme[1]:
        case "s3":
            from memwal.store.objects.s3 import (
                S3Objects,  # boto3 takes long to import; local runs skip it
            )

            return S3Objects(root, storage_options, clock, limits)
        case _:
            from memwal.store.objects.cloud import CloudObjects

            return CloudObjects(root, storage_options, clock, limits)


def find_address(uri: str, storage_options: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """An address, normalised, and the options that open it: what a namespace says, for a name in
    one. Raises Usage, Unsupported, StoreUnavailable.
    """
    if not uri.startswith(NAMESPACES):
        return uri, storage_options
    if OPTION not in storage_options:
        raise errors.Usage("a table in a namespace is named NAME:schema.table")
    from memwal.store.tables.namespaces import locate  # lance takes long to import

    location, options = locate(storage_options)
    return normalise_uri(location), options


def normalise_uri(uri: str) -> str:
    """One spelling a table: an absolute local path, or `scheme://bucket/prefix`; no closing slash.

    Refused addresses are not quoted in full: they may carry a password.
    """
    if not uri.strip() or "\0" in uri:
        raise errors.Usage("a table's address is empty")
    check_encoding(uri)
    scheme = _SCHEME.match(uri)
    if scheme is None:
        slip = _ONE_SLASH.match(uri)
        if slip is not None and slip[1].lower() != "file":
            raise errors.Usage(f"{slip[1]}:/ needs two slashes: {slip[1]}://")
        return _local_root(uri if slip is None else unquote(uri[len("file:") :]))
    name, rest = scheme[1].lower(), uri[scheme.end() :]
    if name == "file":
        return _file_root(rest)
    if name in STORES:
        return _bucket_root(name, rest)
    if uri.startswith(NAMESPACES):
        return uri
    supported = ", ".join(f"{name}://" for name in ("file", *STORES))
    raise errors.Unsupported("MW-O09", f"{name}:// is not supported; a local path, {supported} are")


def check_encoding(uri: str) -> None:
    """Raise Usage for a name that is no text: pylance and pyarrow can't open it."""
    try:
        uri.encode()
    except UnicodeEncodeError:
        raise errors.Usage(f"{uri!a}: the name is not UTF-8: rename it") from None


def is_in_bucket(uri: str) -> bool:
    """Whether the address leads into a store of buckets that we open."""
    scheme = _SCHEME.match(uri)
    return scheme is not None and scheme[1].lower() in STORES


def same_place(uri: str, storage_options: Mapping[str, str]) -> object:
    """Equal for two addresses of one table, however they are spelled and whatever links they take.

    Stores at two endpoints are two stores. Raises Usage or Unsupported as `normalise_uri` does.
    """
    root = normalise_uri(uri)
    if _SCHEME.match(root):
        options = {name.lower(): value for name, value in storage_options.items()}
        places = {n: v for n, v in options.items() if any(place in n for place in _PLACES)}
        abfss = _ABFSS.match(root)
        if abfss is not None:
            root = f"az://{abfss[1]}{abfss[3]}"
            places = {"account_name": abfss[2], **places}
        return root, frozenset(places.items())
    try:
        found = os.stat(root)  # noqa: PTH116
    except OSError:
        return root
    return found.st_dev, found.st_ino


def _file_root(rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise errors.Usage("a file:// address needs an absolute path: file:///path/to/table")
    return _local_root(unquote("/" + path))


def _local_root(text: str) -> str:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise errors.Usage(f"no home folder for {text!r}") from error
    # Not resolve(): symbolic links keep their names, so that reports show what the user typed.
    return os.path.abspath(path)  # noqa: PTH100


def _bucket_root(scheme: str, rest: str) -> str:
    bucket, _, prefix = rest.partition("/")
    root = f"{scheme}://{bucket}"
    if not bucket:
        raise errors.Usage(f"{scheme}:// needs a bucket: {scheme}://bucket/path/to/table")
    if scheme == "abfss":
        if not _CONTAINER_AT_HOST.match(bucket):
            raise errors.Usage(
                "abfss:// needs a container and an account: "
                "abfss://container@account.dfs.core.windows.net/path/to/table"
            )
    elif not _BUCKET.match(bucket):
        raise errors.Usage(
            f"the bucket after {scheme}:// may have letters, digits, '.', '-' and '_'; "
            "credentials go into storage options"
        )
    prefix = prefix.removesuffix("/")
    if not prefix:
        return root
    if any(part in ("", ".", "..") for part in prefix.split("/")):
        raise errors.Usage(f"{root}/{prefix} has an empty, '.' or '..' part")
    if set(prefix) & set("?#%"):
        # Lance parses the address as a URL, where these change its meaning: the two libraries
        # would read different keys.
        raise errors.Usage(f"the path below {root}/ may not have '?', '#' or '%'")
    return f"{root}/{prefix}"
