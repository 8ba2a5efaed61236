"""Merges several shards of one table with commits that they share.

A round takes the shards' next prefixes from one fresh view, as many as fit into a commit, and
commits them together. Shards that can't share a commit, or fail, are left to the merger of single
shards, which reports each shard's error by itself. Nothing is guessed here either: after an error,
the marks in a fresh view say what landed.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from memwal.errors import (
    LostRace,
    MemWalError,
    Missing,
    OutcomeUnknown,
    StandDown,
    StoreUnavailable,
)
from memwal.jobs.merge.apply import ShardMerger, ShardRun
from memwal.jobs.merge.plan import (
    FoldFacts,
    NextCommit,
    bound_request,
    check_table,
    choose_folds,
    choose_plans,
)
from memwal.jobs.merge.ports import Fold, SharedFold
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId, SharedKey, TableView
from memwal.text import count_of

ATTEMPTS_MAX = 8
"""After this many lost races in a row, shards are merged one by one."""


@dataclass(kw_only=True, slots=True)
class _Rounds:
    """The shared commits of one run of several shards; those in `alone` are merged one by one."""

    single: ShardMerger
    runs: Mapping[ShardId, ShardRun]
    bounded: dict[ShardId, MergeRequest] = field(default_factory=dict)
    alone: set[ShardId] = field(default_factory=set)
    unreached: bool = False
    """Whether the store failed for a shard since the last look at the table."""
    folds: dict[ShardId, tuple[NextCommit, Fold]] = field(default_factory=dict)

    @contextmanager
    def _taking_out(self, shard_id: ShardId) -> Iterator[None]:
        """Turn a MemWalError of one shard into its removal from the shared commits."""
        try:
            yield
        except MemWalError as error:
            self.alone.add(shard_id)
            self.unreached = self.unreached or isinstance(error, StoreUnavailable)

    def is_done(self, shard_id: ShardId) -> bool:
        """Whether all that was pending at the start is merged; False for a shard never seen."""
        if not self.runs[shard_id].is_seen:
            return False
        until = self.bounded[shard_id].until_generation if shard_id in self.bounded else 0
        return until is not None and self.runs[shard_id].to_generation >= until

    def left(self) -> list[ShardId]:
        """The shards that still have work and are to be merged together."""
        return [s for s in self.bounded if s not in self.alone and not self.is_done(s)]

    def run(self, request: MergeRequest) -> None:
        """Make shared commits until none is left to make; raises what ends them for all shards."""
        view = self._take_view(list(self.runs))
        check_table(view)
        for shard in view.shards:
            if (bounded := bound_request(shard, request)) is not None:
                self.bounded[shard.shard_id] = bounded
        lost, deadline = 0, self._deadline()
        while left := self.left():
            chosen = choose_plans(self._plan(view), self.single.limits)
            if not chosen:
                self.alone.update(left)
                return
            plans = self._choose_folds(view, chosen)
            if len(plans) < 2:
                self.alone.update(chosen)
                continue
            try:
                together = self._share(plans)
                if together is None:
                    continue
                asked = self.single.clock.monotonic_seconds()
                with self.single.queue.turn() as held:
                    deadline += self.single.clock.monotonic_seconds() - asked
                    if held:
                        view = self._take_view(self.left())
                        plans = self._keep_next(view, plans)
                        together = self._share(plans)
                    if together is not None:
                        self._commit(plans, together)
            except (LostRace, StoreUnavailable, Missing) as error:
                lost += 1
                if isinstance(error, LostRace):
                    self.single.queue.lost()
                view = self._look_after_error(plans, error)
                if lost < ATTEMPTS_MAX and isinstance(error, LostRace):
                    self.single.wait(error, lost, deadline, f"{count_of(len(plans), 'shard')}")
                else:
                    self.alone.update(s for s in plans if not self.is_done(s))
                    lost, deadline = 0, self._deadline()
            else:
                lost, deadline = 0, self._deadline()
                left = self.left()
                view = self._take_view(left) if left else view

    def _deadline(self) -> float:
        return self.single.clock.monotonic_seconds() + self.single.limits.conflict_seconds_max

    def _take_view(self, shard_ids: Sequence[ShardId]) -> TableView:
        """Take a fresh view of the shards and note their progress; broken ones are taken out."""
        self.single.before_view()
        view = self.single.views.shards(shard_ids)
        self.unreached = False
        seen = {shard.shard_id: shard for shard in view.shards}
        for shard_id in shard_ids:
            if shard_id in seen:
                self.runs[shard_id].see(seen[shard_id])
            else:
                self.alone.add(shard_id)
        return view

    def _plan(self, view: TableView) -> Mapping[ShardId, NextCommit]:
        """The next prefix of each shard that still has work and is to be merged together."""
        plans: dict[ShardId, NextCommit] = {}
        together = set(self.left())
        for shard in view.shards:
            if shard.shard_id not in together:
                continue
            with self._taking_out(shard.shard_id):
                plan = self.single.plan_next(shard, self.bounded[shard.shard_id])
                if plan is not None:
                    plans[shard.shard_id] = plan
        return plans

    def _keep_next(
        self, view: TableView, plans: Mapping[ShardId, NextCommit]
    ) -> Mapping[ShardId, NextCommit]:
        """Those plans that are still next in a later view, folded on that view."""
        now = self._plan(view)
        same = {shard: plan for shard, plan in plans.items() if now.get(shard) == plan}
        return self._choose_folds(view, same)

    def _choose_folds(
        self, view: TableView, plans: Mapping[ShardId, NextCommit]
    ) -> Mapping[ShardId, NextCommit]:
        """The plans that share the next commit, folded on this view.

        Shards that can share no commit are taken out. Those whose tombstones only lack room in this
        commit wait for the next one.
        """
        seen = {shard.shard_id: shard for shard in view.shards}
        facts: dict[ShardId, FoldFacts] = {}
        for shard_id, plan in plans.items():
            run, bounded = self.runs[shard_id], self.bounded[shard_id]
            with self._taking_out(shard_id):
                # Only for shards whose turn it is, since the check may ask the store.
                self.single.check_same_table(run, view, seen[shard_id], bounded)
                facts[shard_id] = self._fold(view, shard_id, plan).facts
            if self.unreached:
                self._take_view([shard_id])  # raises if the whole store is unavailable
        limits = self.single.limits
        self.alone.update(s for s, fact in facts.items() if not choose_folds({s: fact}, limits))
        return {shard: plans[shard] for shard in choose_folds(facts, limits)}

    def _fold(self, view: TableView, shard_id: ShardId, plan: NextCommit) -> Fold:
        """The plan's fold, rebased if the same prefix was folded before."""
        before, fold = self.folds.get(shard_id, (None, None))
        if fold is not None and before == plan:
            fold = fold.rebase(view)
        else:
            fold = self.single.table.fold(view, shard_id, plan.generations)
        self.folds[shard_id] = (plan, fold)
        return fold

    def _share(self, plans: Mapping[ShardId, NextCommit]) -> SharedFold | None:
        """Join the plans' folds, with their rows; None, and all are taken out, if that fails.

        It does where the base holds a key more than once, which takes a delete pass. Shards that
        hold the same key get a warning.
        """
        together = None
        if len(plans) > 1:
            together = self.single.table.share({s: self.folds[s][1] for s in plans})
        if isinstance(together, SharedKey):
            for shard_id in together.shards:
                self.runs[shard_id].warning = str(together)
            together = None
        if together is None or together.double_keys:
            self.alone.update(plans)
            return None
        return together

    def _commit(self, plans: Mapping[ShardId, NextCommit], together: SharedFold) -> None:
        single = self.single
        single.before_commit()
        single.steps("commit")
        stats = together.commit({shard: plan.mark for shard, plan in plans.items()})
        single.steps("committed")
        for place, (shard_id, plan) in enumerate(plans.items()):
            run = self.runs[shard_id]
            run.count_commit(plan, self.folds.pop(shard_id)[1], stats[shard_id])
            run.commits_shared += place > 0
        self.runs[next(iter(plans))].bytes_read += together.bytes_read

    def _look_after_error(
        self, plans: Mapping[ShardId, NextCommit], error: MemWalError
    ) -> TableView:
        """A fresh view after a commit whose outcome is open; its marks say what landed.

        Raises OutcomeUnknown when the view can't be read.
        """
        for shard_id in plans:
            self.runs[shard_id].conflicts += 1
        try:
            view = self._take_view(list(dict.fromkeys((*plans, *self.left()))))
        except StoreUnavailable as second:
            names = ", ".join(map(str, plans))
            raise OutcomeUnknown(
                f"shards {names}: their commit failed ({error}) and progress can't be read "
                f"({second}); it may or may not have landed: `memwal status` will tell"
            ) from None
        for shard in view.shards:
            plan = plans.get(shard.shard_id)
            if plan is not None and shard.merged_generation >= plan.generations[0].generation:
                self.runs[shard.shard_id].count_found(shard, plan)
        return view


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedMerger:
    """Merges shards of one table. Holds the merger of single shards; has no state of its own."""

    single: ShardMerger

    def run(self, shard_ids: Sequence[ShardId], request: MergeRequest) -> tuple[ShardReport, ...]:
        """Merge what is pending now, as `ShardMerger.run` does; one report a shard, in order.

        The time of shared commits counts in the first shard's seconds.
        """
        clock = self.single.clock
        started = clock.monotonic_seconds()
        runs = {shard_id: ShardRun(shard_id=shard_id) for shard_id in shard_ids}
        first = runs[shard_ids[0]]
        rounds = _Rounds(single=self.single, runs=runs)
        stopped: MemWalError | None = None
        try:
            rounds.run(request)
        except LostRace:
            rounds.alone.update(shard_ids)
        except StandDown as everywhere:
            stopped = everywhere  # the lease is lost, or the run is cancelled
        except (StoreUnavailable, OutcomeUnknown) as everywhere:
            stopped = everywhere  # each shard by itself would wait as long for the store
        except MemWalError:
            rounds.alone.update(shard_ids)
        except Exception:
            # Each shard can still be merged by itself, and has to be reported.
            rounds.alone.update(shard_ids)
            first.trace = traceback.format_exc()
        first.seconds = clock.monotonic_seconds() - started
        rounds.folds.clear()  # they hold rows, and shards merged alone are folded again anyway
        return tuple(self._end(rounds, run, request, stopped) for run in runs.values())

    def _end(
        self, rounds: _Rounds, run: ShardRun, request: MergeRequest, stopped: MemWalError | None
    ) -> ShardReport:
        """One shard's report; a shard that was taken out is merged by itself first."""
        shard_id = run.shard_id
        if stopped is not None:
            return run.report(None if rounds.is_done(shard_id) else stopped)
        if shard_id in rounds.alone:
            return self.single.run(shard_id, rounds.bounded.get(shard_id, request), run)
        return run.report()
