"""Refreshes the shard snapshot in the MemWAL index without ever lowering merge progress.

Replacing the MemWAL index entry from a stale version overwrites newer progress, and Lance reports
no conflict (seen on pylance 14). So the entry is read at the last moment, and after the commit the
landed version and those in between are read back: lowered progress is repaired at once. Until then,
readers merge generations again that the base already has, which gives the same rows. There are two
exceptions. With a row-merge policy, operands would count twice, so such a table gets no snapshot.
And a snapshot may lack the newest of these generations, so that an older one would hide newer rows
of the base; so no reader uses a snapshot before the run has confirmed it, which comes last. If one
of the versions in between was expired meanwhile, nobody can tell what was lowered: the run says so.

Progress also falls when a user restores an older version, and raising it then would hide rows. So
only what our own landed commit lowered is raised. A commit that reported an error or a conflict may
have landed; it is recognised by the uuid that it gave the entry. Once a restore or an overwrite has
made a version after it, there is nothing left to repair. Lance refuses a repair that does not know
of such a version yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from memwal.errors import (
    Corruption,
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    NotATable,
    OutcomeUnknown,
    StoreUnavailable,
)
from memwal.jobs.snapshot.plan import (
    SnapshotLimits,
    SnapshotTableReport,
    Storage,
    Stored,
    choose_storage,
    collect_manifests,
    find_lowered,
    is_fresh,
    resolve_specs,
)
from memwal.model import MemWalState, ShardId, ShardManifest, ShardSpec, TableView
from memwal.ports import Clock, Steps, Views, no_steps
from memwal.report import DONE, NOTHING_TO_DO

_WAIT_SECONDS_MAX = 2.0
_FRESH = "the snapshot says what the shard manifests say"
_NO_MEM_WAL = "the table has no MemWAL"
_POLICY = "a table with a row-merge policy gets no snapshot: operands might count twice meanwhile"


class Snapshots(Protocol):
    """Shard snapshots: their bytes, and the commit that stores them."""

    def encode(self, manifests: Sequence[ShardManifest], specs: Sequence[ShardSpec]) -> bytes:
        """The manifests, one row each, as Lance file bytes; the same rows give the same bytes."""
        ...

    def compare(self, state: MemWalState, data: bytes) -> Stored:
        """How the stored snapshot differs from `data`, without parsing it."""
        ...

    def commit(
        self,
        *,
        version: int,
        state: MemWalState,
        index_uuid: str,
        data: bytes,
        storage: Storage,
        num_shards: int,
        taken_at_millis: int,
        merged: Mapping[ShardId, int],
    ) -> int:
        """Replace the entry of `version`, raising progress to `merged`; returns the new version.

        Raises LostRace, or StoreUnavailable for an error with an open outcome.
        """
        ...

    def is_turned_back(self, version: int) -> bool | None:
        """Whether a user made the version by a restore or an overwrite; None when unknown."""
        ...

    def confirm(self, *, taken_at_millis: int, index_uuid: str, data: bytes) -> None:
        """Let readers use the snapshot that a commit stored, as no progress is left lowered."""
        ...

    def fragments_and_rows(self, version: int) -> tuple[int, int]:
        """How many fragments and rows a version has. Raises Missing if expired."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """The snapshot that a view calls for, and how the stored one compares."""

    num_shards: int
    data: bytes
    storage: Storage
    stored: Stored
    is_fresh: bool


@dataclass(kw_only=True, slots=True)
class _Run:
    """What one run has to remember across attempts. `view` is the view that it began with."""

    view: TableView
    tried: dict[str, int] = field(default_factory=dict)
    """The commits so far, by the uuid of each: the version whose entry it replaced."""
    landed: int | None = None
    """The version of our newest commit that landed."""
    floor: int | None = None
    """From this version to `landed`, our commits may have overwritten progress."""
    looked: int = 0
    """Up to this version it is known which commits are ours and which are a user's restore."""
    storage: str | None = None
    taken_at_millis: int = 0
    index_uuid: str = ""
    repairs: int = 0
    states: dict[int, MemWalState] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True, slots=True)
