"""The port of `init`: the table to make ready."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from memwal.jobs.init.plan import FoundTable, InitRequest
from memwal.model import ShardId
from memwal.rows.policy import RowPolicy


class InitTable(Protocol):
    """One table. Each commit is made on top of the version that was read last.

    Commits raise LostRace when another commit was in the way, Unsupported for what Lance refuses,
    and StoreUnavailable for an error that leaves open whether the commit has landed.
    """

    def read(self, request: InitRequest) -> FoundTable:
        """Read the latest version; raises NotATable, too."""
        ...

    def set_primary_key(self, columns: Sequence[str]) -> None:
        """Commit the key, which can't be changed afterwards."""
        ...

    def put_policy(self, policy: RowPolicy) -> None:
        """Commit the row-merge policy. Raises Refused if the table has another one."""
        ...

    def initialize(self, request: InitRequest) -> None:
        """Commit an empty MemWAL index."""
        ...

    def name_adopted(self, ranges: Mapping[ShardId, range]) -> None:
        """Record the progress that is about to be let go of, by shard."""
        ...

    def let_go(
        self, inherited: Mapping[ShardId, int], merged: Mapping[ShardId, int]
    ) -> Sequence[Mapping[ShardId, int]]:
        """Replace the MemWAL index entry, the only way to make Lance let go of progress.

        The new entry is that of the version read last, without progress for the shards of
        `inherited`, and with the progress in `merged` raised. Returns the progress in each version
        that came in between, which the commit overwrote. The next commit is made on top of this
        one.
        """
        ...
