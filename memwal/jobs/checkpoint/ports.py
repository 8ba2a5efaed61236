"""The ports of making a checkpoint: views of the table, checkpoint records, tags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memwal.model import Checkpoint, TableView


class ProbedViews(Protocol):
    """Views of a table whose shards can be looked up one by one."""

    def table(self, *, probed: bool = False) -> TableView:
        """The latest version with every shard; `probed` trusts no listing of manifests."""
        ...

    def table_version(self) -> int:
        """The latest version's number."""
        ...


class Checkpoints(Protocol):
    """The records of a table's checkpoints. Raises Corruption, StoreUnavailable."""

    def list(self) -> Sequence[Checkpoint]:
        """All stored checkpoints."""
        ...

    def put(self, checkpoint: Checkpoint) -> None:
        """Store the checkpoint, replacing its earlier record."""
        ...

    def remove(self, checkpoint: Checkpoint) -> None:
        """Mark the checkpoint as expired, then delete its tag and its record."""
        ...


class Tags(Protocol):
    """Lance's tags."""

    def tag(self, name: str, version: int) -> None:
        """Tag a version of the base. Raises LostRace when that is gone, StoreUnavailable."""
        ...
