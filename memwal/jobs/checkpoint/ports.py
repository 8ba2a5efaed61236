"""What making a checkpoint asks for: its record, and a tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from memwal.model import Checkpoint, TableView


class ProbedViews(Protocol):
    """Views whose shards are looked up one by one."""

    def table(self, *, probed: bool = False) -> TableView:
        """The latest version with every shard; `probed` trusts no listing of manifests."""
        ...

    def table_version(self) -> int:
        """The latest version's number."""
        ...


class Checkpoints(Protocol):
    """The records of a table's checkpoints. Raises Corruption, StoreUnavailable."""

    def list(self) -> Sequence[Checkpoint]:
        """All that are there."""
        ...

    def put(self, checkpoint: Checkpoint) -> None:
        """Store it, over what was stored of the same one."""
        ...

    def remove(self, checkpoint: Checkpoint) -> None:
        """Expire it, then delete its tag and it."""
        ...


class Tags(Protocol):
    """Lance's tags."""

    def tag(self, name: str, version: int) -> None:
        """Tag a version of the base. Raises LostRace when that is gone, StoreUnavailable."""
        ...
