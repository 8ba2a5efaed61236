"""Merges one shard's pending generations into the base table.

A run takes a fresh view, folds the next prefix and commits it, again and again, until everything
is merged that was pending when the run started. The next run finds what a killed one left behind
in its own fresh view (invariant 8); the mark is part of the commit that writes the rows
(invariant 1).

A merge that runs without the lease keeps away from a snapshot refresh. A refresh may lower merge
progress until it has repaired it, a moment later. A merger that takes its view in between folds
generations again that the base already has. If it merges them in parts, or deletes ahead of its
mark, and the repair comes before it is done, then progress says more than the base has (invariant
1): newer rows are lost. A refresh holds the lease from before its first commit until after its last
repair, and makes no repair once its claim has lapsed. So it is enough that no refresh held the
lease between a view and the commits that build on it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memwal.errors import (
    Corruption,
    DoesNotFit,
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    OutcomeUnknown,
    StoreUnavailable,
    unexpected,
)
from memwal.format.unknown import check_details
from memwal.jobs.merge.plan import (
    Deletes,
    LeftShard,
    MergeLimits,
    NextCommit,
    bound_request,
    check_next,
    check_table,
    choose_deletes,
    plan_commit,
    plan_commits,
)
from memwal.jobs.merge.ports import CommitQueue, CommitStats, Fold, MergeTable, NoCommitQueue
from memwal.jobs.merge.report import (
    ShardReport,
    ShardTotals,
    report_left,
    report_planned,
)
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId, ShardView, TableView
from memwal.ports import LOWERING_JOB, Clock, Steps, Views, back_off, no_steps
from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, describe_error
from memwal.rows.progress import check_lineage
from memwal.text import count_of

if TYPE_CHECKING:
    from memwal.store.records.lease import StoredLeases


@dataclass(kw_only=True, slots=True)
class RefreshWatch:
    """Checks the lease before each view and each writing step of a merge.

    `lease_token` is that of the merge's own lease, if it holds one: no refresh runs meanwhile.
    """

    leases: StoredLeases
    lease_token: int | None = None
    _seen_token: int = field(default=0, init=False)

    def before_view(self) -> None:
        """Remember the newest claim. Raises LeaseHeld while a refresh holds the lease."""
        if self.lease_token is None:
            self._seen_token = self._newest_token()

    def before_commit(self) -> None:
        """Raise LostRace when the lease was claimed since the view, LeaseHeld as `before_view`.

        For a merge that holds the lease, raise LeaseHeld when that was lost.
        """
        if self.lease_token is not None:
            self.leases.check(self.lease_token)
            return
        token = self._newest_token()
        if token != self._seen_token:
            raise LostRace(
                f"lease token {token} was claimed since the view was taken; a refresh may have "
                "lowered progress in it"
            )

    def _newest_token(self) -> int:
        claim = self.leases.current()
        if claim is None:
            return 0
        if claim.job == LOWERING_JOB and self.leases.is_live(claim):
            raise LeaseHeld(
                f"a snapshot refresh by {claim.holder} holds the lease (token {claim.token}) and "
                "may lower merge progress for a moment; run again when it has ended, or "
                f"{self.leases.how_to_break} if the refresh is dead"
            )
        return claim.token


class ShardRun(ShardTotals):
    """One shard's run: what it has done so far, and the highest progress it has seen."""

    is_seen: bool = False

    def see(self, shard: ShardView) -> None:
        """Take in the progress that a view shows; the first view sets `from_generation`."""
        if not self.is_seen:
            self.is_seen, self.from_generation = True, shard.merged_generation
        self.to_generation = max(self.to_generation, shard.merged_generation)

    def check_progress(self, shard: ShardView) -> None:
        """Raise LostRace when progress is lower than this run has seen before."""
        if shard.merged_generation < self.to_generation:
            raise LostRace(
                f"shard {self.shard_id}: merge progress fell from {self.to_generation} to "
                f"{shard.merged_generation} while it was merged: the table was overwritten or "
                "restored, or a snapshot refresh raced without the lease; run again"
            )

    def count_commit(self, plan: NextCommit, fold: Fold, stats: CommitStats) -> None:
        """Count a commit that was seen to land."""
        self.commits += 1
        self.generations += len(plan.generations)
        self.to_generation = plan.mark
        self.rows_inserted += stats.rows_inserted
        self.rows_updated += stats.rows_updated
        self.rows_deleted += stats.rows_deleted
        self.bytes_read += fold.bytes_read

    def count_found(self, shard: ShardView, plan: NextCommit) -> None:
        """Count a commit whose outcome was open, if the shard's mark shows that it landed."""
        self.commits_found_landed += shard.merged_generation >= plan.mark

    def report(self, error: MemWalError | None = None) -> ShardReport:
        """The report at the end of the run; `error` is what ended it early."""
        advanced = self.to_generation > self.from_generation
        described = describe_error(error, DONE if advanced else NOTHING_TO_DO)
        if error is not None and advanced:
            described["outcome"] = PARTIAL
        seconds = round(self.seconds, 3)
        return ShardReport.model_validate({**dict(self), **described, "seconds": seconds})


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMerger:
    """Merges shards of one table. Holds ports and limits; has no state of its own."""

    views: Views
    table: MergeTable
    clock: Clock
    limits: MergeLimits = MergeLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each writing step; raises when the run has lost its lease."""
    before_view: Callable[[], None] = lambda: None
    """Called before each view that commits build on (see `RefreshWatch`)."""
    queue: CommitQueue = NoCommitQueue()

    def run(
        self, shard_id: ShardId, request: MergeRequest, run: ShardRun | None = None
    ) -> ShardReport:
        """Merge what is pending now, up to the request's bound; never raises a MemWalError.

        Generations flushed after the start are left to the next run, so that a run ends even under
        steady writes. `run` is an earlier run of the shard to continue.
        """
        started = self.clock.monotonic_seconds()
        run = run or ShardRun(shard_id=shard_id)
        error: MemWalError | None = None
        try:
            self._merge(run, request)
        except MemWalError as caught:
            error = caught
        except Exception as caught:
            # Caught, since the commits before it have to be reported.
            error, run.trace = unexpected(caught), traceback.format_exc()
        run.seconds += self.clock.monotonic_seconds() - started
        return run.report(error)

    def _merge(self, run: ShardRun, request: MergeRequest) -> None:
        view = self._take_view(run)
        shard = view.shards[0]
        run.check_progress(shard)
        bounded = bound_request(shard, request)
        if bounded is None:
            check_next(shard, request)
            return
        check_table(view)
        self.check_same_table(run, view, shard, request)
        while (plan := self.plan_next(shard, bounded)) is not None:
            view = self._commit_prefix(run, view, plan, bounded)
            shard = view.shards[0]
            self.check_same_table(run, view, shard, request)
        check_next(shard, request)

    def plan_next(self, shard: ShardView, request: MergeRequest) -> NextCommit | None:
        """The next commit of a shard, here or in a shared one; None when no more is to be made."""
        return plan_commit(shard, request, self.limits)

    def check_same_table(
        self, run: ShardRun, view: TableView, shard: ShardView, request: MergeRequest
    ) -> None:
        """Check a fresh view, since the table may be overwritten or restored during the run.

        Raises Refused when the generations are older than the view's MemWAL index, LostRace when
        progress is lower than this run has seen before, and Unsupported as `check_details`.
        """
        check_details(view)
        run.check_progress(shard)
        if shard.pending and not request.allow_reinitialised:
            check_shard_lineage(self.views, view, shard)

    def _commit_prefix(
        self, run: ShardRun, view: TableView, plan: NextCommit, request: MergeRequest
    ) -> TableView:
        """Merge one prefix, retrying lost races from a fresh view; returns the view after it.

        Retries are bounded by number and by a deadline; then it raises LostRace or
        StoreUnavailable.
        """
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        start = plan.generations[0].generation
        fold: Fold | None = None
        faults, least = 0, 1
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            try:
                fold, plan, deletes = self._prepare(view, plan, fold)
                asked = self.clock.monotonic_seconds()
                with self.queue.turn() as held:
                    deadline += self.clock.monotonic_seconds() - asked
                    if held:
                        view = self._take_view_in_turn(run, request)
                        if not _is_next(plan, view.shards[0]):
                            return view  # others merged it meanwhile
                        fold, plan, deletes = self._prepare(view, plan, fold)
                    self._commit(run, view, plan, fold, deletes)
            except DoesNotFit as error:
                if len(plan.generations) < least:
                    raise  # as many as are needed can't be guarded in one commit
                plan = self._lengthen(view.shards[0], plan, request, error)
                fold, least = None, len(plan.generations)
            except (LostRace, StoreUnavailable, Missing) as error:
                if isinstance(error, LostRace):
                    self.queue.lost()
                view = self._look_after_error(run, error)
                shard = view.shards[0]
                if shard.merged_generation >= start:
                    # Landed after all, by us or by another merger: the mark says so.
                    run.count_found(shard, plan)
                    return view
                if isinstance(error, Missing):
                    raise Corruption("MW-H03", f"{error}; it is listed and not merged") from None
                faults += isinstance(error, StoreUnavailable)
                if faults >= self.limits.fault_attempts_max:
                    raise
                self.check_same_table(run, view, shard, request)
                self.wait(error, attempt, deadline, f"shard {run.shard_id}")
                # The new prefix must not be shorter than was found to be needed.
                most = max(self.limits.generations_per_commit_max, least)
                limits = replace(self.limits, generations_per_commit_max=most)
                fresh = plan_commit(shard, request, limits)
                if fresh is None:
                    return view
                fold, plan = keep_fold(fold, plan, fresh)
            else:
                if plan.mark == request.until_generation:
                    return _mark(view, plan)  # nothing more is asked for, so nothing is looked at
                return self._take_view(run)
        raise LostRace(
            f"shard {run.shard_id}: lost the race for the commit of generation {start} "
            f"{self.limits.conflict_attempts_max} times; run again when the table is quieter"
        )

    def _lengthen(
        self, shard: ShardView, plan: NextCommit, request: MergeRequest, error: DoesNotFit
    ) -> NextCommit:
        """A prefix of up to twice as many generations, whose values may fit where these do not.

        With it, the outcome of a merge does not depend on how many generations a commit takes.
        Raises DoesNotFit when no more are pending, or no more fit into a commit's bytes.
        """
        limits = replace(self.limits, generations_per_commit_max=2 * len(plan.generations))
        longer = plan_commit(shard, request, limits)
        if longer is None or len(longer.generations) <= len(plan.generations):
            raise error.say(
                f"{error.text}. The shard waits until later rows, or the base's, make it fit; "
                "generations are merged together for that as far as --bytes-per-commit-max allows",
            )
        return longer

    def _prepare(
        self, view: TableView, plan: NextCommit, fold: Fold | None
    ) -> tuple[Fold, NextCommit, Deletes]:
        """The fold to commit, with its plan; cut to one generation when it can't be guarded.

        `fold` is the fold of the same prefix from an earlier attempt, on an older view.
        """
        shard_id = view.shards[0].shard_id
        if fold is None:
            fold = self.table.fold(view, shard_id, plan.generations)
        else:
            fold = fold.rebase(view)
        facts = replace(fold.facts, double_keys=fold.double_keys)
        if (deletes := choose_deletes(facts, self.limits)) is None:
            return self._prepare(view, NextCommit(generations=plan.generations[:1]), None)
        return fold, plan, deletes

    def _commit(
        self, run: ShardRun, view: TableView, plan: NextCommit, fold: Fold, deletes: Deletes
    ) -> None:
        if deletes is Deletes.PASS_BEFORE:
            self._delete_pass(run, view, fold)
        self.before_commit()
        self.steps("commit")
        stats = fold.commit(deletes, plan.mark)
        self.steps("committed")
        run.count_commit(plan, fold, stats)

    def _delete_pass(self, run: ShardRun, view: TableView, fold: Fold) -> None:
        """Delete tombstoned and double keys from the base, in a commit before the one that marks.

        Reads do not change (invariant 5): until the mark, the generation still hides the keys.
        Raises LostRace when other commits landed below this one. One of them may have merged this
        shard, or deleted the anchor from the base, so the merge starts again from a fresh view.
        """
        self.before_commit()
        self.steps("delete_pass")
        if fold.double_keys:
            run.warning = (
                f"the base table held {count_of(fold.double_keys, 'key')} more than once; merged, "
                "each has one row. `memwal verify --deep` finds others"
            )
        version, deleted = fold.delete_pass()
        run.rows_deleted += deleted
        self.steps("between_passes")
        if version > view.version + 1:
            raise LostRace(
                f"shard {run.shard_id}: versions {view.version + 1} to {version - 1} were "
                "committed during the delete pass"
            )

    def _take_view(self, run: ShardRun) -> TableView:
        self.before_view()
        view = self.views.shard(run.shard_id)
        run.see(view.shards[0])
        return view

    def _take_view_in_turn(self, run: ShardRun, request: MergeRequest) -> TableView:
        """A fresh, checked view, with the commits of those whose turn came before."""
        try:
            view = self._take_view(run)
        except Missing as error:  # a file of the table, not of a generation
            raise StoreUnavailable(str(error)) from None
        self.check_same_table(run, view, view.shards[0], request)
        return view

    def _look_after_error(self, run: ShardRun, error: MemWalError) -> TableView:
        """A fresh view after a commit whose outcome is open, since that is never guessed.

        Raises OutcomeUnknown when the view can't be read.
        """
        run.conflicts += 1
        try:
            return self._take_view(run)
        except StoreUnavailable as second:
            raise OutcomeUnknown(
                f"shard {run.shard_id}: the commit failed ({error}) and progress can't be read "
                f"({second}); it may or may not have landed: `memwal status` will tell"
            ) from None

    def wait(self, error: MemWalError, attempt: int, deadline: float, who: str) -> None:
        """Sleep before the next attempt. Raises LostRace if the deadline leaves no time for it."""
        if not back_off(self.clock, attempt, self.limits.conflict_wait_seconds_max, deadline):
            raise LostRace(
                f"{who}: no commit within {self.limits.conflict_seconds_max:g} s: {error}"
            ) from None


def keep_fold(
    fold: Fold | None, plan: NextCommit, fresh: NextCommit
) -> tuple[Fold | None, NextCommit]:
    """The fold and its plan, if `fresh` still begins with it; else no fold and `fresh`."""
    same = fresh.generations[: len(plan.generations)] == plan.generations
    if fold is None or not same:
        return None, fresh
    return fold, plan


def _mark(view: TableView, plan: NextCommit) -> TableView:
    """A view of one shard, with the plan's generations merged."""
    shard = replace(view.shards[0], merged_generation=plan.mark)
    return replace(view, shards=(shard,))


