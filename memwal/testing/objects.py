"""A clock that is moved by hand, and objects in memory."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock
from zlib import crc32

from memwal.errors import AlreadyExists, Missing
from memwal.model import StoredFile
from memwal.ports import Clock, DeleteResult, check_folder, check_object_path
from memwal.store.objects.base import SizedObjects

_PAGE_OBJECTS = 1000  # a listing page and a delete batch, as on S3


class ManualClock:
    """The Clock port, moved by hand: `sleep` returns at once and moves it too."""

    def __init__(self, *, start_nanos: int = 1_750_000_000_000_000_000, seed: int = 0) -> None:
        self._start_nanos = start_nanos
        self._passed_nanos = 0
        self._chance = random.Random(seed)
        self._ids = random.Random(seed + 1)
        self._lock = Lock()
        self.slept_seconds: list[float] = []

    def now_nanos(self) -> int:
        """The start, plus all time slept and advanced."""
        return self._start_nanos + self._passed_nanos

    def monotonic_seconds(self) -> float:
        """Seconds slept and advanced so far."""
        return self._passed_nanos / 1e9

    def sleep(self, seconds: float) -> None:
        """Move on by `seconds` without waiting, and note it in `slept_seconds`."""
        with self._lock:
            self.slept_seconds.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass without noting it as slept."""
        with self._lock:
            self._passed_nanos += round(seconds * 1e9)

    def random(self) -> float:
        """The next of the seed's numbers in [0, 1)."""
        with self._lock:
            return self._chance.random()

    def new_id(self) -> str:
        """The next of the seed's UUIDs."""
        with self._lock:
            return str(uuid.UUID(int=self._ids.getrandbits(128), version=4))


_buckets = itertools.count(1)


@dataclass(kw_only=True, slots=True)
class MemoryBucket:
    """What several MemoryObjects share: path -> (data, modified at), and one lock."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)
    name: str = field(default_factory=lambda: f"memory:{next(_buckets)}")


class MemoryObjects(SizedObjects):
    """The Objects port in memory; two instances with the same bucket see the same objects.

    Requests are counted as on S3: a page or a delete batch of 1000 objects is one request.
    """

    def __init__(
        self,
        *,
        bucket: MemoryBucket | None = None,
        clock: Clock | None = None,
        uri: str = "memory://table",
    ) -> None:
        super().__init__(uri)
        self.bucket = MemoryBucket() if bucket is None else bucket
        self._clock = ManualClock() if clock is None else clock

    @property
    def store(self) -> str:
        """The bucket's own name."""
        return self.bucket.name

    @property
    def page_objects(self) -> int:
        """As on S3."""
        return _PAGE_OBJECTS

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every object below the folder `prefix`, as of the call."""
        below = _below(prefix)
        with self.bucket.lock:
            found = [
                StoredFile(
                    path=path,
                    size_bytes=len(data),
                    modified_at_nanos=modified,
                    etag=format(crc32(data), "x"),
                )
                for path, (data, modified) in sorted(self.bucket.objects.items())
                if path.startswith(below)
            ]
        self._count("list", _pages(len(found)))
        return iter(found)

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted."""
        below = _below(prefix)
        self._count("list")
        with self.bucket.lock:
            rests = [path[len(below) :] for path in self.bucket.objects if path.startswith(below)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        check_object_path(path)
        self._count("get")
        with self.bucket.lock:
            return path in self.bucket.objects

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object, or raise AlreadyExists."""
        self._write(path, data, replace=False)

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any."""
        self._write(path, data, replace=True)

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete the objects. Nothing fails here; wrap with FaultyObjects for that."""
        wanted = [check_object_path(path) for path in dict.fromkeys(paths)]
        with self.bucket.lock:
            for path in wanted:
                self.bucket.objects.pop(path, None)
        self._count("delete", _pages(len(wanted)) if wanted else 0)
        return DeleteResult(deleted=len(wanted))

    def _read(self, path: str, choose: Callable[[int], tuple[int, int]]) -> tuple[bytes, int]:
        check_object_path(path)
        self._count("get")
        with self.bucket.lock:
            data, _ = self.bucket.objects.get(path, (None, 0))
        if data is None:
            raise Missing(f"{self._address(path)} does not exist")
        start, end = choose(len(data))
        self._count("bytes_read", end - start)
        return data[start:end], len(data)

    def _write(self, path: str, data: bytes, *, replace: bool) -> None:
        check_object_path(path)
        self._count("put")
        with self.bucket.lock:
            if not replace and path in self.bucket.objects:
                raise AlreadyExists(f"{self._address(path)} exists")
            self.bucket.objects[path] = (bytes(data), self._clock.now_nanos())
        self._count("bytes_written", len(data))


def _below(prefix: str) -> str:
    folder = check_folder(prefix)
    return f"{folder}/" if folder else ""


def _pages(objects: int) -> int:
    return max(1, -(-objects // _PAGE_OBJECTS))
