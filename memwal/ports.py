"""The doors to the outside world. `apply` sees nothing else of storage, tables or time."""

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

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(kw_only=True, slots=True)
class RequestCounts:
    """Object-store requests and bytes. One instance a store; added up in reports."""

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


# Objects are read whole up to this size (invariant 11): rows that are staged, WAL entries.
OBJECT_BYTES_MAX = 1024 * 1024 * 1024
# What is one document: a shard's manifest, a lease claim, a tag, a run's record.
LOWERING_JOB = "snapshot"
"""Claims of the lease under this name may lower merge progress for a moment."""
DOCUMENT_BYTES_MAX = 64 * 1024 * 1024
# Of a table's manifest, which describes every fragment; Protobuf takes no message that is larger.
TABLE_MANIFEST_BYTES_MAX = 2 * 1024 * 1024 * 1024


def check_object_size(where: str, size_bytes: int, size_bytes_max: int) -> None:
    """Raise Corruption for an object that is larger than whole objects are read."""
    if size_bytes > size_bytes_max:
        raise Corruption(
            "MW-O01", f"{where} has {size_bytes} bytes; at most {size_bytes_max} are read"
        )


def check_object_path(path: str) -> str:
    """`path` itself when it may name an object below a store's root, else ValueError.

    Every store calls this first. Paths out of storage are validated already, where they are read.
    """
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"not a relative object path: {path!r}")
    return path


def check_folder(prefix: str) -> str:
    """The same for a folder: empty is the root, one closing slash is dropped."""
    return check_object_path(prefix.removesuffix("/")) if prefix else ""


class Objects(Protocol):
    """Objects below one root (a table's folder). Paths are relative, `/`-separated, no `..`.

    Every method may raise StoreUnavailable (after retries, within a total deadline) and
    BadCredentials. Throttling and transient faults are retried inside; a lost put-if-absent
    (S3: 412) never is. Puts that met (409) are retried too, and looked up at the deadline.
    """

    @property
    def uri(self) -> str:
        """The root's address, without credentials."""
        ...

    @property
    def store(self) -> str:
        """Which store the root is in: the same text for all tables there, for no other store's."""
        ...

    @property
    def counts(self) -> RequestCounts:
        """Requests so far."""
        ...

    @property
    def page_objects(self) -> int:
        """How many objects of any depth one request lists; 0 where each folder costs one."""
        ...

    def list(self, prefix: str) -> Iterator[StoredFile]:
        """Every object below the folder `prefix` (recursive), in no promised order."""
        ...

    def list_folders(self, prefix: str) -> Sequence[str]:
        """Names of the folders directly below `prefix`, sorted; empty when there is none."""
        ...

    def get(self, path: str, size_bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises Missing; Corruption when it is larger, and then reads none."""
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

        An object that holds exactly `data` "exists" too: the caller compares.
        """
        ...

    def put(self, path: str, data: bytes) -> None:
        """Write the object, replacing any; a reader sees the old or the new whole."""
        ...

    def delete(self, paths: Iterable[str]) -> DeleteResult:
        """Delete in batches. What failed is returned, not raised."""
        ...


class Clock(Protocol):
    """Time, sleep, chance and ids come through here, so that runs can be replayed."""

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
    """Called with the name of each step of a protocol before it is taken; fault runs stop there."""

    def __call__(self, step: str) -> None:
        """`step` is about to happen."""
        ...


def no_steps(step: str) -> None:
    """The Steps port of a run that is not watched."""


class Views(Protocol):
    """Reads the state of one table, always fresh.

    Raises NotATable, Unsupported, Corruption, StoreUnavailable, BadCredentials.
    """

    def table(self) -> TableView:
        """The table at its latest version with every shard.

        A broken shard is in `broken`, and does not raise.
        """
        ...

    def table_version(self) -> int:
        """The latest version's number."""
        ...

    def shard(self, shard_id: ShardId) -> TableView:
        """The table with this shard only. Raises what is wrong with the shard."""
        ...

    def shards(self, shard_ids: Sequence[ShardId]) -> TableView:
        """The table with these shards only: broken ones in `broken`, none that are gone."""
        ...

    def manifest(self, version: int) -> VersionManifest:
        """One version's own manifest. Raises Missing when it was expired."""
        ...

    def mem_wal(self, version: int) -> MemWalState:
        """MemWAL details of one version. Raises NotATable when that version has none."""
        ...

    def flushed_at_nanos(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        """When a generation was flushed, by its writer's clock. Raises Missing."""
        ...

    def mem_wal_since_nanos(self, view: TableView, not_after_nanos: int) -> int | None:
        """From when on the view's MemWAL index provably existed without a break.

        Looks no further back than a version that was committed at or before `not_after_nanos`.
        None when retained versions end before that is settled.
        """
        ...


class ShardCommits(Protocol):
    """The shards' manifests, as the garbage job changes them."""

    def latest(self, shard_id: ShardId) -> ShardManifest | None:
        """The newest manifest. Raises Corruption for a torn or forged one."""
        ...

    def commit(self, current: ShardManifest | None, proposed: ShardManifest) -> ShardManifest:
        """Write `proposed` as the version after `current`.

        Raises LostRace when somebody else wrote that version, StoreUnavailable, OutcomeUnknown.
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

        Where units run in processes of their own, one that keeps killing its process comes to
        `lost(unit, WorkerDied)`, and the others to their results. Without `lost` that is raised.
        """
        ...

    def cancel(self) -> None:
        """End what other threads run here, as soon as that does no harm."""
        ...
