"""The ports to the outside world, and how to wait by one of them before another attempt.

`apply` reaches storage, tables and time only through these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from memwal.errors import Corruption, MemWalError
from memwal.model import (
    FlushedGeneration,
    MemWalState,
    ShardId,
    ShardManifest,
    StoredFile,
    TableView,
    VersionManifest,
)


def backoff_seconds(
    clock: Clock, attempt: int, seconds_max: float, *, first_seconds: float = 0.05
) -> float:
    """Return how many seconds to wait after the given attempt; attempts are counted from 1."""
    return clock.random() * min(seconds_max, first_seconds * 2.0 ** min(attempt, 30))


def back_off(clock: Clock, attempt: int, seconds_max: float, deadline_seconds: float) -> bool:
    """Wait, and return True; False at once if the wait would pass the deadline.

    The deadline is by the monotonic clock.
    """
    seconds = backoff_seconds(clock, attempt, seconds_max)
    if clock.monotonic_seconds() + seconds > deadline_seconds:
        return False
    clock.sleep(seconds)
    return True


Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(kw_only=True, slots=True)
class RequestCounts:
    """Object-store requests and bytes. Each store has one instance; reports add them up."""

    list: int = 0
    get: int = 0
    put: int = 0
    delete: int = 0
    retries: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def as_dict(self) -> dict[str, int]:
        """A plain copy, for a report."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteResult:
    """What a batch delete did. An object that was already gone counts as deleted."""

    deleted: int = 0
    failed: tuple[tuple[str, str], ...] = field(default=())


# The largest objects that are read whole (invariant 11): staged rows, WAL entries.
OBJECT_BYTES_MAX = 1024 * 1024 * 1024
# A part of an upload: S3 takes none below 5 MiB but the last, and at most 10,000 of an object.
PART_BYTES = 16 * 1024 * 1024
# The limit for a single document: a shard's manifest, a lease claim, a tag, a run's record.
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024
# The limit for a table's manifest, which describes every fragment: Protobuf's own maximum.
TABLE_MANIFEST_BYTES_MAX = 2 * 1024 * 1024 * 1024


def check_object_size(where: str, size_bytes: int, size_bytes_max: int) -> None:
    """Raise Corruption if an object is larger than the limit for reading it whole."""
    if size_bytes > size_bytes_max:
        raise Corruption(
            "MW-O01", f"{where} has {size_bytes} bytes; at most {size_bytes_max} are read"
        )


def check_object_path(path: str) -> str:
    """Return `path` if it may name an object below a store's root, else raise ValueError.

    Every store calls this first. Paths that come out of storage were validated when they were read.
    """
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"not a relative object path: {path!r}")
    return path


def check_folder(prefix: str) -> str:
    """Return the folder `prefix` without a closing slash, else ValueError; empty is the root."""
    return check_object_path(prefix.removesuffix("/")) if prefix else ""


class Objects(Protocol):
    """Objects below one root (a table's folder). Paths are relative, `/`-separated, no `..`.

    Every method may raise StoreUnavailable (after retries, within a total deadline) and
    BadCredentials. Throttling and transient faults are retried inside; a put-if-absent that
    lost (S3: 412) never is. After one that collided (409) what is stored is looked up: it is
    retried where nothing is.
    """

    @property
    def uri(self) -> str:
        """The root's address, without credentials."""
        ...

    @property
    def store(self) -> str:
        """Names the store of the root: the same text for all of its tables, and for no others."""
        ...

    @property
    def counts(self) -> RequestCounts:
        """Requests so far."""
        ...

    @property
    def page_objects(self) -> int:
        """How many objects, at any depth, one request lists; 0 if each folder costs a request."""
        ...

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every object below the folder `prefix` (recursive), in no promised order."""
        ...

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted; empty when there is none."""
        ...

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """Read the whole object. Raises Missing; Corruption, unread, if it is too large."""
        ...

    def get_range(self, path: str, start: int, end: int) -> bytes:
        """Bytes [start, end). Raises Missing; Corruption when the object is shorter."""
        ...

    def get_tail(self, path: str, size_bytes_max: int) -> tuple[bytes, int]:
        """At most the last `size_bytes_max` bytes, and the object's size. Raises Missing."""
        ...

    def exists(self, path: str) -> bool:
        """Whether the object exists."""
        ...

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create the object whole, or raise AlreadyExists; a reader never sees half of it.

        An object that already holds exactly `data` raises AlreadyExists too: the caller compares.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object; a reader sees either the old or the new one, whole."""
        ...

    def put_parts(self, path: str, parts: Iterable[bytes]) -> None:
        """Create an object out of parts, of which few are held at a time, or raise AlreadyExists.

        All parts but the last have the same size, `PART_BYTES`. They may be asked for again from
        the beginning. What raises while they are read leaves no object. Only where a store's
        uploads know no condition (Google, Azure), of two that create one name the later stands.
        """
        ...

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete the objects in batches. Failures are returned, not raised."""
        ...


