"""A clock that is moved by hand, objects in memory, and faults to inject into them."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from threading import Lock, RLock
from typing import Any, Literal, Protocol, TypeVar
from zlib import crc32

from memwal.errors import AlreadyExists, Missing
from memwal.model import StoredFile
from memwal.ports import (
    Clock,
    DeleteResult,
    Objects,
    RequestCounts,
    check_folder,
    check_object_path,
)
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

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """Create the object out of its parts, or raise AlreadyExists."""
        self._write(path, b"".join(parts), replace=False)

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


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One line of a script: what happens at the nth call that matches.

    `operation` and `path` are fnmatch patterns (`put*`, `*/manifest/*`); a delete matches when any
    of its paths does. `nth` counts from 1 among this fault's own matches; None is every one.
    `hook` runs first, then `error` is raised if there is one. With `when="after"` the call takes
    effect before that, so an error stands for a lost reply.
    """

    operation: str
    path: str = "*"
    nth: int | None = 1
    when: Literal["before", "after"] = "before"
    error: Exception | None = None
    hook: Callable[[], None] | None = None

    def matches(self, call: Call) -> bool:
        """Whether `nth` counts this call."""
        return fnmatchcase(call.operation, self.operation) and any(
            fnmatchcase(path, self.path) for path in call.paths
        )

    def strike(self) -> None:
        """Run the hook and raise the error."""
        if self.hook is not None:
            self.hook()
        if self.error is not None:
            raise self.error


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of an Objects: the method's name, the paths it names, and what it writes."""

    operation: str
    paths: tuple[str, ...]
    data: bytes | None = None


class CallHook(Protocol):
    """Decides about every call of a HookedObjects."""

    def __call__(self, call: Call, effect: Callable[[], T]) -> T:
        """Act before and after the call, which `effect()` makes.

        The return value is the call's answer. An error raised in place of `effect()` means that the
        call had no effect; one raised after it stands for a lost reply.
        """
        ...


def _through(operation: str) -> Any:
    """A method of one path: the wrapped store's, called through the hook."""

    def call(self: HookedObjects, path: str, *rest: Any, **more: Any) -> Any:
        data = rest[0] if rest and isinstance(rest[0], bytes) else more.get("data")
        named = Call(operation=operation, paths=(path,), data=data)
        return self._hook(named, lambda: getattr(self._inner, operation)(path, *rest, **more))

    return call


class HookedObjects:
    """An Objects whose every call goes through a hook; a listing is read completely at the call."""

    def __init__(self, inner: Objects, hook: CallHook) -> None:
        self._inner = inner
        self._hook = hook

    @property
    def uri(self) -> str:
        """The wrapped store's address."""
        return self._inner.uri

    @property
    def store(self) -> str:
        """The wrapped store's."""
        return self._inner.store

    @property
    def counts(self) -> RequestCounts:
        """The wrapped store's counts."""
        return self._inner.counts

    @property
    def page_objects(self) -> int:
        """The wrapped store's."""
        return self._inner.page_objects

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """List everything at once; the hook sees the call, not the iteration."""
        call = Call(operation="list", paths=(prefix,))
        return iter(self._hook(call, lambda: tuple(self._inner.list(prefix))))

    list_folders = _through("list_folders")
    get = _through("get")
    get_range = _through("get_range")
    get_tail = _through("get_tail")
    exists = _through("exists")
    put_if_absent = _through("put_if_absent")
    put = _through("put")
    put_parts = _through("put_parts")

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """As the wrapped store."""
        wanted = tuple(paths)
        call = Call(operation="delete", paths=wanted)
        return self._hook(call, lambda: self._inner.delete(wanted))


class FaultyObjects(HookedObjects):
    """An Objects with a script of faults. `calls` has every (operation, path) in order."""

    def __init__(self, inner: Objects, *faults: Fault) -> None:
        super().__init__(inner, self._run_script)
        self._faults = faults
        self._matches = [0] * len(faults)
        self._lock = Lock()
        self.calls: list[tuple[str, str]] = []

    def _run_script(self, call: Call, effect: Callable[[], T]) -> T:
        due = self._find_due(call)
        for fault in due:
            if fault.when == "before":
                fault.strike()
        result = effect()
        for fault in due:
            if fault.when == "after":
                fault.strike()
        return result

    def _find_due(self, call: Call) -> Sequence[Fault]:
        due = []
        with self._lock:
            self.calls += [(call.operation, path) for path in call.paths]
            for at, fault in enumerate(self._faults):
                if fault.matches(call):
                    self._matches[at] += 1
                    if fault.nth in (None, self._matches[at]):
                        due.append(fault)
        return due
