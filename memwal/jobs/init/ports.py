"""What initialising a table asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from memwal.jobs.init.plan import FoundTable, InitRequest
from memwal.model import ShardId
from memwal.rows.policy import RowPolicy


class InitTable(Protocol):
    """One table. Each commit is made on top of the version that was read last.

    Raises LostRace when another commit was in the way, Unsupported for what Lance refuses, and
    StoreUnavailable, after which a commit may have landed all the same.
    """

    def read(self, request: InitRequest) -> FoundTable:
        """The latest version. Raises NotATable too."""
        ...

    def set_primary_key(self, columns: Sequence[str]) -> None:
        """Commit the key, which can't be changed afterwards."""
        ...

    def put_policy(self, policy: RowPolicy) -> None:
        """Commit the row-merge policy. Raises Refused beside another one."""
        ...

    def initialize(self, request: InitRequest) -> None:
        """Commit an empty MemWAL index."""
        ...

    def let_go(self, inherited: Mapping[ShardId, int]) -> None:
        """Commit the MemWAL index without any progress of these shards."""
        ...