class Clock(Protocol):
    """The source of time, sleep, randomness and ids, so that runs can be replayed."""

    def now_nanos(self) -> int:
        """Wall clock, nanoseconds since the epoch (UTC)."""
        ...

    def monotonic_seconds(self) -> float:
        """A clock that never goes back, for deadlines and durations."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...

    def new_id(self) -> str:
        """A fresh UUID v4 as text."""
        ...


class Steps(Protocol):
    """Called with the name of each protocol step before it is taken; fault tests stop there."""

    def __call__(self, step: str) -> None:
        """`step` is about to happen."""
        ...


def no_steps(step: str) -> None:
    """The Steps port of a run whose steps nobody follows."""


class Views(Protocol):
    """Reads the state of one table, always fresh.

    Raises NotATable, Unsupported, Corruption, StoreUnavailable, BadCredentials.
    """

    def table(self) -> TableView:
        """The table at its latest version with every shard.

        A broken shard does not raise: it is in `broken`.
        """
        ...

    def table_version(self) -> int:
        """The latest version's number."""
        ...

    def shard(self, shard_id: ShardId) -> TableView:
        """The table with this shard only. If the shard is broken, its error is raised."""
        ...

    def shards(self, shard_ids: Sequence[ShardId]) -> TableView:
        """The table with these shards only; broken ones are in `broken`, missing ones left out."""
        ...

    def manifest(self, version: int) -> VersionManifest:
        """One version's own manifest. Raises Missing if the version has expired."""
        ...

    def mem_wal(self, version: int) -> MemWalState:
        """MemWAL details of one version. Raises NotATable when that version has none."""
        ...

    def flushed_at_nanos(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        """When a generation was flushed, by its writer's clock. Raises Missing."""
        ...

    def mem_wal_since_nanos(self, view: TableView, not_after_nanos: int) -> int | None:
        """Return since when the view's MemWAL index has provably existed without a break.

        Looks no further back than a version that was committed at or before `not_after_nanos`.
        None if the retained versions do not reach back far enough to settle it.
        """
        ...


class ShardCommits(Protocol):
    """Reads and writes shard manifests, for the garbage job."""

    def latest(self, shard_id: ShardId) -> ShardManifest | None:
        """The newest manifest. Raises Corruption for a torn or forged one."""
        ...

    def commit(self, current: ShardManifest | None, proposed: ShardManifest) -> ShardManifest:
        """Write `proposed` as the version after `current`.

        Raises LostRace if somebody else wrote that version, StoreUnavailable, OutcomeUnknown.
        """
        ...


class Engine(Protocol):
    """Runs independent units of work side by side. Results come back in the units' order."""

    @property
    def name(self) -> str:
        """`local` or `spark`."""
        ...

    def run(
        self,
        work: Callable[[Unit], Result],
        units: Sequence[Unit],
        on_done: Callable[[int], None],
        lost: Callable[[Unit, MemWalError], Result] | None = None,
    ) -> Sequence[Result]:
        """Run `work` on each unit; `on_done(n)` tells how many are done so far.

        If units run in processes of their own and one keeps killing its process, the result of
        `lost(unit, WorkerDied)` stands in for it, and the others still finish. Without `lost`,
        WorkerDied is raised.
        """
        ...

    def cancel(self) -> None:
        """End what other threads are running here, as soon as it is safe to do so."""
        ...
