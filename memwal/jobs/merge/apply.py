"""Merges one shard's pending generations into the base table.

The unit of work is a shard's run of commits: a fresh view, the next prefix, fold, commit, until
what was pending when the run started is merged. Everything that a killed run leaves behind is found
by the next one in the same fresh view (invariant 8); the mark travels in the commit of the rows
(invariant 1).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from memwal.errors import (
    Corruption,
    DoesNotFit,
    LostRace,
    MemWalError,
    Missing,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
)
from memwal.jobs.merge.apply_run import ShardMerge, ShardRun
from memwal.jobs.merge.plan import (
    CommitShape,
    Deletes,
    JoinCosts,
    MergeLimits,
    MergeRequest,
    NextCommit,
    check_lineage,
    check_next,
    check_table,
    next_commit,
    shape_commit,
    wanted,
)
from memwal.jobs.merge.ports import Fold, MergeTable, NoTurns, Turns
from memwal.model import ShardId, ShardView, TableView
from memwal.ports import Clock, Steps, Views


def no_steps(step: str) -> None:
    """The Steps port of a run that is not watched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMerger:
    """Merges shards of one table. Holds ports and limits; has no state of its own."""

    views: Views
    table: MergeTable
    clock: Clock
    limits: MergeLimits = MergeLimits()
    costs: JoinCosts = JoinCosts()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each writing step; raises when the run has lost its lease."""
    before_view: Callable[[], None] = lambda: None
    """Called before each view that commits build on (see memwal.jobs.merge.refresh_watch)."""
    turns: Turns = NoTurns()

    def run(
        self, shard_id: ShardId, request: MergeRequest, run: ShardRun | None = None
    ) -> ShardMerge:
        """Merge what is pending now, up to the request's bound; never raises a MemWalError.

        Generations flushed after the start are left for the next run, so that the run ends under
        steady writes. `run` is a run of this shard that this one goes on with.
        """
        started = self.clock.monotonic_seconds()
        run = run or ShardRun(shard_id=shard_id)
        error: MemWalError | None = None
        trace: str | None = None
        try:
            self._merge(run, request)
        except MemWalError as caught:
            error = caught
        except Exception as caught:
            # Not expected, but what was committed before it is, and has to be reported.
            error = MemWalError(f"unexpected {type(caught).__name__}: {caught}")
            trace = traceback.format_exc()
        result = run.result(self.clock.monotonic_seconds() - started, error)
        return replace(result, trace=trace)

    def _merge(self, run: ShardRun, request: MergeRequest) -> None:
        view = self._view(run)
        shard = view.shards[0]
        self.check_progress(run, shard)
        run.seen(shard)
        work = wanted(shard, request)
        if not work:
            check_next(shard, request)
            return
        check_table(view)
        self.check_same_table(run, view, shard, request)
        bounded = replace(request, until_generation=work[-1].generation)
        while True:
            plan = next_commit(shard, bounded, self.limits)
            if plan is None:
                check_next(shard, request)
                return
            view = self._commit_prefix(run, view, plan, bounded)
            shard = view.shards[0]
            self.check_same_table(run, view, shard, request)

    def check_same_table(
        self, run: ShardRun, view: TableView, shard: ShardView, request: MergeRequest
    ) -> None:
        """Asked of every fresh view: the table may be overwritten or restored while we work.

        Raises Refused when the generations are older than the MemWAL index that the view has, and
        LostRace when progress fell below what this run has seen.
        """
        self.check_progress(run, shard)
        if shard.pending:
            check_shard_lineage(self.views, view, shard, request)

    @staticmethod
    def check_progress(run: ShardRun, shard: ShardView) -> None:
        """Raise LostRace when progress fell below what this run has seen."""
        if shard.merged_generation < run.to_generation:
            raise LostRace(
                f"shard {run.shard_id}: merge progress fell from {run.to_generation} to "
                f"{shard.merged_generation} while it was merged: the table was overwritten or "
                "restored, or a snapshot refresh raced without the lease; run again"
            )

    def _commit_prefix(
        self, run: ShardRun, view: TableView, plan: NextCommit, request: MergeRequest
    ) -> TableView:
        """Merge one prefix, retrying lost races from a fresh view; returns the view after it.

        Bounded by attempts and by a deadline. Raises LostRace or StoreUnavailable when they end.
        """
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        start = plan.generations[0].generation
        fold: Fold | None = None
        faults, least = 0, 1
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            try:
                fold, plan = self._prepare(view, plan, fold)
                asked = self.clock.monotonic_seconds()
                with self.turns.turn() as held:
                    deadline += self.clock.monotonic_seconds() - asked
                    if held:
                        view = self._view_in_turn(run, request)
                        if not _is_next(plan, view.shards[0]):
                            return view  # others merged it meanwhile
                        fold, plan = self._prepare(view, plan, fold)
                    self._commit(run, view, plan, fold)
            except DoesNotFit as error:
                if len(plan.generations) < least:
                    raise  # so many can't be guarded in one commit
                plan = self._longer(view.shards[0], plan, request, error)
                fold, least = None, len(plan.generations)
            except (LostRace, StoreUnavailable, Missing) as error:
                if isinstance(error, LostRace):
                    self.turns.lost()
                view, shard = self._after_error(run, error)
                if shard.merged_generation >= start:
                    # Landed after all, by us or by another merger: the mark says so.
                    run.found(shard, plan)
                    return view
                if isinstance(error, Missing):
                    raise Corruption(f"{error}; it is listed and not merged") from None
                faults += isinstance(error, StoreUnavailable)
                if faults >= self.limits.fault_attempts_max:
                    raise
                self.check_same_table(run, view, shard, request)
                self.wait(error, attempt, deadline, f"shard {run.shard_id}")
                # Not shorter than what was found to be needed.
                most = max(self.limits.generations_per_commit_max, least)
                limits = replace(self.limits, generations_per_commit_max=most)
                fresh = next_commit(shard, request, limits)
                if fresh is None:
                    return view
                fold, plan = self._reusable(fold, plan, fresh)
            else:
                return self._refreshed(run)
        raise LostRace(
            f"shard {run.shard_id}: lost the race for the commit of generation {start} "
            f"{self.limits.conflict_attempts_max} times; run again when the table is quieter"
        )

    def _longer(
        self, shard: ShardView, plan: NextCommit, request: MergeRequest, error: DoesNotFit
    ) -> NextCommit:
        """A prefix of up to twice as many generations, whose values may fit where these do not.

        So what a merge comes to does not hang on how many generations a commit takes. Raises
        DoesNotFit when no more are pending, or fit into a commit's bytes.
        """
        limits = replace(self.limits, generations_per_commit_max=2 * len(plan.generations))
        longer = next_commit(shard, request, limits)
        if longer is None or len(longer.generations) <= len(plan.generations):
            raise DoesNotFit(
                f"{error}. The shard waits until later rows, or the base's, make it fit; "
                "generations are merged together for that as far as --bytes-per-commit-max allows"
            )
        return longer

    def _view_in_turn(self, run: ShardRun, request: MergeRequest) -> TableView:
        """What those left whose turn it was before."""
        try:
            view = self._refreshed(run)
        except Missing as error:  # of the table's, not a generation
            raise StoreUnavailable(str(error)) from None
        self.check_same_table(run, view, view.shards[0], request)
        return view

    def _prepare(
        self, view: TableView, plan: NextCommit, fold: Fold | None
    ) -> tuple[Fold, NextCommit]:
        """A fold that may be committed: cut to one generation when it can't be guarded.

        `fold` is one of the same prefix that an attempt before left, on an older view.
        """
        shard_id = view.shards[0].shard_id
        if fold is None:
            fold = self.table.fold(view, shard_id, plan.generations)
        else:
            fold = fold.rebased(view)
        if shape_commit(fold.facts, self.limits, self.costs) is None:
            plan = NextCommit(generations=plan.generations[:1])
            fold = self.table.fold(view, shard_id, plan.generations)
        return fold, plan

    def _commit(self, run: ShardRun, view: TableView, plan: NextCommit, fold: Fold) -> None:
        shape = shape_commit(fold.facts, self.limits, self.costs)
        if shape is None:
            raise Refused(f"shard {run.shard_id}: generation {plan.mark} can't be committed")
        if shape.deletes is Deletes.PASS_BEFORE:
            self._delete_pass(run, view, fold, shape)
        self.before_commit()
        self.steps("commit")
        stats = fold.commit(shape, plan.mark)
        self.steps("committed")
        run.landed(plan, fold, shape, stats)

    def _delete_pass(self, run: ShardRun, view: TableView, fold: Fold, shape: CommitShape) -> None:
        """Take tombstoned keys out of the base, ahead of the mark.

        Reads do not change (invariant 5): until the mark, the generation still hides the keys. The
        pass may have been put on top of commits that it did not conflict with. One of them may
        have merged this shard, or have taken the anchor out of the base: what was known of the
        fold no longer holds, so it starts again from a fresh view.
        """
        self.before_commit()
        self.steps("delete_pass")
        version, deleted = fold.delete_pass(shape)
        run.rows_deleted += deleted
        self.steps("between_passes")
        if version > view.version + 1:
            raise LostRace(
                f"shard {run.shard_id}: versions {view.version + 1} to {version - 1} were "
                "committed during the delete pass"
            )

    def _view(self, run: ShardRun) -> TableView:
        self.before_view()
        return self.views.shard(run.shard_id)

    def _refreshed(self, run: ShardRun) -> TableView:
        view = self._view(run)
        run.seen(view.shards[0])
        return view

    def _after_error(self, run: ShardRun, error: MemWalError) -> tuple[TableView, ShardView]:
        """Progress after a commit whose outcome is open; never guessed."""
        run.conflicts += 1
        try:
            view = self._refreshed(run)
        except StoreUnavailable as second:
            raise OutcomeUnknown(
                f"shard {run.shard_id}: the commit failed ({error}) and progress can't be read "
                f"({second}); it may or may not have landed: `memwal status` will tell"
            ) from None
        return view, view.shards[0]

    def wait(self, error: MemWalError, attempt: int, deadline: float, who: str) -> None:
        """Sleep before the next attempt. Raises LostRace when there is no time for one."""
        longest = min(self.limits.conflict_wait_seconds_max, 0.05 * 2.0 ** min(attempt, 10))
        wait = self.clock.random() * longest
        if self.clock.monotonic_seconds() + wait > deadline:
            raise LostRace(
                f"{who}: no commit within {self.limits.conflict_seconds_max:g} s: {error}"
            ) from None
        self.clock.sleep(wait)

    @staticmethod
    def _reusable(
        fold: Fold | None, plan: NextCommit, fresh: NextCommit
    ) -> tuple[Fold | None, NextCommit]:
        """Keep the folded keys when the prefix is still the same (or was cut from it)."""
        same = fresh.generations[: len(plan.generations)] == plan.generations
        if fold is None or not same:
            return None, fresh
        return fold, plan


def _is_next(plan: NextCommit, shard: ShardView) -> bool:
    """Whether the plan's generations are still the oldest pending ones (exactly once)."""
    return shard.pending[: len(plan.generations)] == plan.generations


def check_shard_lineage(
    views: Views, view: TableView, shard: ShardView, request: MergeRequest
) -> None:
    """Raise Refused when the shard's pending generations are older than the MemWAL index.

    Progress that the current index recorded for the shard proves that its generations belong to
    it; only a shard without any is looked at. Raises Corruption when the oldest is gone.
    """
    if shard.merged_generation > 0 or request.reinitialised_allowed:
        return
    try:
        flushed_at = views.flushed_at_nanos(shard.shard_id, shard.pending[0])
    except Missing as missing:
        raise Corruption(f"shard {shard.shard_id}: {missing}") from None
    check_lineage(shard, flushed_at, views.mem_wal_since_nanos(view, flushed_at))
