"""Opens the object store that an address names. Local files and S3; nothing else is pretended."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from memwal import errors
from memwal.ports import Clock, Objects

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_SLASH = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")
_BUCKET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$")
_SUPPORTED = "a local path, file:// and s3://"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreLimits:
    """Bounds on one store. Retries, waits and deletes apply to S3; local files need none.

    `retry_seconds_max` is the total for one operation; an attempt that is under way when it
    passes may add its own connect and read timeouts.
    """

    retry_attempts_max: int = 10
    retry_seconds_max: float = 60.0
    retry_wait_seconds_max: float = 8.0
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 30.0
    deletes_in_flight_max: int = 4
    delete_batch_objects_max: int = 1000


def open_objects(
    uri: str, storage_options: Mapping[str, str], clock: Clock, limits: StoreLimits
) -> Objects:
    """The store below `uri`. Nothing is read or written yet."""
    root = normalise_uri(uri)
    if not root.startswith("s3://"):
        from memwal.store.local import LocalObjects

        return LocalObjects(root)
    from memwal.store.s3 import S3Objects  # boto3 takes long to import; local runs skip it

    return S3Objects(root, storage_options, clock, limits)


def normalise_uri(uri: str) -> str:
    """One spelling a table: an absolute local path, or `s3://bucket/prefix`; no closing slash.

    Refused addresses are not quoted in full: they may carry a password.
    """
    if not uri.strip() or "\0" in uri:
        raise errors.Usage("a table's address is empty")
    scheme = _SCHEME.match(uri)
    if scheme is None:
        slip = _ONE_SLASH.match(uri)
        if slip is not None and slip[1].lower() != "file":
            raise errors.Usage(f"{slip[1]}:/ needs two slashes: {slip[1]}://")
        return _local_root(uri if slip is None else unquote(uri[len("file:") :]))
    rest = uri[scheme.end() :]
    match scheme[1].lower():
        case "file":
            return _local_root(_file_uri_path(rest))
        case "s3":
            return _s3_root(rest)
        case other:
            raise errors.Unsupported(f"{other}:// is not supported; {_SUPPORTED} are")


def same_place(uri: str, storage_options: Mapping[str, str]) -> object:
    """Equal for two addresses of one table: links, a closing slash and `file://` tell nothing.

    Stores at two endpoints are two stores. Raises Usage or Unsupported as `normalise_uri` does.
    """
    root = normalise_uri(uri)
    if root.startswith("s3://"):
        return root, frozenset(
            (name.lower(), value)
            for name, value in storage_options.items()
            if "endpoint" in name.lower()
        )
    try:
        found = os.stat(root)  # noqa: PTH116
    except OSError:
        return root
    return found.st_dev, found.st_ino


def _file_uri_path(rest: str) -> str:
    host, slash, path = rest.partition("/")
    if host not in ("", "localhost") or not slash:
        raise errors.Usage("a file:// address needs an absolute path: file:///path/to/table")
    return unquote("/" + path)


def _local_root(text: str) -> str:
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:
        raise errors.Usage(f"no home folder for {text!r}") from error
    # Not resolve(): symbolic links keep their names, so that reports show what the user typed.
    return os.path.abspath(path)  # noqa: PTH100


def _s3_root(rest: str) -> str:
    bucket, _, prefix = rest.partition("/")
    if not bucket:
        raise errors.Usage("an s3:// address needs a bucket: s3://bucket/path/to/table")
    if not _BUCKET.match(bucket):
        raise errors.Usage(
            "the bucket in an s3:// address may hold letters, digits, '.', '-' and '_'; "
            "credentials go into storage options"
        )
    prefix = prefix.removesuffix("/")
    if not prefix:
        return f"s3://{bucket}"
    if any(part in ("", ".", "..") for part in prefix.split("/")):
        raise errors.Usage(f"s3://{bucket}/{prefix} has an empty, '.' or '..' part")
    if set(prefix) & set("?#%"):
        # Lance parses the address as a URL, where these change its meaning: the two libraries
        # would read different keys.
        raise errors.Usage(f"the path below s3://{bucket}/ may not hold '?', '#' or '%'")
    return f"s3://{bucket}/{prefix}"
