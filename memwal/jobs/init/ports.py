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

    def name_adopted(self, ranges: Mapping[ShardId, range]) -> None:
        """Record what progress is about to be let go of, by shard."""
        ...

    def let_go(
        self, inherited: Mapping[ShardId, int], merged: Mapping[ShardId, int]
    ) -> Sequence[Mapping[ShardId, int]]:
        """Replace the MemWAL index entry, of which Lance lets go with its progress only.

        It is as in the version that was read last, without any progress of `inherited`, and with
        `merged` raised. Returns the progress of versions that came in between, which it overwrote;
        the next one is made on top of it.
        """
        ...
