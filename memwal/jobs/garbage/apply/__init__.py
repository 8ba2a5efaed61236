"""Collects garbage: every step that changes a table, and in which order.

1. Look without the lease. Where there is nothing to do, that is all.
2. Take the lease, then ask the store for its time: grace and retention are measured by it.
3. Look again, and expire versions that are older than the retention.
4. Look again, without anything that another process remembered: this look decides what goes.
5. Drop generations from the shard manifests. Their folders go in a later run, after the grace.
6. Delete old shard manifests and lease claims, lowest first.
7. Delete what else step 4 found. All tables' deletes fan out together.
8. Look again, and delete the WAL entries whose generations step 7 deleted.
9. Remember, for large tables, which shards need no look until they change: later passes, and steps
   3, 4 and 8, look at the others only. What is remembered lets nothing go (invariant 6).

It may be killed anywhere (invariant 8). A drop is one put-if-absent; what it leaves is a folder
that no manifest names, which a later run finds. A deletion that was cut short leaves fewer files in
the same folder, which the next run finds again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from memwal.errors import MemWalError, NotATable
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply.deletions import (
    Deleted,
    Dropped,
    GenerationDropper,
    NumberedDeleter,
    SurveyPlan,
    add_before,
    find_deciding,
    make_deletions,
    make_intents,
)
from memwal.jobs.garbage.kinds import generation, wal_entry
from memwal.jobs.garbage.model import (
    Expired,
    GarbageLimits,
    GarbagePlan,
    GarbageViews,
    Item,
    Sweep,
    VersionExpiry,
)
from memwal.jobs.garbage.plan import (
    choose_shards,
    find_checkpoints_of,
    find_cursor,
    find_expirable,
    find_never_merged,
    is_sweep_due,
    is_sweep_old,
    note_sweep,
    plan_garbage,
)
from memwal.jobs.garbage.survey import Survey
from memwal.model import ShardId, TableView
from memwal.ports import Clock, Objects, ShardCommits, Steps, no_steps
from memwal.report import AuditItem

if TYPE_CHECKING:
    from memwal.jobs.garbage.model import FindDeciding
    from memwal.jobs.garbage.store import StoredGarbageEvidence
    from memwal.run.progress import Progress

# A smaller difference is none: S3 timestamps are whole seconds, and a listing takes time.
_CLOCKS_AGREE_NANOS = 5 * 10**9

Delete = Callable[[Sequence[Sequence[Item]]], Sequence[Sequence[Deleted]]]
"""Deletes one batch for each table, side by side. Never raises a MemWalError: see the results."""


def collect_garbage(tables: Sequence[TableGarbage], delete: Delete) -> None:
    """Run steps 2 to 9 for tables that were looked at once; each table keeps its own results."""
    for table in tables:
        table.drop()
    _delete_each(tables, [table.plan_deletions() for table in tables], delete)
    _delete_each(tables, [table.plan_uncovered() for table in tables], delete)
    for table in tables:
        table.remember_sweep()


def _delete_each(
    tables: Sequence[TableGarbage], batches: Sequence[Sequence[Item]], delete: Delete
) -> None:
    for table, deleted in zip(tables, delete(batches), strict=True):
        table.deleted += deleted


@dataclass(kw_only=True, slots=True)
class TableGarbage:
    """The collection of one table's garbage: what it works with, and the results of its steps."""

    uri: str
    views: GarbageViews
    evidence: StoredGarbageEvidence
    expiry: VersionExpiry
    manifests: ShardCommits
    objects: Objects
    clock: Clock
    prove_store: Callable[[], None]
    """Called before caches are written; raises Unsupported for a store that can't be trusted."""
    take_lease: Callable[[], None]
    """Proves the store, and claims the table. Raises LeaseHeld."""
    before_commit: Callable[[], None]
    """Called before each writing step; raises LeaseHeld when the claim was lost."""
    limits: GarbageLimits
    acts: bool
    """Whether anything may be written; if not, the table is only looked at once."""
    retention_seconds: float | None
    """Versions older than this expire unless something refers to them; None expires none."""
    progress: Progress
    steps: Steps = no_steps
    intend: Callable[[Sequence[AuditItem]], None] | None = None
    """Called with all that is to go before any of it goes; raises StoreUnavailable where it can't
    be written down, and then it stays. None without an audit trail."""
    remembered: Sweep | None = None
    """What former passes remember of the shards; None for nothing."""
    keep_former: Callable[[TableView], None] = lambda view: None
    """Records what former indexes had merged; called under the lease, before its evidence goes."""

    planned: SurveyPlan | None = None
    by_difference: bool = False
    looked_at: int = 0
    """How many shards were looked at before anything was done; only some if `by_difference`."""
    ahead_nanos: int = 0
    """How far this host's clock is ahead of the store's; 0 until the two were compared."""
    expired: Expired | None = None
    versions_before: frozenset[int] = frozenset()
    """The versions of main before any expired."""
    unwritten: MemWalError | None = None
    """Why the last deletions were left to the next run: they could not be written down."""
    acted: bool = False
    decided: SurveyPlan | None = None
    """The look that decided what was done."""
    dropped: tuple[Dropped, ...] = ()
    deleted: list[Deleted] = field(default_factory=list)
    error: MemWalError | None = None
    broken: InvariantBroken | None = None
    """Set where a step would have broken an invariant: nothing more is done for this table."""

    @property
    def now_nanos(self) -> int:
        """This host's time, corrected to the store's where the host is known to be ahead.

        With a fast clock, things would look older than they are; a slow one only keeps them longer.
        """
        return self.clock.now_nanos() - self.ahead_nanos

    # ---- the steps, in their order

    def preview(self, opened: TableView | MemWalError | None = None) -> None:
        """Step 1: look without the lease. `opened` is the view or error of opening the table."""
        try:
            self.planned = self._preview(opened)
            self.by_difference = self.planned.shards is not None
            self.looked_at = len(self.planned.survey.evidence.shards)
        except MemWalError as error:
            self.error = error

    def _preview(self, opened: TableView | MemWalError | None) -> SurveyPlan:
        if self.remembered is None or not isinstance(opened, TableView):
            return self._look(opened, verified=False)
        planned = None
        if not is_sweep_old(self.remembered, self.limits, self.now_nanos):
            planned = self._look_at(opened, self.remembered, verified=False)
        if planned is None:  # it is a large table: each shard is listed once
            base, shards = self.views.list_shards(opened)
            planned = self._look_at(base, None, verified=False, only=frozenset(shards))
        return planned or self._look(verified=False)

    def drop(self) -> None:
        """Steps 2 to 6, if there is anything to do."""
        if not self.acts or self.error is not None or self.planned is None:
            return
        try:
            if self.planned.has_work:
                self.take_lease()
                self._compare_clocks()
                if self.planned.survey.view is not None:
                    self.keep_former(self.planned.survey.view)
                if self.retention_seconds is not None:
                    self.planned = self._look_again(self.planned, verified=False)
                    self._expire(self.planned)
                self.planned = self._look_again(self.planned, verified=True)
                self._intend(self.planned.plan)
                self.acted = True
                self.looked_at = max(self.looked_at, len(self.planned.survey.evidence.shards))
                self._drop_generations(self.planned.plan)
                self._delete_numbered(self.planned.plan)
            self.evidence.remember(self.prove_store)
            self.decided = self.planned
        except InvariantBroken as broken:
            self.broken = broken
        except MemWalError as error:
            self.error = error

    def plan_deletions(self) -> tuple[Item, ...]:
        """The deletions of step 7, from the plan made under the lease."""
        return () if self.planned is None else self._check(self.planned.plan)

    def plan_uncovered(self) -> tuple[Item, ...]:
        """The deletions of step 8: WAL entries whose generations this run has deleted.

        They are planned from a new look, since a generation that is only half deleted still holds
        its entries (invariant 7). If that look fails, they are left to the next run.
        """
        tried, before = {d.path for d in self.deleted}, self.planned
        if before is None or not self.limits.wal:
            return ()
        covering = (i for i in before.plan.items if i.path in tried and i.kind == generation.NAME)
        shards = {i.shard_id for i in covering if i.shard_id is not None}
        if not shards:
            return ()
        with suppress(MemWalError):
            self.planned = self._look_again(before, verified=True, only=shards)
        found = before if self.planned is None else self.planned
        entries = tuple(
            i for i in found.plan.items if i.kind == wal_entry.NAME and i.path not in tried
        )
        rest = (i for i in before.plan.items if i.kind != wal_entry.NAME or i.path in tried)
        self.planned = replace(found, plan=replace(before.plan, items=(*rest, *entries)))
        return self._check(replace(before.plan, items=entries))

    def remember_sweep(self) -> None:
        """Step 9: store which shards the next pass need not look at, if anything changed."""
        decided, before = self.decided, self.remembered
        if decided is None or decided.sweep is None or self.error is not None:
            return
        known = decided.sweep if decided.shards is not None else None
        done = {d.path for d in self.deleted if d.error is None}
        done.update(path for d in self.dropped if d.error is None for path in d.paths)
        sweep = note_sweep(known, decided.survey, decided.plan, done)
        if sweep is not None and self.broken is None:
            now = {"version": sweep.version, "version_at_nanos": sweep.version_at_nanos}
            if before is None or sweep != replace(before, **now):  # type: ignore[arg-type]
                self.evidence.remember_sweep(sweep, self.prove_store)

    # ---- what they are made of

    def _look_again(
        self, before: SurveyPlan, *, verified: bool, only: Set[ShardId] | None = None
    ) -> SurveyPlan:
        """Look again, leaving out shards in which the look before rules out any garbage.

        What that one had planned to keep in those shards is taken over.
        """
        after = None
        if before.sweep is not None and before.survey.view is not None:
            base = replace(self.views.base(), strangers=before.survey.view.strangers)
            after = self._look_at(base, before.sweep, verified=verified, only=only)
        return self._look(verified=verified) if after is None else add_before(after, before)

    def _look_at(
        self,
        base: TableView,
        sweep: Sweep | None,
        *,
        verified: bool,
        only: Set[ShardId] | None = None,
    ) -> SurveyPlan | None:
        """Look at the shards in which something may have become garbage since the sweep.

        None where the sweep can't tell. Without one, `only` has to be all shards, and all are
        looked at. As in every look that is carried out, the base is read first, then the versions,
        and manifests before files.
        """
        now, limits = self.now_nanos, self.limits
        read = partial(self.evidence.read, limits=limits, now_nanos=now, verified=verified)
        outside = read({}, only=frozenset())
        version = base.version
        survey = Survey(view=base, version=version, evidence=outside, limits=limits, now_nanos=now)
        if sweep is not None and is_sweep_due(sweep, survey):
            return None
        if sweep is not None and only is None:
            only = self._choose(survey, base, sweep)
        listed = {} if verified else self.evidence.list_files(only or ())
        survey = replace(survey, view=self.views.add_shards(base, only or (), listed))
        evidence = read(
            survey.manifests,
            only=only,
            listed=listed,
            outside=outside,
            find_deciding=self._judge_by(survey),
        )
        return self._plan(
            replace(survey, evidence=evidence), sweep, None if sweep is None else only
        )

    def _judge_by(self, survey: Survey) -> FindDeciding:
        """Make `find_deciding`, which plans as `_plan_expiry` does.

        Which versions only a checkpoint keeps is known from the look before.
        """
        before = frozenset[int]() if self.planned is None else self.planned.survey.checkpointed
        return partial(find_deciding, replace(survey, checkpointed=before))

    def _choose(self, survey: Survey, base: TableView, sweep: Sweep) -> frozenset[ShardId]:
        """The shards to look at; before versions expire, those that were never merged as well."""
        seconds = self.retention_seconds
        old = frozenset[int]() if seconds is None else find_expirable(survey, seconds)
        if not old:
            return choose_shards(sweep, survey)
        _, shards = self.views.list_shards(base)
        merged = base.mem_wal.merged
        shown = survey if self.acts else survey.without_versions(old)
        return choose_shards(sweep, shown) | {s for s in shards if not merged.get(s, 0)}

    def _look(self, opened: TableView | MemWalError | None = None, *, verified: bool) -> SurveyPlan:
        """Look at all shards, and plan. A plan that is carried out has to be `verified`."""
        view: TableView | None = None
        try:
            if isinstance(opened, MemWalError):
                raise opened
            view = opened or self.views.table(probed=verified)
            version = view.version
        except NotATable:
            version = self._find_version_without_index()
        survey = Survey(view=view, version=version, limits=self.limits, now_nanos=self.now_nanos)
        evidence = self.evidence.read(
            survey.manifests,
            limits=self.limits,
            now_nanos=survey.now_nanos,
            verified=verified,
            whole_shards=view is None,
            find_deciding=self._judge_by(survey),
        )
        return self._plan(replace(survey, evidence=evidence))

    def _find_version_without_index(self) -> int:
        """The latest version of a table whose MemWAL index is gone.

        Raises NotATable when it left no shards, and MemWalError when the index came back meanwhile.
        """
        version = self.views.table_version()
        if self.views.manifest(version).mem_wal is not None:
            raise MemWalError(f"{self.uri}: the MemWAL index came back meanwhile; run again")
        if not self.evidence.has_shards():
            self.views.mem_wal(version)  # raises NotATable, and says what to do
        return version

    def _plan(
        self, survey: Survey, before: Sweep | None = None, shards: Set[ShardId] | None = None
    ) -> SurveyPlan:
        """Plan what goes, and which versions expire first.

        A run that only lists plans as if those versions had expired already.
        """
        planned = self._plan_expiry(survey)
        sweep = note_sweep(before, survey, planned.plan)
        return replace(planned, sweep=sweep, shards=shards)

    def _plan_expiry(self, survey: Survey) -> SurveyPlan:
        if self.retention_seconds is None:
            return SurveyPlan(survey=survey, plan=plan_garbage(survey))
        never_merged = () if survey.view is None else find_never_merged(survey.view)
        old = frozenset[int]() if never_merged else find_expirable(survey, self.retention_seconds)
        cursor = find_cursor(survey, self.evidence.cursors()) if old else None
        held = frozenset(v for v in old if cursor is not None and v >= cursor.version)
        old -= held
        survey = replace(survey, checkpointed=self._find_checkpointed(survey, old))
        old = old and old - self.evidence.referenced_versions()
        untagged = find_checkpoints_of(survey, old)
        old = frozenset[int]() if untagged else old
        if old and not self.acts:
            self.expiry.check_expirable()
            survey = survey.without_versions(old)
        return SurveyPlan(
            survey=survey,
            plan=plan_garbage(survey),
            expiring=old,
            never_merged=never_merged,
            untagged=untagged,
            followed=cursor if held else None,
        )

    def _find_checkpointed(self, survey: Survey, old: frozenset[int]) -> frozenset[int]:
        """The old versions that only a checkpoint's tag keeps; none where that can't be told."""
        found = frozenset(c.version for c in find_checkpoints_of(survey, old))
        claimed = self.evidence.claimed_versions() if found else frozenset[int]()
        return frozenset[int]() if claimed is None else found - claimed

    def _compare_clocks(self) -> None:
        store_now = self.evidence.store_now_nanos(self.clock.new_id())
        # Read last: the time in between makes this host's clock look faster, which is safe.
        ahead = self.clock.now_nanos() - store_now
        self.ahead_nanos = ahead if ahead > _CLOCKS_AGREE_NANOS else 0

    def _expire(self, planned: SurveyPlan) -> None:
        if planned.expirable and not planned.has_unrecorded:
            self._intend_expiry(planned)
            found = planned.survey.evidence.versions
            self.versions_before = frozenset(v.version for v in found if v.on_main)
            self.before_commit()
            self.steps("before_expire")
            self.expired = self.expiry.expire_versions(planned.expiring)

    def _intend(self, plan: GarbagePlan, expiring: Set[int] = frozenset()) -> None:
        if self.intend is not None and (intents := make_intents(plan, expiring)):
            self.intend(intents)

    def _intend_expiry(self, planned: SurveyPlan) -> None:
        """Name what follows the expiry as well, as in a dry run: mostly that is all there is."""
        if self.intend is not None:
            foreseen = plan_garbage(planned.survey.without_versions(planned.expiring))
            self._intend(foreseen, planned.expiring)

    def _drop_generations(self, plan: GarbagePlan) -> None:
        if plan.drops:
            dropper = GenerationDropper(
                manifests=self.manifests,
                clock=self.clock,
                limits=self.limits,
                steps=self.steps,
                before_commit=self.before_commit,
            )
            self.progress.start("shards to drop from", len(plan.drops))
            self.dropped = dropper.run(plan, self.progress.done)

    def _delete_numbered(self, plan: GarbagePlan) -> None:
        deleter = NumberedDeleter(
            objects=self.objects,
            limits=self.limits,
            steps=self.steps,
            before_commit=self.before_commit,
        )
        self.deleted += deleter.run(plan)

    def _check(self, plan: GarbagePlan) -> tuple[Item, ...]:
        """The plan's deletions; none unless this run acts and nothing has gone wrong."""
        if not self.acted or self.error is not None or self.broken is not None:
            return ()
        try:
            deletions = make_deletions(plan)
        except InvariantBroken as broken:
            self.broken = broken
            return ()
        try:
            self._intend(plan)
        except MemWalError as error:
            self.unwritten = error
            return ()
        return deletions
