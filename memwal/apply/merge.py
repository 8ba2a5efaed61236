"""Merges one shard's pending generations into the base table.

The unit of work is a shard's run of commits: a fresh view, the next prefix, fold, commit, until
what was pending when the run started is merged. Everything that a killed run leaves behind is found
by the next one in the same fresh view (invariant 8); the mark travels in the commit of the rows
(invariant 1).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from memwal.errors import (
    Corruption,
    LostRace,
    MemWalError,
    Missing,
    OutcomeUnknown,
    Refused,
    StoreUnavailable,
)
from memwal.model import ShardId, ShardView, TableView
from memwal.plan.merge import (
    CommitShape,
    Deletes,
    JoinCosts,
    MergeLimits,
    MergeRequest,
    NextCommit,
    check_lineage,
    check_table,
    next_commit,
    shape_commit,
    wanted,
)
from memwal.ports import Clock, CommitStats, Fold, MergeTable, Steps, Views


def no_steps(step: str) -> None:
    """The Steps port of a run that is not watched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardMerge:
    """What happened to one shard. `outcome` is the report's word; error is None when it went well.

    `from_generation` and `to_generation` are the watermark before and after. Rows are counted from
    the commits that this run saw land; `resolved` counts commits that were found in the table after
    an error, whose rows are not known.
    """

    shard_id: ShardId
    outcome: str
    from_generation: int
    to_generation: int
    generations: int = 0
    commits: int = 0
    resolved: int = 0
    conflicts: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    joins: tuple[str, ...] = ()
    error: str | None = None
    exit_code: int = 0
    trace: str | None = None


