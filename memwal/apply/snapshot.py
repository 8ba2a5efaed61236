"""Refreshes the shard snapshot in the MemWAL index without ever lowering merge progress.

Replacing the MemWAL index entry from a stale version overwrites newer progress, and Lance reports
no conflict (field notes section 12). So the entry is read at the last moment, and after the commit
the landed version and those between are read back: what was lowered is put right at once. Until
then a reader merges generations once more that the base already has, which reads the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from memwal.apply.merge import no_steps
from memwal.errors import Corruption, LostRace, MemWalError, Missing, StoreUnavailable
from memwal.model import MemWalState, ShardId, TableView
from memwal.plan.snapshot import SnapshotLimits, SnapshotPlan, lowered, plan_snapshot
from memwal.ports import Clock, Snapshots, Steps, Views

_WAIT_SECONDS_MAX = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotResult:
    """What a refresh did. `storage` is None when nothing had to be written."""

    outcome: str
    num_shards: int
    storage: str | None
    repairs: int
    version_after: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRefresher:
    """Refreshes one table's snapshot. To be used under the table's lease only."""

    views: Views
    snapshots: Snapshots
    clock: Clock
    limits: SnapshotLimits = SnapshotLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None

    def plan(self, view: TableView) -> SnapshotPlan | None:
        """What a refresh would write now; None when the snapshot is fresh. Raises Refused."""
        return plan_snapshot(view, self.snapshots.read(view.mem_wal), self.limits)

    def run(self, read: Callable[[], TableView]) -> SnapshotResult:
        """Refresh from a view that `read` takes freshly, as often as a conflict makes it.

        Raises Refused for broken shards, LostRace when conflicts do not end, LeaseHeld when the
        lease is lost, Corruption when a commit changed the table's data (peers.md, L #8438).
        """
        error: MemWalError | None = None
        for _ in range(self.limits.attempts_max):
            view = read()
            plan = self.plan(view)
            if plan is None:
                return SnapshotResult(
                    # An earlier attempt may have landed although it reported an error.
                    outcome="nothing_to_do" if error is None else "done",
                    num_shards=len(view.shards),
                    storage=None,
                    repairs=0,
                    version_after=view.version,
                    reason="the snapshot says what the shard manifests say",
                )
            try:
                return self._refresh(view, plan)
            except (LostRace, StoreUnavailable) as caught:
                error = caught
                self.clock.sleep(self.clock.random() * _WAIT_SECONDS_MAX)
        raise LostRace(f"the snapshot's commit failed {self.limits.attempts_max} times: {error}")

    def _refresh(self, view: TableView, plan: SnapshotPlan) -> SnapshotResult:
        data = self.snapshots.encode(plan.rows, view.mem_wal.shard_specs)
        # The entry to replace is read again here, after the slow part.
        version = self.views.table_version()
        state = self.views.mem_wal(version)
        landed = self._commit(version, state, plan, data, {})
        repairs = 0
        while fell := self._lowered(version, landed):
            repairs += 1
            if repairs > self.limits.repairs_max:
                raise LostRace(
                    f"{view.uri}: merge progress was overwritten {repairs} times: "
                    f"{_progress_text(fell)} is still too low; run the snapshot again"
                )
            self.steps("repair")
            version, state = landed, self.views.mem_wal(landed)
            landed = self._commit(version, state, plan, data, fell)
        return SnapshotResult(
            outcome="done",
            num_shards=len(plan.rows),
            storage=plan.storage.value,
            repairs=repairs,
            version_after=landed,
            reason=plan.reason,
        )

    def _commit(
        self,
        version: int,
        state: MemWalState,
        plan: SnapshotPlan,
        data: bytes,
        merged: Mapping[ShardId, int],
    ) -> int:
        self.before_commit()
        self.steps("commit")
        landed = self.snapshots.commit(
            version=version,
            state=state,
            index_uuid=self.clock.new_id(),
            data=data,
            storage=plan.storage,
            num_shards=len(plan.rows),
            taken_at_millis=self.clock.now_nanos() // 10**6,
            merged=merged,
        )
        self.steps("committed")
        before = self.snapshots.fragments_and_rows(landed - 1)
        after = self.snapshots.fragments_and_rows(landed)
        if before != after:
            raise Corruption(
                f"version {landed}, a refresh of the MemWAL index, has {after} fragments and rows "
                f"instead of {before}; restore version {landed - 1} and report this"
            )
        return landed

    def _lowered(self, version: int, landed: int) -> dict[ShardId, int]:
        """Progress of the versions from `version` up to `landed` that `landed` does not keep."""
        before = []
        for between in range(version, landed):
            try:
                before.append(self.views.mem_wal(between))
            except Missing:
                continue  # expired already: a later one of the range still holds its progress
        return lowered(before, self.views.mem_wal(landed))


def _progress_text(progress: Mapping[ShardId, int]) -> str:
    return ", ".join(f"{shard}: {generation}" for shard, generation in progress.items())
