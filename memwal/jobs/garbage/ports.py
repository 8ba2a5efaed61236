"""What collecting garbage asks for: evidence, and the expiry of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from memwal.jobs.garbage.model import Evidence, GarbageLimits, Sweep, WriterClaim
from memwal.model import ShardId, ShardManifest, StoredFile, TableView
from memwal.ports import Views

FindDeciding: TypeAlias = Callable[[Evidence], Mapping[ShardId, int]]


class GarbageViews(Views, Protocol):
    """Views of a table whose shards can be looked up one by one."""

    def table(self, *, probed: bool = False) -> TableView:
        """As every view; `probed` finds each shard's newest manifest without trusting a listing."""
        ...

    def base(self) -> TableView:
        """The latest version, without its shards."""
        ...

    def list_shards(self, view: TableView) -> tuple[TableView, Sequence[ShardId]]:
        """The shards that have a folder; the view with what else lies among them."""
        ...

    def add_shards(
        self,
        view: TableView,
        shard_ids: Iterable[ShardId],
        listed: Mapping[ShardId, Sequence[StoredFile]],
    ) -> TableView:
        """A view of the base with these shards; their manifests are probed for unless `listed`."""
        ...


class GarbageEvidence(Protocol):
    """Reads what is decided by; to be called after the view was read."""

    def has_shards(self) -> bool:
        """Whether a folder of any shard is there."""
        ...

    def read(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        *,
        limits: GarbageLimits,
        now_nanos: int,
        verified: bool = False,
        whole_shards: bool = False,
        find_deciding: FindDeciding | None = None,
        only: Set[ShardId] | None = None,
        listed: Mapping[ShardId, Sequence[StoredFile]] | None = None,
        beside: Evidence | None = None,
    ) -> Evidence:
        """Retained versions, shard folders, and what lies beside them.

        `manifests` are the view's. `verified` takes nothing from a cache that another process
        wrote; a plan that is carried out needs that. `whole_shards` lists every file of a shard.
        `find_deciding` is given evidence in which WAL entries are as the cache has them, and tells
        from which position on a shard's have to be read themselves; the others count as unread.
        `only` are the shards to look at; `listed` are files of theirs that were listed a moment
        ago, and `beside` is what was read then of everything else.
        What can't be read is a problem in the evidence; raises StoreUnavailable, BadCredentials.
        """
        ...

    def list_files(self, shards: Iterable[ShardId]) -> Mapping[ShardId, Sequence[StoredFile]]:
        """The files of some shards."""
        ...

    def recall_sweep(self) -> Sweep | None:
        """What former passes remember; None where nothing is, or nothing that can be used."""
        ...

    def remember_sweep(self, sweep: Sweep, before_write: Callable[[], None]) -> None:
        """Store it for the next pass; what can't be stored is left out."""
        ...

    def store_now_nanos(self, name: str) -> int:
        """The time by the clock that dates the store's files, read off a file of this name."""
        ...

    def referenced_versions(self) -> frozenset[int]:
        """Versions of main that tags name or branches start from, which no expiry removes.

        Only to tell whether expiring is worth a try: what can't be read is left out.
        """
        ...

    def claimed_versions(self) -> frozenset[int] | None:
        """The same without tags of checkpoints; None where a reference can't be read."""
        ...

    def oldest_claim(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        evidence: Evidence,
        before_nanos: int,
    ) -> WriterClaim | None:
        """The oldest claim that still holds a shard, of those made before then; None without one.

        What can't be read is left out. Lists nothing, and reads no manifest of a shard that nobody
        touched since or that was claimed since; one of another, and a few of the oldest ones.
        """
        ...

    def remember(self, before_write: Callable[[], None]) -> None:
        """Store what is known of versions and WAL entries, so that the next run reads less.

        `before_write` is called when there is news; where it raises MemWalError, nothing is stored.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Expired:
    """What Lance's own cleanup removed."""

    versions: int
    size_bytes: int


class VersionExpiry(Protocol):
    """Lance's own cleanup of old versions."""

    def check_expirable(self) -> None:
        """Raise Refused where the cleanup could reach files of another table."""
        ...

    def expire_versions(self, older_than_seconds: float) -> Expired:
        """Remove versions that are older by this host's clock.

        The latest, tagged and branched-off ones stay. Raises Refused, StoreUnavailable.
        """
        ...


class DropProgress(Protocol):
    """Shows how far the drops are."""

    def start(self, what: str, total: int) -> None:
        """So many shards are to be dropped from."""
        ...

    def done(self, count: int) -> None:
        """So many of them are done."""
        ...