@dataclass(kw_only=True, slots=True)
class _Run:
    """The running totals of one shard's run."""

    shard_id: ShardId
    from_generation: int = 0
    to_generation: int = 0
    generations: int = 0
    commits: int = 0
    resolved: int = 0
    conflicts: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    bytes_read: int = 0
    joins: list[str] = field(default_factory=list)

    def result(self, seconds: float, error: MemWalError | None) -> ShardMerge:
        if error is None:
            outcome = "done" if self.to_generation > self.from_generation else "nothing_to_do"
        else:
            outcome = "partial" if self.to_generation > self.from_generation else error.outcome
        return ShardMerge(
            **{name: getattr(self, name) for name in self.__slots__ if name != "joins"},
            joins=tuple(dict.fromkeys(self.joins)),
            outcome=outcome,
            seconds=seconds,
            error=None if error is None else str(error),
            exit_code=0 if error is None else error.exit_code,
        )


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
    """Called before each view that commits build on (see memwal.apply.refresh_watch)."""

    def run(self, shard_id: ShardId, request: MergeRequest) -> ShardMerge:
        """Merge what is pending now, up to the request's bound; never raises a MemWalError.

        Generations flushed after the start are left for the next run, so that the run ends under
        steady writes.
        """
        started = self.clock.monotonic_seconds()
        run = _Run(shard_id=shard_id)
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

    def _merge(self, run: _Run, request: MergeRequest) -> None:
        view = self._view(run)
        shard = view.shards[0]
        run.from_generation = run.to_generation = shard.merged_generation
        work = wanted(shard, request)
        if not work:
            return
        check_table(view)
        self._check_same_table(run, view, request)
        bounded = replace(request, until_generation=work[-1].generation)
        while True:
            plan = next_commit(shard, bounded, self.limits)
            if plan is None:
                return
            view = self._commit_prefix(run, view, plan, bounded)
            self._check_same_table(run, view, request)
            shard = view.shards[0]

    def _check_same_table(self, run: _Run, view: TableView, request: MergeRequest) -> None:
        """Asked of every fresh view: the table may be overwritten or restored while we work.

        Raises Refused when the generations are older than the MemWAL index that the view has, and
        LostRace when progress fell below what this run has seen.
        """
        shard = view.shards[0]
        if shard.merged_generation < run.to_generation:
            raise LostRace(
                f"shard {run.shard_id}: merge progress fell from {run.to_generation} to "
                f"{shard.merged_generation} while it was merged: the table was overwritten or "
                "restored, or a snapshot refresh raced without the lease; run again"
            )
        if shard.pending:
            check_shard_lineage(self.views, view, shard, request)

    def _commit_prefix(
        self, run: _Run, view: TableView, plan: NextCommit, request: MergeRequest
    ) -> TableView:
        """Merge one prefix, retrying lost races from a fresh view; returns the view after it.

        Bounded by attempts and by a deadline. Raises LostRace or StoreUnavailable when they end.
        """
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        start = plan.generations[0].generation
        fold: Fold | None = None
        faults = 0
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            try:
                fold, plan = self._prepare(view, plan, fold)
                self._commit(run, view, plan, fold)
            except (LostRace, StoreUnavailable, Missing) as error:
                view, shard = self._after_error(run, error)
                if shard.merged_generation >= start:
                    # Landed after all, by us or by another merger: the mark says so.
                    self._count_resolved(run, shard, plan)
                    return view
                if isinstance(error, Missing):
                    raise Corruption(f"{error}; it is listed and not merged") from None
                faults += isinstance(error, StoreUnavailable)
                if faults >= self.limits.fault_attempts_max:
                    raise
                self._check_same_table(run, view, request)
                self._wait(error, attempt, deadline, run)
                fresh = next_commit(shard, request, self.limits)
                if fresh is None:
                    return view
                fold, plan = self._reusable(fold, view, plan, fresh)
            else:
                return self._refreshed(run)
        raise LostRace(
            f"shard {run.shard_id}: lost the race for the commit of generation {start} "
            f"{self.limits.conflict_attempts_max} times; run again when the table is quieter"
        )

    def _prepare(
        self, view: TableView, plan: NextCommit, fold: Fold | None
    ) -> tuple[Fold, NextCommit]:
        """A fold that may be committed: cut to one generation when it can't be guarded."""
        shard_id = view.shards[0].shard_id
        if fold is None:
            fold = self.table.fold(view, shard_id, plan.generations)
        if shape_commit(fold.facts, self.limits, self.costs) is None:
            plan = NextCommit(generations=plan.generations[:1])
            fold = self.table.fold(view, shard_id, plan.generations)
        return fold, plan

    def _commit(self, run: _Run, view: TableView, plan: NextCommit, fold: Fold) -> None:
        shape = shape_commit(fold.facts, self.limits, self.costs)
        if shape is None:
            raise Refused(f"shard {run.shard_id}: generation {plan.mark} can't be committed")
        if shape.deletes is Deletes.PASS_BEFORE:
            self._delete_pass(run, view, fold, shape)
        self.before_commit()
        self.steps("commit")
        stats = fold.commit(shape, plan.mark)
        self.steps("committed")
        _count(run, plan, fold, shape, stats)

    def _delete_pass(self, run: _Run, view: TableView, fold: Fold, shape: CommitShape) -> None:
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

    def _view(self, run: _Run) -> TableView:
        self.before_view()
        return self.views.shard(run.shard_id)

    def _refreshed(self, run: _Run) -> TableView:
        view = self._view(run)
        run.to_generation = max(run.to_generation, view.shards[0].merged_generation)
        return view

    def _after_error(self, run: _Run, error: MemWalError) -> tuple[TableView, ShardView]:
        """Progress after a commit whose outcome is open; never guessed (design section 5)."""
        run.conflicts += 1
        try:
            view = self._refreshed(run)
        except StoreUnavailable as second:
            raise OutcomeUnknown(
                f"shard {run.shard_id}: the commit failed ({error}) and progress can't be read "
                f"({second}); it may or may not have landed: `memwal status` will tell"
            ) from None
        return view, view.shards[0]

    def _count_resolved(self, run: _Run, shard: ShardView, plan: NextCommit) -> None:
        if shard.merged_generation >= plan.mark:
            run.resolved += 1

    def _wait(self, error: MemWalError, attempt: int, deadline: float, run: _Run) -> None:
        longest = min(self.limits.conflict_wait_seconds_max, 0.05 * 2.0 ** min(attempt, 10))
        wait = self.clock.random() * longest
        if self.clock.monotonic_seconds() + wait > deadline:
            raise LostRace(
                f"shard {run.shard_id}: no commit within "
                f"{self.limits.conflict_seconds_max:g} s: {error}"
            ) from None
        self.clock.sleep(wait)

    @staticmethod
    def _reusable(
        fold: Fold | None, view: TableView, plan: NextCommit, fresh: NextCommit
    ) -> tuple[Fold | None, NextCommit]:
        """Keep the folded keys when the prefix is still the same (or was cut from it)."""
        same = fresh.generations[: len(plan.generations)] == plan.generations
        if fold is None or not same:
            return None, fresh
        return fold.rebased(view), plan


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


def _count(
    run: _Run,
    plan: NextCommit,
    fold: Fold,
    shape: CommitShape,
    stats: CommitStats,
) -> None:
    run.commits += 1
    run.generations += len(plan.generations)
    run.to_generation = plan.mark
    run.rows_inserted += stats.rows_inserted
    run.rows_updated += stats.rows_updated
    run.rows_deleted += stats.rows_deleted
    run.bytes_read += fold.bytes_read
    run.joins.append(shape.join.value)
