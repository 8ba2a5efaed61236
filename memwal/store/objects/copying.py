"""Copies objects from one store to another, whatever their size, with a digest of what was read."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from memwal.errors import AlreadyExists, Corruption, Missing, Refused
from memwal.model import BackupObject
from memwal.ports import PART_BYTES, Objects


@dataclass(kw_only=True, slots=True)
class ObjectParts:
    """An object's bytes by parts, from the beginning whenever they are iterated.

    What is iterated to its end is `found`. With `expected`, other bytes than those end in an error
    before the end, so that nothing is stored of them. One of another size than `size_bytes` is not
    what was listed: a manifest that was collected since may have a stopper in its place. Raises
    Missing, Corruption.
    """

    objects: Objects
    path: str
    expected: BackupObject | None = None
    size_bytes: int | None = None
    part_bytes: int = PART_BYTES
    found: BackupObject | None = field(default=None, init=False)

    def __iter__(self) -> Iterator[bytes]:
        """Read the parts; the last one is given once the digest is known to be right."""
        digest = hashlib.sha256()
        # Most objects are a single part: their end is all of them, and says so.
        end, size = self.objects.get_tail(self.path, self.part_bytes)
        if self.size_bytes not in (None, size):
            raise Missing(
                f"{self.objects.uri}/{self.path} had {self.size_bytes} bytes and has {size}: it "
                "was replaced"
            )
        start = size - len(end)
        held = b""
        for at in range(0, size, self.part_bytes):
            if at:
                yield held
            until = min(at + self.part_bytes, size)
            if at >= start:
                held = end[at - start : until - start]
            elif until > start:
                held = self.objects.get_range(self.path, at, start) + end[: until - start]
            else:
                held = self.objects.get_range(self.path, at, until)
            digest.update(held)
        self.found = BackupObject(path=self.path, size_bytes=size, sha256=digest.digest())
        self._check(self.found)
        yield held

    @property
    def read(self) -> BackupObject:
        """What was read. Raises ValueError for parts that were not read to the end."""
        if self.found is None:
            raise ValueError(f"{self.path} was not read to its end")
        return self.found

    def _check(self, found: BackupObject) -> None:
        expected = self.expected
        if expected is None:
            return
        wrong = f"{expected.size_bytes} bytes" if expected.size_bytes != found.size_bytes else None
        if wrong is None and expected.sha256 != found.sha256:
            wrong = "other bytes"
        if wrong is not None:
            raise Corruption(
                "MW-A07",
                f"{self.objects.uri}/{self.path} is damaged: the backup's list says {wrong}"
                + (f", it has {found.size_bytes}" if wrong != "other bytes" else ""),
            )


def digest_object(
    objects: Objects,
    path: str,
    *,
    expected: BackupObject | None = None,
    size_bytes: int | None = None,
) -> BackupObject:
    """Read an object for its size and digest, compared with those that are `expected`, if any.

    Raises Missing; Corruption for other bytes than expected.
    """
    parts = ObjectParts(objects=objects, path=path, expected=expected, size_bytes=size_bytes)
    deque(parts, maxlen=0)
    return parts.read


def copy_object(
    source: Objects,
    dest: Objects,
    path: str,
    *,
    to: str | None = None,
    expected: BackupObject | None = None,
    size_bytes: int | None = None,
    part_bytes: int = PART_BYTES,
) -> BackupObject:
    """Copy an object under its own path, or `to` another, and return what was read of it.

    One that is there already is compared, and left as it is. Raises Missing, also for one of
    another size than `size_bytes`; Corruption for other bytes than `expected`; of neither anything
    is stored. Raises Refused if another object is there.
    """
    target = path if to is None else to
    parts = ObjectParts(
        objects=source,
        path=path,
        expected=expected,
        size_bytes=size_bytes,
        part_bytes=part_bytes,
    )
    try:
        dest.put_parts(target, parts)
    except AlreadyExists:
        there = digest_object(dest, target)
        found = parts.found or digest_object(source, path, expected=expected)
        parts.found = found
        if (there.size_bytes, there.sha256) != (found.size_bytes, found.sha256):
            raise Refused(
                "MW-A03",
                f"{dest.uri}: {target} is there, with other bytes than {source.uri} has",
            ) from None
    return parts.read
