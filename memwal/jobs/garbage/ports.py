"""The ports of garbage collection: views of a table, and the expiry of versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from memwal.jobs.garbage.model import Evidence
from memwal.model import ShardId, StoredFile, TableView
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
