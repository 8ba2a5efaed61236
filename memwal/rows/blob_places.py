"""Where the files may lie that a table's blobs lead to. Pure.

A blob may be the address of a file, which anybody reads with his own rights. So what a writer put
there must not lead further than the table's owner said: below the table's folder, or below a base
that the table has registered.

Addresses are compared by scheme, bucket and the parts of their path, each decoded once. One that
two readers could take for two things (an encoded slash or dots, a sign that stays encoded, a user,
a port, a query) is no place at all, and so below none. No link is followed, and nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9._-]*)(?:/(.*))?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f\\]")
# A query, a fragment; and what is still there after decoding would be decoded by the next reader.
_AMBIGUOUS = set("?#")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file: `parts` of its path below a bucket, or below the root of this host."""

    scheme: str
    bucket: str
    parts: tuple[str, ...]

    def holds(self, other: Place) -> bool:
        """Whether the other lies below this one."""
        same = (self.scheme, self.bucket) == (other.scheme, other.bucket)
        depth = len(self.parts)
        return same and len(other.parts) > depth and other.parts[:depth] == self.parts


def place_of(address: str) -> Place | None:
    """The place of an absolute local path or an address with a scheme; None for any other text."""
    if _CONTROL.search(address) or address != address.strip():
        return None
    if address.startswith("/"):
        return _place("file", "", address[1:].split("/"))
    found = _ADDRESS.fullmatch(address)
    if found is None or _AMBIGUOUS & set(address):
        return None
    scheme, bucket, path = found[1].lower(), found[2], found[3] or ""
    if scheme == "file":
        if bucket not in ("", "localhost"):
            return None
        bucket = ""
    elif not bucket:
        return None
    try:
        parts = [unquote(part, errors="strict") for part in path.split("/")]
    except UnicodeDecodeError:
        return None
    if any(set(part) & set("/%") or _CONTROL.search(part) for part in parts):
        return None
    return _place(scheme, bucket, parts)


def _place(scheme: str, bucket: str, parts: list[str]) -> Place | None:
    if parts[-1] == "":
        parts = parts[:-1]
    if any(part in ("", ".", "..") for part in parts):
        return None
    return Place(scheme, bucket, tuple(parts))


def is_below(address: str, folders: Iterable[str]) -> bool:
    """Whether the address lies below one of the folders; never for what has no place."""
    place = place_of(address)
    if place is None:
        return False
    return any(folder is not None and folder.holds(place) for folder in map(place_of, folders))
