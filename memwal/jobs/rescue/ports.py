"""The ports of a rescue: a shard's WAL and its writer.

As with `memwal/ports.py`, `apply` sees nothing else of Lance and of storage.
"""

from __future__ import annotations

from typing import Protocol

from memwal.format.replay import WalEntry
from memwal.jobs.rescue.plan import RescueEvidence, RescueMark
from memwal.model import ShardId


class ShardWal(Protocol):
    """What is stored of a shard, and the mark of an unfinished rescue."""

    def read(self, shard_id: ShardId) -> RescueEvidence | None:
        """The shard as it is now; None when no writer ever claimed it.

        What is wrong with an entry is in its `problem`. Raises Corruption for a torn manifest or
        mark, StoreUnavailable.
        """
        ...

    def mark(self, shard_id: ShardId, mark: RescueMark) -> int:
        """Store the mark; returns the time by the store's clock."""
        ...

    def keep_torn(self, shard_id: ShardId, entry: WalEntry) -> None:
        """Copy a torn entry's bytes to the place where they are kept.

        Raises LostRace when the entry has changed, Refused when other bytes are kept there already.
        """
        ...

    def drop_torn(self, shard_id: ShardId, position: int, sentinel_epoch: int) -> None:
        """Replace the entry with a sentinel in one put, so that the position is never free."""
        ...

    def unmark(self, shard_id: ShardId) -> None:
        """Remove the mark when the rescue is over."""
        ...


class ClaimedShard(Protocol):
    """A shard that is ours, with its WAL replayed into memory."""

    @property
    def rows(self) -> int:
        """Rows that were replayed and not flushed yet."""
        ...

    def flush(self) -> None:
        """Write the replayed rows as generations, and close the writer.

        Raises LostRace when another writer has claimed the shard meanwhile, which replays the same
        entries, and StoreUnavailable when the flush failed; the rows are in the WAL as before.
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