def _is_next(plan: NextCommit, shard: ShardView) -> bool:
    """Whether the plan's generations are still the oldest pending ones (exactly once)."""
    return shard.pending[: len(plan.generations)] == plan.generations


def report_dry_run(
    views: Views, view: TableView, shard: ShardView, request: MergeRequest, limits: MergeLimits
) -> ShardReport:
    """Report what a run would commit of a shard, or why it would not; commits nothing."""
    try:
        if not request.allow_reinitialised:
            check_shard_lineage(views, view, shard)
        return report_planned(shard, plan_commits(shard, request, limits))
    except MemWalError as error:
        at = shard.merged_generation
        left = LeftShard(shard_id=shard.shard_id, merged_generation=at, error=error)
        return report_left(left)


def check_shard_lineage(views: Views, view: TableView, shard: ShardView) -> None:
    """Raise Refused when the shard's pending generations are older than the MemWAL index.

    Only a shard without progress is looked at: progress that the current index recorded proves that
    the generations belong to it. Raises Corruption when the oldest pending generation is gone.
    """
    if shard.merged_generation > 0:
        return
    try:
        flushed_at = views.flushed_at_nanos(shard.shard_id, shard.pending[0])
    except Missing as missing:
        gone = f"shard {shard.shard_id}: {missing}; it is listed and not merged"
        raise Corruption("MW-H03", gone) from None
    check_lineage(shard, flushed_at, views.mem_wal_since_nanos(view, flushed_at))
