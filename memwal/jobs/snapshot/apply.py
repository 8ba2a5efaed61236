"""Refreshes the shard snapshot in the MemWAL index without ever lowering merge progress.

Replacing the MemWAL index entry from a stale version overwrites newer progress, and Lance reports
no conflict (seen on pylance 14). So the entry is read at the last moment, and after the commit
the landed version and those between are read back: what was lowered is put right at once. Until
then a reader merges generations once more that the base already has, which reads the same. Not so
for a table with a row-merge policy, whose operands would count twice: it gets no snapshot. When one
of the versions between was expired meanwhile, nobody can tell what was lowered: the run says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from memwal.errors import (
    Corruption,
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    OutcomeUnknown,
    StoreUnavailable,
)
from memwal.jobs.merge.apply import no_steps
from memwal.jobs.snapshot.plan import (
    SnapshotLimits,
    SnapshotPlan,
    SnapshotRow,
    Storage,
    is_fresh,
    lowered,
    plan_snapshot,
    snapshot_rows,
    snapshot_specs,
)
from memwal.model import MemWalState, ShardId, TableView
from memwal.ports import Clock, Snapshots, Steps, Views

_WAIT_SECONDS_MAX = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotResult:
    """What a refresh did. `storage` tells where the snapshot is now, None where there is none."""

    outcome: str
    num_shards: int
    storage: str | None
    repairs: int
    version_after: int
    reason: str


@dataclass(kw_only=True, slots=True)
class _Run:
    """What one run has to remember over its attempts."""

    floor: int | None = None
    storage: str | None = None
    repairs: int = 0
    states: dict[int, MemWalState] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRefresher:
    """Refreshes one table's snapshot. To be used under the table's lease only."""

    views: Views
    snapshots: Snapshots
    clock: Clock
    limits: SnapshotLimits = SnapshotLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit that may lower progress; raises when the lease is lost."""
    before_repair: Callable[[], None] = lambda: None
    """Called before each repair; raises when the lease lapsed at any time since it was taken."""

    def plan(self, view: TableView) -> SnapshotPlan | None:
        """What a refresh would write now; None for nothing. Raises Refused."""
        if view.policy_text is not None:
            return None
        rows, data = self._encoded(view)
        stored = self.snapshots.compare(view.mem_wal, data)
        return None if is_fresh(view, rows, stored) else plan_snapshot(rows, stored, self.limits)

    def _encoded(self, view: TableView) -> tuple[tuple[SnapshotRow, ...], bytes]:
        """The rows that a snapshot has now, and their bytes."""
        rows = snapshot_rows(view)
        return rows, self.snapshots.encode(rows, snapshot_specs(view))

    def run(self, read: Callable[[], TableView]) -> SnapshotResult:
        """Refresh from a view that `read` takes freshly, as often as a conflict makes it.

        Raises Refused for broken shards, LostRace when conflicts do not end, LeaseHeld when the
        lease is lost, Corruption when a commit changed the table's data.
        """
        run = _Run()
        error: MemWalError | None = None
        for _ in range(self.limits.attempts_max):
            try:
                return self._attempt(run, read())
            except (LostRace, StoreUnavailable) as caught:
                error = caught
                self.clock.sleep(self.clock.random() * _WAIT_SECONDS_MAX)
        raise LostRace(
            f"the snapshot's commit failed {self.limits.attempts_max} times: {error}"
            + ("; merge progress may be too low: run it again" if run.floor is not None else "")
        )

    def _attempt(self, run: _Run, view: TableView) -> SnapshotResult:
        if view.policy_text is not None and run.floor is None:
            return nothing_to_write(view)
        rows, data = self._encoded(view)
        stored = self.snapshots.compare(view.mem_wal, data)
        # The entry to replace is read again here, after the slow part.
        version = self.views.table_version()
        fell = self._lowered(run, version)
        if is_fresh(view, rows, stored) and not fell:
            if run.unseen:
                raise OutcomeUnknown(_unseen_text(run.unseen))
            return SnapshotResult(
                # An earlier attempt may have landed although it reported an error.
                outcome="nothing_to_do" if run.floor is None else "done",
                num_shards=len(view.shards),
                storage=_standing(view) if run.floor is None else run.storage,
                repairs=run.repairs,
                version_after=version,
                reason="the snapshot says what the shard manifests say",
            )
        plan = plan_snapshot(rows, stored, self.limits)
        # From here on progress of this version and later ones may have been overwritten by us,
        # whatever a commit reports; later attempts look back as far as this.
        run.floor = version if run.floor is None else run.floor
        run.storage = plan.storage.value
        landed = self._commit(run, version, plan, data, fell)
        while fell := self._lowered(run, landed):
            if run.repairs >= self.limits.repairs_max:
                raise LostRace(f"progress is still too low: {_progress_text(fell)}")
            landed = self._commit(run, landed, plan, data, fell)
        if run.unseen:
            raise OutcomeUnknown(_unseen_text(run.unseen))
        return SnapshotResult(
            outcome="done",
            num_shards=len(rows),
            storage=plan.storage.value,
            repairs=run.repairs,
            version_after=landed,
            reason=plan.reason,
        )

    def _commit(
        self,
        run: _Run,
        version: int,
        plan: SnapshotPlan,
        data: bytes,
        merged: Mapping[ShardId, int],
    ) -> int:
        state = run.states[version] = self.views.mem_wal(version)
        if merged:
            # Whoever could work on the table meanwhile may have built on the lowered progress: a
            # fold of a part, which a repair would cover (invariant 1).
            self._ask_before_repair(merged)
            run.repairs += 1
            self.steps("repair")
        else:
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
        # First of all: somebody may be expiring it right now.
        self._remember(run, landed - 1)
        self._check_data(run, landed)
        return landed

    def _ask_before_repair(self, merged: Mapping[ShardId, int]) -> None:
        try:
            self.before_repair()
        except LeaseHeld as error:
            raise LeaseHeld(
                f"{error}; merge progress stays lower than it was ({_progress_text(merged)}): the "
                "next merge folds these generations again, and no row is lost"
            ) from None

    def _remember(self, run: _Run, version: int) -> None:
        """Read what a version recorded, unless that is known, or can't be known any more."""
        if version not in run.states and version not in run.unseen:
            try:
                run.states[version] = self.views.mem_wal(version)
            except Missing:
                run.unseen.add(version)

    def _check_data(self, run: _Run, landed: int) -> None:
        try:
            before = self.snapshots.fragments_and_rows(landed - 1)
            after = self.snapshots.fragments_and_rows(landed)
        except Missing:
            run.unseen.add(landed - 1)
            return
        if before != after:
            raise Corruption(
                f"version {landed}, a refresh of the MemWAL index, has {after} fragments and rows "
                f"instead of {before}; restore version {landed - 1} and report this"
            )

    def _lowered(self, run: _Run, landed: int) -> dict[ShardId, int]:
        """Progress of the versions since our first commit that `landed` does not keep."""
        if run.floor is None:
            return {}
        # The newest first: it has the most, and somebody may be expiring them right now.
        for between in range(landed - 1, run.floor - 1, -1):
            self._remember(run, between)
        try:
            return lowered(list(run.states.values()), self.views.mem_wal(landed))
        except Missing as error:
            raise StoreUnavailable(f"version {landed} was expired: {error}") from None


def _unseen_text(versions: Iterable[int]) -> str:
    names = ", ".join(map(str, sorted(versions)))
    return (
        f"versions {names} were expired before it could be seen whether the refresh lowered the "
        "merge progress that they recorded; no row is lost, but generations may be merged again: "
        "keep versions for longer than a refresh takes"
    )


def nothing_to_write(view: TableView) -> SnapshotResult:
    """The result of a refresh that has no plan."""
    fresh = "the snapshot says what the shard manifests say"
    policy = "a table with a row-merge policy gets none: its operands might count twice meanwhile"
    return SnapshotResult(
        outcome="nothing_to_do",
        num_shards=len(view.shards),
        storage=_standing(view),
        repairs=0,
        version_after=view.version,
        reason=fresh if view.policy_text is None else policy,
    )


def _standing(view: TableView) -> str | None:
    """Where the snapshot is that a table has, when that is up to date."""
    if view.policy_text is not None or not view.shards:
        return None
    inline = view.mem_wal.inline_snapshots is not None
    return str((Storage.INLINE if inline else Storage.EXTERNAL).value)


def _progress_text(progress: Mapping[ShardId, int]) -> str:
    return ", ".join(f"{shard}: {generation}" for shard, generation in progress.items())