class SnapshotRefresher:
    """Refreshes one table's snapshot."""

    name: str
    """The table's name in the report."""
    views: Views
    snapshots: Snapshots
    clock: Clock
    read: Callable[[], TableView]
    """A fresh view of the table."""
    limits: SnapshotLimits = SnapshotLimits()
    steps: Steps = no_steps
    take_lease: Callable[[], None] = lambda: None
    """Called once there is something to write; raises LeaseHeld."""
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit that may lower progress; raises when the lease is lost."""
    before_repair: Callable[[], None] = lambda: None
    """Called before each repair; raises when the lease lapsed at any time since it was taken."""

    def run(self, view: TableView, *, dry_run: bool = False) -> SnapshotTableReport:
        """Refresh under the lease, if `view` has no snapshot or an old one; else say so.

        Raises Refused for broken shards, LostRace when conflicts do not end, StoreUnavailable
        before the first commit, LeaseHeld when the lease is lost, Corruption when a commit changed
        the table's data.
        """
        run = _Run(view=view)
        wanted = self._want(view) if _takes_one(view) else None
        if wanted is None or wanted.is_fresh:
            return self._report_nothing(run, view)
        if dry_run:
            run.storage = wanted.storage.value
            why = f"would write: {wanted.stored.value}"
            return self._report(run, view, outcome=DONE, reason=why)
        self.take_lease()
        return self._refresh(run)

    def _refresh(self, run: _Run) -> SnapshotTableReport:
        """Refresh from a fresh view, retrying on conflicts."""
        # Set before anything is read, so that all that was flushed by then is in the snapshot.
        run.taken_at_millis = self.clock.now_nanos() // 10**6
        error: MemWalError | None = None
        for attempt in range(self.limits.attempts_max):
            if attempt:
                self.clock.sleep(self.clock.random() * _WAIT_SECONDS_MAX)
            try:
                return self._attempt(run, self.read())
            except (LostRace, StoreUnavailable) as caught:
                if isinstance(caught, StoreUnavailable) and not run.tried:
                    raise  # reads have waited for it already
                error = caught
        raise LostRace(
            f"no snapshot after {self.limits.attempts_max} attempts: {error}"
            + ("; merge progress may be too low: run it again" if run.tried else "")
        )

    def _want(self, view: TableView) -> _Wanted:
        """The snapshot to be made from the view's manifests. Raises Refused."""
        manifests = collect_manifests(view)
        data = self.snapshots.encode(manifests, resolve_specs(view))
        stored = self.snapshots.compare(view.mem_wal, data)
        return _Wanted(
            num_shards=len(manifests),
            data=data,
            storage=choose_storage(len(manifests), self.limits),
            stored=stored,
            is_fresh=is_fresh(view.mem_wal, len(manifests), stored),
        )

    def _attempt(self, run: _Run, view: TableView) -> SnapshotTableReport:
        if not _takes_one(view) and not run.tried:
            return self._report_nothing(run, view)
        wanted = self._want(view)
        # The entry to replace is read again here, after the slow part.
        version = self.views.table_version()
        self._find_landed(run, version)
        fell = self._find_lowered(run, version)
        if not fell and wanted.is_fresh and run.floor is None and not run.unseen:
            return self._report_nothing(run, view, version)
        reason = wanted.stored.value
        if fell or not wanted.is_fresh:
            self._check_unreplaced(view, version)
            run.storage = wanted.storage.value
            version = self._commit(run, version, wanted, fell)
            while fell := self._find_lowered(run, version):
                if run.repairs >= self.limits.repairs_max:
                    raise LostRace(f"progress is still too low: {_progress_text(fell)}")
                version = self._commit(run, version, wanted, fell)
            if not run.unseen:
                self.steps("confirm")
                self.snapshots.confirm(
                    taken_at_millis=run.taken_at_millis, index_uuid=run.index_uuid, data=wanted.data
                )
        else:
            reason = _FRESH  # somebody else wrote it meanwhile
        if run.unseen:
            raise OutcomeUnknown(_unseen_text(run.unseen))
        return self._report(run, view, version, outcome=DONE, reason=reason)

    def _check_unreplaced(self, view: TableView, version: int) -> None:
        """Raise LostRace if the table may have been restored since the view.

        Its shards need not go with progress that came back: a clone's hides what they list.
        """
        for seen in range(view.version + 1, version + 1):
            if self.snapshots.is_turned_back(seen) is not False:
                raise LostRace(f"version {seen} may be a restore, made while shards were read")

    def _commit(
        self, run: _Run, version: int, wanted: _Wanted, merged: Mapping[ShardId, int]
    ) -> int:
        state = run.states[version] = self.views.mem_wal(version)
        if merged:
            # If the lease lapsed, another run may have built on the lowered progress, and merged a
            # part of it, which a repair would then claim to be whole (invariant 1).
            self._ask_before_repair(merged)
            run.repairs += 1
            self.steps("repair")
        else:
            self.before_commit()
        self.steps("commit")
        run.index_uuid = self.clock.new_id()
        run.looked = run.looked if run.tried else version
        run.tried[run.index_uuid] = version
        # Each commit gets its own time, so that a reader that holds a version repaired meanwhile
        # does not take the snapshot that is confirmed then for that of its version.
        run.taken_at_millis -= 1 if run.taken_at_millis - 1 != state.snapshot_ts_millis else 2
        landed = self.snapshots.commit(
            version=version,
            state=state,
            index_uuid=run.index_uuid,
            data=wanted.data,
            storage=wanted.storage,
            num_shards=wanted.num_shards,
            taken_at_millis=run.taken_at_millis,
            merged=merged,
        )
        self.steps("committed")
        # Lance lets it land on no restore or overwrite, so no such version came in between.
        self._note_landed(run, run.index_uuid, landed)
        run.looked = landed
        # Read first, since somebody may be expiring it right now.
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

    def _find_landed(self, run: _Run, version: int) -> None:
        """Find in the new versions which of our commits landed, and whether a restore followed."""
        for seen in range(run.looked + 1, version + 1) if run.tried else ():
            uuid, turned_back = self._find_uuid(run, seen), self.snapshots.is_turned_back(seen)
            if turned_back is None:
                run.unseen.add(seen)
            if turned_back is not False:
                run.landed = run.floor = None
            elif uuid in run.tried:
                self._note_landed(run, uuid, seen)
        run.looked = max(run.looked, version)

    def _find_uuid(self, run: _Run, version: int) -> str:
        """The uuid of a version's index entry; empty if the version has none or is gone."""
        with suppress(NotATable):  # a version without a MemWAL, which only a user makes
            self._remember(run, version)
        return run.states[version].index_uuid if version in run.states else ""

    def _note_landed(self, run: _Run, index_uuid: str, version: int) -> None:
        read = run.tried[index_uuid]
        run.floor = read if run.floor is None else min(run.floor, read)
        run.landed = version

    def _remember(self, run: _Run, version: int) -> None:
        """Read what a version recorded, unless it is known already, or known to be gone."""
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
                "MW-N01",
                f"version {landed}, a refresh of the MemWAL index, has {after} fragments and rows "
                f"instead of {before}; restore version {landed - 1} and report this",
            )

    def _find_lowered(self, run: _Run, landed: int) -> dict[ShardId, int]:
        """Progress in versions since our first commit that version `landed` has lost."""
        if run.floor is None:
            return {}
        # Newest first: it has the most progress, and somebody may be expiring them right now.
        since = range(landed - 1, run.floor - 1, -1)
        for between in since:
            self._remember(run, between)
        known = [run.states[version] for version in since if version in run.states]
        try:
            return find_lowered(known, self.views.mem_wal(landed))
        except Missing as error:
            raise StoreUnavailable(f"version {landed} was expired: {error}") from None

    def _report_nothing(
        self, run: _Run, view: TableView, version: int | None = None
    ) -> SnapshotTableReport:
        """The report of a run that writes nothing, as the snapshot is fresh or not wanted."""
        run.storage = _find_storage(view)
        reason = _FRESH if view.policy_text is None else _POLICY
        reason = reason if view.has_mem_wal else _NO_MEM_WAL
        return self._report(run, view, version, outcome=NOTHING_TO_DO, reason=reason)

    def _report(
        self,
        run: _Run,
        view: TableView,
        version: int | None = None,
        *,
        outcome: str,
        reason: str,
    ) -> SnapshotTableReport:
        return SnapshotTableReport(
            table=self.name,
            outcome=outcome,
            version_before=run.view.version,
            version_after=view.version if version is None else version,
            columns=view.describe_columns(),
            num_shards=len(view.shards),
            storage=run.storage,
            repairs=run.repairs,
            reason=reason,
            warnings=run.view.warnings,
        )


def _unseen_text(versions: Iterable[int]) -> str:
    names = ", ".join(map(str, sorted(versions)))
    return (
        f"versions {names} were expired before it could be seen whether the refresh lowered the "
        "merge progress that they recorded; no row is lost, but generations may be merged again: "
        "keep versions for longer than a refresh takes"
    )


def _takes_one(view: TableView) -> bool:
    return view.has_mem_wal and view.policy_text is None


def _find_storage(view: TableView) -> str | None:
    """Where the table's up-to-date snapshot is stored; None if it has none."""
    if view.policy_text is not None or not view.shards:
        return None
    inline = view.mem_wal.inline_snapshots is not None
    return str((Storage.INLINE if inline else Storage.EXTERNAL).value)


def _progress_text(progress: Mapping[ShardId, int]) -> str:
    return ", ".join(f"{shard}: {generation}" for shard, generation in progress.items())
