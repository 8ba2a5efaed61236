"""The ports of garbage collection: views and evidence of a table, and the expiry of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from memwal.jobs.garbage.model import Evidence, GarbageLimits, Sweep, WriterClaim
from memwal.model import Cursor, ShardId, ShardManifest, StoredFile, TableView
from memwal.ports import Views

FindDeciding: TypeAlias = Callable[[Evidence], Mapping[ShardId, int]]


class GarbageViews(Views, Protocol):
    """Views of a table whose shards can be looked up one by one."""

    def table(self, *, probed: bool = False) -> TableView:
        """The latest version with its shards.

        With `probed`, each shard's newest manifest is found without trusting a listing.
        """
        ...

    def base(self) -> TableView:
        """The latest version, without its shards."""
        ...

    def list_shards(self, view: TableView) -> tuple[TableView, Sequence[ShardId]]:
        """The view, with strangers among the shard folders added, and the shards with a folder."""
        ...

    def add_shards(
        self,
        view: TableView,
        shard_ids: Iterable[ShardId],
        listed: Mapping[ShardId, Sequence[StoredFile]],
    ) -> TableView:
        """The view with these shards added; manifests are probed for, unless in `listed`."""
        ...


class GarbageEvidence(Protocol):
    """Reads the evidence that decides what may go; to be called after the view was read."""

    def has_shards(self) -> bool:
        """Whether the folder of any shard exists."""
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
        """Read the retained versions, the shard folders, and what lies beside them.

        What can't be read is noted as a problem in the evidence. Raises StoreUnavailable and
        BadCredentials.

        `manifests` are those of the view. With `verified`, nothing is taken from a cache that
        another process wrote; a plan that is carried out needs that. `whole_shards` keeps every
        file of a shard. `find_deciding` gets evidence with WAL entries as the cache has them, and
        returns the position in each shard from which on they have to be read; lower ones count as
        unread. `only` restricts the look to some shards; `listed` are files of theirs that were
        listed a moment ago, and `beside` is everything else that was read then.
        """
        ...

    def list_files(self, shards: Iterable[ShardId]) -> Mapping[ShardId, Sequence[StoredFile]]:
        """List the files of these shards."""
        ...

    def recall_sweep(self) -> Sweep | None:
        """The sweep that former passes stored; None where there is none that can be used."""
        ...

    def remember_sweep(self, sweep: Sweep, before_write: Callable[[], None]) -> None:
        """Store the sweep for the next pass; a failure to store it is ignored."""
        ...

    def store_now_nanos(self, name: str) -> int:
        """The store's own time, read off a file that is written under this name for the purpose."""
        ...

    def referenced_versions(self) -> frozenset[int]:
        """Versions of main that tags name or branches start from, which no expiry removes.

        It only tells whether expiring is worth a try, so references that can't be read are left
        out.
        """
        ...

    def cursors(self) -> Sequence[Cursor]:
        """The cursors of those who follow the table's changes. Raises Corruption."""
        ...

    def claimed_versions(self) -> frozenset[int] | None:
        """As `referenced_versions`, without tags of checkpoints; None if one can't be read."""
        ...

    def oldest_claim(
        self,
        manifests: Mapping[ShardId, ShardManifest],
        evidence: Evidence,
        before_nanos: int,
    ) -> WriterClaim | None:
        """The oldest writer claim that still holds a shard and was made before `before_nanos`.

        None without one; what can't be read is left out. It works on the listing in `evidence`, and
        reads few manifests: those that tell where a shard's present epoch began.
        """
        ...

    def remember(self, before_write: Callable[[], None]) -> None:
        """Store what is known of versions and WAL entries, so that the next run reads less.

        `before_write` is called if there is anything new to store; where it raises MemWalError,
        nothing is stored.
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

    def expire_versions(self, versions: Set[int]) -> Expired:
        """Remove these versions of main.

        The latest, tagged and branched-off ones stay. Raises Refused, StoreUnavailable.
        """
        ...


class DropProgress(Protocol):
    """Shows the progress of the drops."""

    def start(self, what: str, total: int) -> None:
        """Begin, with `total` shards to drop generations from."""
        ...

    def done(self, count: int) -> None:
        """Say that `count` of them are done."""
        ...
