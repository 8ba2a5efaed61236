"""The doors to a shard's writer and its WAL, for the job that rescues abandoned shards.

As in `memwal/ports.py`: `apply` sees nothing else of Lance and of storage.
"""

from __future__ import annotations

from typing import Protocol

from memwal.format.replay import WalEntry
from memwal.jobs.rescue.plan import RescueEvidence, RescueMark
from memwal.model import ShardId


class ShardWal(Protocol):
    """What is stored of a shard, and the mark of a rescue that is under way."""

    def read(self, shard_id: ShardId) -> RescueEvidence | None:
        """The shard as it is now; None when no writer ever claimed it.

        What is wrong with an entry is in its `problem`. Raises Corruption for a torn manifest or
        mark, StoreUnavailable.
        """
        ...

    def mark(self, shard_id: ShardId, mark: RescueMark) -> int:
        """Store the mark; the store's time at which it did."""
        ...

    def keep_torn(self, shard_id: ShardId, entry: WalEntry) -> None:
        """Copy a torn entry's bytes to where they are kept.

        Raises LostRace when the entry is not as torn as it was, Refused when other bytes are kept
        there.
        """
        ...

    def drop_torn(self, shard_id: ShardId, position: int, sentinel_epoch: int) -> None:
        """Put a sentinel in the entry's place, at one stroke: the position is never free."""
        ...

    def unmark(self, shard_id: ShardId) -> None:
        """Remove the mark: the rescue is over."""
        ...


class ClaimedShard(Protocol):
    """A shard that is ours, with its WAL replayed into memory."""

    @property
    def rows(self) -> int:
        """Rows that were replayed and not flushed yet."""
        ...

    def flush(self) -> None:
        """Write what was replayed as generations, and give the shard up.

        Raises LostRace when another writer claimed the shard meanwhile: it replays the same
        entries. StoreUnavailable when it did not work; the rows are in the WAL as before.
        """
        ...


class ShardWriters(Protocol):
    """Opens shards for writing. Each claim fences the shard's writer (invariant 4: on request)."""

    def claim(
        self, shard_id: ShardId, *, memtable_rows_max: int, memtable_batches_max: int
    ) -> ClaimedShard:
        """Claim the shard and replay its WAL.

        Raises Refused for a SEALED shard, LostRace, Corruption for a WAL that can't be replayed,
        StoreUnavailable.
        """
        ...
