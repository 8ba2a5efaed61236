"""The fakes: in-memory stores, a manual clock, and faults by script. Shipped, so plugins can test.

Everything here is deterministic: the same script and seed give the same run.

What the fakes leave out
------------------------
`tests/store/` and `tests/jobs/merge/` run one suite on fakes and on real stores; what differs is
listed here, for the tables of `memwal.testing.tables` and of `tests/simulation/lake.py` too, with
what it means for a proof.

Stores:
- A call is one instant, whole or not at all. Torn and half-written files are left to the fuzz
  tests, batch deletes that fail in part to `tests/faults/test_garbage_faults.py`.
- No retry, time-out or throttling inside a call: those of our own stores are only run by
  `tests/store/test_s3_faults.py` and by the proxy of `tests/faults/`.
- Everybody sees a write at once, as on S3. The simulation's listings may lag, single reads never.
- Times are exact; S3 tells whole seconds. A grace below some seconds is not proven.
- A crash comes between two calls, and takes a whole actor. What kill -9 does within one is seen in
  `tests/faults/`, on real processes.

Tables:
- One integer key and one number. Schema drift, key types, NULLs, folding and the SQL of deletes are
  for `tests/jobs/merge/`; a wrong row for these reasons is not found here.
- Only the scan join, which notices new keys. That the index join is guarded is shown on plans and
  on real tables. Lance also refuses commits that would do no harm (200 new keys and more at once):
  the fakes let more runs through, so no proof is weaker for it.
- A version that was expired can't be read or committed on, from one instant to the next. Lance may
  still serve what it has in memory. Only manifests go: no scan is cut short by a lost data file.
- Compaction sees fragments without deleted rows, and erases every catch-up entry. Lance keeps that
  of an index which it can't remap, wider than what is covered: such reads scan, and stay right.
- An index has one segment, which appending widens. Segments built apart, retraining and vector
  models are for `tests/jobs/index_catchup/`.
- A snapshot is stored inline and survives every commit. External files, which Lance loses, and the
  bytes themselves are for `tests/jobs/snapshot/test_snapshot.py`.
- Branches have no commits and no MemWAL of their own. Nothing is restored, overwritten, detached or
  initialised anew: the guards against that are shown on real tables only.
- A plain write of a user lands at once on the latest version, as Lance's own retries make it.
- Views are built by the fakes. `store.view` itself runs on real tables only.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from threading import Lock, RLock
from typing import Literal, Protocol, TypeVar

from memwal import errors
from memwal.ports import (
    OBJECT_BYTES_MAX,
    Clock,
    DeleteResult,
    FoundRuns,
    ObjectInfo,
    Objects,
    RequestCounts,
    check_folder,
    check_object_path,
    check_object_size,
)
from memwal.report import RunRecord

T = TypeVar("T")

_buckets = itertools.count(1)
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
        """The start, plus what was slept and advanced."""
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
        """Let time pass that nobody asked to sleep."""
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


@dataclass(kw_only=True, slots=True)
class MemoryBucket:
    """What several MemoryObjects share: path -> (data, modified at), and one lock."""

    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)
    name: str = field(default_factory=lambda: f"memory:{next(_buckets)}")


class MemoryObjects:
    """The Objects port in memory. Two with the same bucket see the same objects.

    Requests are counted as S3 would: a page or a delete batch of 1000 objects is one.
    """

    def __init__(
        self,
        *,
        bucket: MemoryBucket | None = None,
        clock: Clock | None = None,
        uri: str = "memory://table",
    ) -> None:
        self.bucket = MemoryBucket() if bucket is None else bucket
        self._clock = ManualClock() if clock is None else clock
        self._uri = uri
        self._counts = RequestCounts()

    @property
    def uri(self) -> str:
        """The name given to it."""
        return self._uri

    @property
    def store(self) -> str:
        """The bucket's own name."""
        return self.bucket.name

    @property
    def counts(self) -> RequestCounts:
        """Requests through this instance."""
        return self._counts

    @property
    def page_objects(self) -> int:
        """As on S3."""
        return _PAGE_OBJECTS

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object below the folder `prefix`, as of the call."""
        below = _below(prefix)
        with self.bucket.lock:
            found = [
                ObjectInfo(path=path, size_bytes=len(data), modified_at_nanos=modified)
                for path, (data, modified) in sorted(self.bucket.objects.items())
                if path.startswith(below)
            ]
            self._counts.list += _pages(len(found))
        return iter(found)

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted."""
        below = _below(prefix)
        with self.bucket.lock:
            rests = [path[len(below) :] for path in self.bucket.objects if path.startswith(below)]
            self._counts.list += 1
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises Missing; Corruption when it is larger."""

        def whole(data: bytes) -> bytes:
            check_object_size(f"{self._uri}/{path}", len(data), size_bytes_max)
            return data

        return self._read(path, whole)

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the object is shorter."""
        if not 0 <= start <= end:
            raise ValueError(f"not a range: [{start}, {end})")

        def cut(data: bytes) -> bytes:
            if len(data) < end:
                raise errors.Corruption(
                    f"{self._uri}/{path} has {len(data)} bytes; "
                    f"bytes [{start}, {end}) were expected"
                )
            return data[start:end]

        return self._read(path, cut)

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the object's size. Raises Missing."""
        if size_bytes_max < 1:
            raise ValueError(f"not a tail length: {size_bytes_max}")
        with self.bucket.lock:
            tail = self._read(path, lambda data: data[-size_bytes_max:])
            return tail, len(self.bucket.objects[path][0])

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        check_object_path(path)
        with self.bucket.lock:
            self._counts.get += 1
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
            self._counts.delete += _pages(len(wanted)) if wanted else 0
        return DeleteResult(deleted=len(wanted))

    def _read(self, path: str, cut: Callable[[bytes], bytes]) -> bytes:
        check_object_path(path)
        with self.bucket.lock:
            self._counts.get += 1
            if path not in self.bucket.objects:
                raise errors.Missing(f"{self._uri}/{path} does not exist")
            received = cut(self.bucket.objects[path][0])
            self._counts.bytes_read += len(received)
            return received

    def _write(self, path: str, data: bytes, *, replace: bool) -> None:
        check_object_path(path)
        with self.bucket.lock:
            self._counts.put += 1
            if not replace and path in self.bucket.objects:
                raise errors.AlreadyExists(f"{self._uri}/{path} exists")
            self.bucket.objects[path] = (bytes(data), self._clock.now_nanos())
            self._counts.bytes_written += len(data)


