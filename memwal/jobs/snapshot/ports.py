"""The ports of the snapshot job: views of a table, and its shard snapshots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from memwal.jobs.snapshot.plan import Storage, Stored
from memwal.model import BrokenShard, MemWalState, ShardId, ShardManifest, ShardSpec, TableView

Found = ShardManifest | BrokenShard | None
"""A shard's latest manifest, or its error as a BrokenShard; None for a shard without any."""


class SnapshotViews(Protocol):
    """Reads the state of one table, always fresh. Raises as the Views port."""

    def table(
        self, *, read_shards: Callable[[Sequence[ShardId]], Sequence[Found]] | None = None
    ) -> TableView:
        """The table at its latest version; `read_shards` reads the manifests of its shards."""
        ...

    def read_shards(self, shard_ids: Sequence[ShardId]) -> Sequence[Found]:
        """Read the latest manifest of each shard, in this process."""
        ...

    def table_version(self) -> int:
        """The latest version's number."""
        ...

    def mem_wal(self, version: int) -> MemWalState:
        """MemWAL details of one version. Raises NotATable when that version has none."""
        ...


class Snapshots(Protocol):
    """Shard snapshots: their bytes, and the commit that stores them."""

    def encode(self, manifests: Sequence[ShardManifest], specs: Sequence[ShardSpec]) -> bytes:
        """The manifests, one row each, as Lance file bytes; the same rows give the same bytes."""
        ...

    def compare(self, state: MemWalState, data: bytes) -> Stored:
        """How the stored snapshot differs from `data`, without parsing it."""
        ...

    def commit(
        self,
        *,
        version: int,
        state: MemWalState,
        index_uuid: str,
        data: bytes,
        storage: Storage,
        num_shards: int,
        taken_at_millis: int,
        merged: Mapping[ShardId, int],
    ) -> int:
        """Replace the entry of `version`, raising progress to `merged`; returns the new version.

        Raises LostRace, or StoreUnavailable for an error with an open outcome.
        """
        ...

    def is_turned_back(self, version: int) -> bool | None:
        """Whether a user made the version by a restore or an overwrite; None when unknown."""
        ...

    def confirm(self, *, taken_at_millis: int, index_uuid: str, data: bytes) -> None:
        """Let readers use the snapshot that a commit stored, as no progress is left lowered."""
        ...

    def fragments_and_rows(self, version: int) -> tuple[int, int]:
        """How many fragments and rows a version has. Raises Missing if expired."""
        ...
