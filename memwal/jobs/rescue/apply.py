"""Rescues abandoned shards: claims each, replays its WAL, and leaves generations to merge.

It may be killed after any step, and is then simply run again. Before the claim, only a mark below
`_maintenance/` is written, and torn entries are dropped if that is asked for. After the claim, the
rows are still in the WAL, for whoever claims next. A flush is one commit of the shard's manifest.
The mark keeps a rerun from waiting for its own traces to grow old (see `plan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.errors import MemWalError, StoreUnavailable
from memwal.jobs.rescue.plan import (
    RESCUE,
    RescueEvidence,
    ShardRescue,
    plan_rescue,
    still_unflushed,
)
from memwal.jobs.rescue.request import RescueRequest
from memwal.model import ShardId
from memwal.ports import Clock, Steps, no_steps

if TYPE_CHECKING:
    from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal


@dataclass(frozen=True, kw_only=True)
class ShardRescuer:
    """Rescues one table's shards, one after the other."""

    wal: StoredShardWal
    writers: LanceShardWriters
    clock: Clock
    request: RescueRequest = RescueRequest()
    before_claim: Callable[[], None] = lambda: None
    intend: Callable[[ShardRescue], None] = lambda plan: None
    """Called before torn entries are replaced; raises StoreUnavailable where it can't be written
    down, and then they stay."""
    steps: Steps = no_steps

    def plan(self, shard_id: ShardId) -> ShardRescue | None:
        """Plan by this host's clock what would be done; None for a shard without a manifest.

        Raises Corruption, StoreUnavailable.
        """
        found = self.wal.read(shard_id)
        now = self.clock.now_nanos()
        return None if found is None else plan_rescue(found, self.request, now)

    def run(self, shard_id: ShardId) -> ShardRescue | None:
        """Rescue the shard if it is still abandoned; None for one without a manifest.

        Errors from the claim on are in the report; raises those before it, such as LeaseHeld.
        """
        found = self.wal.read(shard_id)
        if found is None:
            return None
        plan = plan_rescue(found, self.request, self.clock.now_nanos())
        if plan.action != RESCUE:
            return plan.end(found.manifest, found.manifest)
        self.steps("mark")
        now = self.wal.mark(shard_id, plan.mark)
        # Judged again by the store's time, which the mark's file tells: this host's may be wrong.
        plan = plan_rescue(found, self.request, now)
        if plan.action != RESCUE:
            self.wal.unmark(shard_id)
            return plan.end(found.manifest, found.manifest)
        self.before_claim()
        try:
            self._drop_torn(shard_id, plan)
        except MemWalError as error:
            return plan.end(found.manifest, found.manifest, error)
        return self._claim(shard_id, plan, found)

    def _drop_torn(self, shard_id: ShardId, plan: ShardRescue) -> None:
        """Drop torn entries, newest first.

        If it is interrupted, the remaining ones are still at the end of the WAL.
        """
        if plan.torn:
            self.intend(plan)
        for entry in plan.torn:
            self.steps("keep")
            self.wal.keep_torn(shard_id, entry)
            self.steps("drop")
            self.wal.drop_torn(shard_id, entry.position, plan.sentinel_epoch)

    def _claim(self, shard_id: ShardId, plan: ShardRescue, found: RescueEvidence) -> ShardRescue:
        error: MemWalError | None = None
        try:
            self.steps("claim")
            flush = self.writers.claim(shard_id, **plan.memtable)
            self.steps("flush")
            flush()
            self.steps("flushed")
        except MemWalError as caught:
            error = caught
        try:
            after = self.wal.read(shard_id)
            if after is None:
                raise StoreUnavailable(f"shard {shard_id}: its manifests are gone")
        except MemWalError as unread:
            return plan.end(found.manifest, None, error or unread)
        left = still_unflushed(after.manifest, found.entries)
        if left and error is None:
            error = StoreUnavailable(
                f"shard {shard_id}: {left} entries are in no generation after the flush"
            )
        if not left:
            # Even if an error came after the commit, or another writer flushed the same rows.
            error = None
            self.wal.unmark(shard_id)
        return plan.end(found.manifest, after.manifest, error)