def _below(prefix: str) -> str:
    folder = check_folder(prefix)
    return f"{folder}/" if folder else ""


def _pages(objects: int) -> int:
    return max(1, -(-objects // _PAGE_OBJECTS))


class MemoryRunRecords:
    """The RunRecords port in memory."""

    def __init__(self) -> None:
        self._records: dict[str, RunRecord] = {}

    def add(self, record: RunRecord) -> None:
        """Store a record, unless one with its id is there."""
        self._records.setdefault(record.run_id, record)

    def newest(self, limit: int) -> FoundRuns:
        """The newest `limit` by the time they finished."""
        return FoundRuns(records=tuple(self._sorted()[:limit]))

    def prune(self, kept_max: int, *, slack: int = 0) -> int:
        """Delete the oldest beyond `kept_max`, if more than `slack` are."""
        found = self._sorted()
        if len(found) <= kept_max + slack:
            return 0
        for record in found[kept_max:]:
            del self._records[record.run_id]
        return len(found) - kept_max

    def _sorted(self) -> list[RunRecord]:
        return sorted(
            self._records.values(),
            key=lambda r: (-datetime.fromisoformat(r.finished_at).timestamp(), r.run_id),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One line of a script: what happens at the nth call that matches.

    `operation` and `path` are fnmatch patterns (`put*`, `*/manifest/*`); a delete matches when any
    of its paths does. `nth` counts from 1 among this fault's own matches; None is every one.
    `hook` runs first, then `error` is raised if there is one. `when="after"` lets the call take
    effect: with an error that is a lost reply.
    """

    operation: str
    path: str = "*"
    nth: int | None = 1
    when: Literal["before", "after"] = "before"
    error: Exception | None = None
    hook: Callable[[], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of an Objects: the method's name, the paths it names, and what it writes."""

    operation: str
    paths: tuple[str, ...]
    data: bytes | None = None


class CallHook(Protocol):
    """Asked about every call of a HookedObjects."""

    def __call__(self, call: Call, effect: Callable[[], T]) -> T:
        """Do what there is to do before and after; `effect()` makes the call.

        What is returned is the call's answer. An error instead of `effect()` is a call that had no
        effect, one after it a lost reply.
        """
        ...


class HookedObjects:
    """An Objects whose every call goes through a hook. A listing is made whole, at the call."""

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

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """A whole listing; the hook is asked at the call, not while it is read."""
        call = Call(operation="list", paths=(prefix,))
        return iter(self._hook(call, lambda: tuple(self._inner.list(prefix))))

    def list_folders(self, prefix: str) -> Sequence[str]:
        """As the wrapped store."""
        call = Call(operation="list_folders", paths=(prefix,))
        return self._hook(call, lambda: self._inner.list_folders(prefix))

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """As the wrapped store."""
        call = Call(operation="get", paths=(path,))
        return self._hook(call, lambda: self._inner.get(path, size_bytes_max))

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """As the wrapped store."""
        call = Call(operation="get_range", paths=(path,))
        return self._hook(call, lambda: self._inner.get_range(path, start, end))

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """As the wrapped store."""
        call = Call(operation="get_tail", paths=(path,))
        return self._hook(call, lambda: self._inner.get_tail(path, size_bytes_max))

    def exists(self, path: str) -> bool:
        """As the wrapped store."""
        return self._hook(Call(operation="exists", paths=(path,)), lambda: self._inner.exists(path))

    def put_if_absent(self, path: str, data: bytes) -> None:
        """As the wrapped store."""
        call = Call(operation="put_if_absent", paths=(path,), data=data)
        self._hook(call, lambda: self._inner.put_if_absent(path, data))

    def put(self, path: str, data: bytes) -> None:
        """As the wrapped store."""
        call = Call(operation="put", paths=(path,), data=data)
        self._hook(call, lambda: self._inner.put(path, data))

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """As the wrapped store."""
        wanted = tuple(paths)
        call = Call(operation="delete", paths=wanted)
        return self._hook(call, lambda: self._inner.delete(wanted))


class FaultyObjects(HookedObjects):
    """An Objects with a script of faults. `calls` holds every (operation, path) in order."""

    def __init__(self, inner: Objects, *faults: Fault) -> None:
        super().__init__(inner, self._scripted)
        self._faults = faults
        self._matches = [0] * len(faults)
        self._lock = Lock()
        self.calls: list[tuple[str, str]] = []

    def _scripted(self, call: Call, effect: Callable[[], T]) -> T:
        due = self._due(call.operation, call.paths)
        _strike(due, "before")
        result = effect()
        _strike(due, "after")
        return result

    def _due(self, operation: str, paths: Sequence[str]) -> Sequence[Fault]:
        due = []
        with self._lock:
            self.calls += [(operation, path) for path in paths]
            for at, fault in enumerate(self._faults):
                if not fnmatchcase(operation, fault.operation):
                    continue
                if not any(fnmatchcase(path, fault.path) for path in paths):
                    continue
                self._matches[at] += 1
                if fault.nth in (None, self._matches[at]):
                    due.append(fault)
        return due


def _strike(due: Sequence[Fault], when: str) -> None:
    for fault in due:
        if fault.when != when:
            continue
        if fault.hook is not None:
            fault.hook()
        if fault.error is not None:
            raise fault.error
