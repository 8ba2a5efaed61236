"""Makes a table's indexes cover what merging added, until progress is recorded for each.

A run aims at the state it finds when it starts: all fragments, and the merge progress of that
version. So it ends even under steady writes. It goes in rounds: look, plan, act, look again. What
counts is what the manifest of the latest version says afterwards; a commit that returned proves
nothing. That manifest is also all that a killed run leaves to the next one (invariant 8), and the
reason why a lost reply does no harm.

Catch-up values are never written by hand: Lance accepts claims that are too high, and garbage
collection believes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from memwal.errors import (
    Corruption,
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    StoreUnavailable,
    Unsupported,
)
from memwal.format.unknown import check_details
from memwal.indexes import FragmentFacts, Progress, TableIndexes, find_behind
from memwal.jobs.index_catchup.plan import (
    CatchupLimits,
    IndexCatchupReport,
    IndexCatchupTableReport,
    IndexPlan,
    Method,
    check_names,
    choose_method,
    plan_index,
    plan_indexes,
)
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.model import TableView
from memwal.ports import Clock, Steps, Views, back_off, no_steps
from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, describe_error, join_errors, sum_up
from memwal.rows.progress import check_progress


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentTask:
    """Build one segment of an index over some fragments of a version."""

    version: int
    index: str
    kind: str
    fragments: tuple[FragmentFacts, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltSegment:
    """A segment that is not committed yet; `data` is Lance's own description of it, pickled."""

    index: str
    data: bytes = field(repr=False)


class IndexTable(Protocol):
    """The base table, as index catch-up needs it.

    The methods that commit raise LostRace on a conflict, Unsupported for what Lance can't do, and
    StoreUnavailable for an error that leaves open whether the commit has landed. None of them
    promises coverage: the caller reads the table again.
    """

    def facts(self, version: int) -> TableIndexes:
        """The fragments and indexes of a version."""
        ...

    def record(self, name: str) -> None:
        """Commit without indexing, which records progress for every index with full coverage."""
        ...

    def append(self, names: Sequence[str], segments_to_merge: int | None) -> None:
        """Index the rows of the latest version that the indexes lack, all in one commit.

        With None, Lance splits and joins partitions.
        """
        ...

    def retrain(self, name: str, segments_to_merge: int | None) -> None:
        """Retrain a vector index on all rows; for another index, merge that many segments."""
        ...

    def commit_segments(self, version: int, name: str, segments: Sequence[BuiltSegment]) -> None:
        """Commit segments that were built on `version`; the progress recorded is that version's."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexState:
    """One version of the table: the progress in its manifest, and what its indexes cover."""

    view: TableView
    table: TableIndexes

    def recorded(self, name: str) -> Progress:
        """The progress that the manifest records for an index; empty for none."""
        return self.view.mem_wal.index_catchup.get(name, {})

    def uncovered_rows(self, name: str) -> int | None:
        """How many rows the index does not cover; None when there is no such index."""
        index = self.table.index(name)
        return None if index is None else self.table.uncovered_rows(index)


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What has to be covered and recorded, which is the state at the start of the run."""

    fragments: frozenset[int]
    merged: Progress

    def is_reached(self, seen: IndexState, name: str) -> bool:
        """Whether the index covers the goal's fragments, and records its merge progress.

        Of a table without rows there is nothing to cover, and Lance records nothing.
        """
        index = seen.table.index(name)
        if index is not None and not seen.table.fragments:
            return True
        if index is None or find_behind(seen.recorded(name), self.merged):
            return False
        left = {f.fragment_id for f in seen.table.uncovered(index)}
        return not left & self.fragments


@dataclass(kw_only=True, slots=True)
class Run:
    """The running totals of one index."""

    plan: IndexPlan
    had_work: bool = False
    rounds: int = 0
    conflicts: int = 0
    faults: int = 0
    seconds: float = 0.0
    error: MemWalError | None = None
    committed: bool = False
    retrained: bool = False
    method: Method = Method.NONE
    reason: str = ""
    rows: int = 0

    @property
    def owes_retrain(self) -> bool:
        """Whether a retrain was begun and has not landed, which coverage alone does not show."""
        return self.method is Method.RETRAIN and not self.retrained

    @property
    def is_open(self) -> bool:
        """Whether there is still something to commit."""
        return self.error is None and self.plan.has_work

    def begin_round(self) -> None:
        """Begin one more round; the first round that indexes is the one to report."""
        self.rounds += 1
        self.committed = False
        if self.method is Method.NONE:
            self.method, self.reason = self.plan.method, self.plan.reason
            self.rows = self.plan.rows

    def check_refusal(self) -> None:
        """End the run of an index that can't be caught up at all, with Unsupported."""
        if self.plan.refusal is not None:
            self.error = Unsupported("MW-X01", self.plan.refusal)

    def count_fault(self, fault: MemWalError, limits: CatchupLimits) -> None:
        """Count one more fault; too many of them end the run of the index."""
        self.faults += 1
        if self.faults >= limits.fault_attempts_max:
            self.error = fault


Built = BuiltSegment | MemWalError
Build = Callable[[Sequence[SegmentTask]], Sequence[Built]]
"""Runs tasks side by side; the results come in the tasks' order, an error in place of a segment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexCatchupJob:
    """Catches up the indexes of one table. Holds ports and limits; has no state of its own."""

    name: str
    """The table's name in the report."""
    views: Views
    table: IndexTable
    clock: Clock
    build: Build
    request: CatchupRequest = CatchupRequest()
    limits: CatchupLimits = CatchupLimits()
    steps: Steps = no_steps
    take_lease: Callable[[], None] = lambda: None
    """Called once there is something to commit; raises LeaseHeld."""
    is_current: bool = False
    """Whether the view that a run begins with was read under the lease."""
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit; raises when the run has lost its lease."""

    def run(self, view: TableView, *, dry_run: bool = False) -> IndexCatchupTableReport:
        """Catch up under the lease, if `view` shows something to commit; else only report."""
        report = self.plan(view)
        if dry_run or not any(i.outcome == DONE for i in report.indexes):
            return report
        self.take_lease()
        # A plan made without the lease may be out of date, so everything is read again.
        return self._catch_up(view, view if self.is_current else self.views.table())

    def plan(self, view: TableView) -> IndexCatchupTableReport:
        """Report what a run would do, and what would be recorded; changes nothing."""
        seen = self._read(view)
        return self._report(view, seen, [_report_plan(seen, plan) for plan in self._plan(seen)])

    def catch_up(self, view: TableView) -> IndexCatchupTableReport:
        """Catch up all indexes; an error of one does not stop the others.

        To be called under the table's lease; `view` is the view that the run began with. Raises
        errors of the whole table: it can't be read, or the lease was lost.
        """
        return self._catch_up(view, self.views.table())

    def _catch_up(self, view: TableView, fresh: TableView) -> IndexCatchupTableReport:
        first = self._read(fresh)
        goal = Goal(
            fragments=frozenset(f.fragment_id for f in first.table.fragments),
            merged=dict(first.view.mem_wal.merged),
        )
        runs = [
            Run(plan=plan, had_work=plan.has_work, reason=plan.reason) for plan in self._plan(first)
        ]
        for run in runs:
            run.check_refusal()
        last = self._go_round(first, goal, runs)
        return self._report(view, last, [_report(run, first, last, goal) for run in runs])

    def _report(
        self, view: TableView, last: IndexState, indexes: Sequence[IndexCatchupReport]
    ) -> IndexCatchupTableReport:
        outcome, code = sum_up(indexes)
        return IndexCatchupTableReport(
            table=self.name,
            outcome=outcome,
            exit_code=code,
            error=join_errors({i.name: i.error for i in indexes}),
            version_before=view.version,
            version_after=last.view.version,
            columns=view.describe_columns(),
            indexes=tuple(indexes),
            warnings=view.warnings,
        )

    def _go_round(self, seen: IndexState, goal: Goal, runs: Sequence[Run]) -> IndexState:
        """Act and look again until nothing is left to do; returns the last state."""
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            todo = [run for run in runs if run.is_open]
            if not todo:
                return seen
            self._act(seen, todo)
            before, seen = seen, self._read(self.views.table())
            verdicts = [self._judge(run, before, seen, goal) for run in todo]
            wait_max = self.limits.conflict_wait_seconds_max
            if any(verdicts) and not back_off(self.clock, attempt, wait_max, deadline):
                break
        for run in runs:
            if run.is_open:
                run.error = LostRace(
                    f"index {run.plan.name!r}: not caught up after {run.rounds} rounds, "
                    f"{run.conflicts} of them lost to other commits; run again when the table is "
                    "quieter"
                )
        return seen

    def _read(self, view: TableView) -> IndexState:
        check_progress(view)
        return IndexState(view=view, table=self.table.facts(view.version))

    def _plan(self, seen: IndexState) -> tuple[IndexPlan, ...]:
        check_names(seen.table, self.request.indexes, seen.view.uri)
        state = seen.view.mem_wal
        return plan_indexes(
            seen.table, state.index_catchup, state.merged, self.request, self.limits
        )

    def _judge(self, run: Run, before: IndexState, seen: IndexState, goal: Goal) -> bool:
        """Set what the index still needs, now that the table was read again.

        Returns whether to pause before the next round. If Lance commits without covering anything,
        it would do so for ever, so that counts as a fault.
        """
        name, done = run.plan.name, run.plan
        run.plan = replace(done, method=Method.NONE, records=False)
        if run.error is not None or (goal.is_reached(seen, name) and not run.owes_retrain):
            return False
        index, index_before = seen.table.index(name), before.table.index(name)
        if index is None or index_before is None:
            run.error = Missing(f"index {name!r} was dropped meanwhile")
            return False
        # A retrain that was asked for is not asked for again once it has landed.
        asked = choose_method(self.request)
        asked = None if run.retrained and asked is Method.RETRAIN else asked
        state = seen.view.mem_wal
        recorded = state.index_catchup.get(name)
        run.plan = plan_index(seen.table, index, recorded, state.merged, asked, self.limits)
        run.check_refusal()
        gained = index.covered - index_before.covered
        if run.error is None and run.committed and done.indexes and not gained:
            text = f"Lance committed, but {run.plan.uncovered_rows:,} rows are still not covered"
            run.count_fault(Unsupported("MW-X02", f"index {name!r}: {text}"), self.limits)
            return True
        return not run.committed

    def _act(self, seen: IndexState, todo: Sequence[Run]) -> None:
        """Do one round: index where there is anything to index, else record progress.

        Indexing also records progress for every index with full coverage. So the commit that only
        records progress waits until there is nothing to index, and is made once for all indexes.
        Raises Unsupported where a commit would drop what a newer Lance has stored.
        """
        check_details(seen.view)
        work = [run for run in todo if run.plan.indexes]
        if not work:
            record = partial(self.table.record, todo[0].plan.name)
            self._attempt(todo[0], partial(self._commit, record, "record", "recorded"))
            for run in todo[1:]:
                run.rounds += 1
                run.committed = todo[0].committed
            return
        built = self._build_all(seen, work)
        appends: dict[int | None, list[Run]] = {}
        for run in work:
            if run.plan.method is Method.APPEND:
                appends.setdefault(run.plan.segments_to_merge, []).append(run)
        together = [runs for runs in appends.values() if len(runs) > 1 and self._append(runs)]
        done = [run for runs in together for run in runs]
        for run in work:
            if run not in done:
                self._attempt(run, partial(self._index, seen, run.plan, built))

    def _append(self, runs: Sequence[Run]) -> bool:
        """Extend several indexes in one commit, and so one version; False where each has to try.

        Lance can do so for indexes that merge as many segments.
        """
        started = self.clock.monotonic_seconds()
        names = [run.plan.name for run in runs]
        append = partial(self.table.append, names, runs[0].plan.segments_to_merge)
        try:
            self._commit(append, "append", "append_done")
        except (LostRace, StoreUnavailable, Unsupported, Corruption, Missing):
            return False
        for run in runs:
            run.begin_round()
            run.committed = True
            run.seconds += (self.clock.monotonic_seconds() - started) / len(runs)
        return True

    def _build_all(self, seen: IndexState, work: Sequence[Run]) -> Mapping[str, Sequence[Built]]:
        """Build the segments of every index of the round at once."""
        tasks = [
            SegmentTask(
                version=seen.table.version,
                index=run.plan.name,
                kind=run.plan.kind,
                fragments=group,
            )
            for run in work
            for group in run.plan.groups
        ]
        if not tasks:
            return {}
        self.steps("build")
        started = self.clock.monotonic_seconds()
        built: dict[str, list[Built]] = {}
        for task, result in zip(tasks, self.build(tasks), strict=True):
            built.setdefault(task.index, []).append(result)
        self.steps("built")
        seconds = self.clock.monotonic_seconds() - started
        for run in work:
            run.seconds += seconds * len(run.plan.groups) / len(tasks)
        return built

    def _attempt(self, run: Run, act: Callable[[], None]) -> None:
        """Act for one index; lost races and faults are retried later, other errors end its run.

        Raises LeaseHeld, which ends the run of all indexes.
        """
        started = self.clock.monotonic_seconds()
        run.begin_round()
        try:
            act()
            run.committed = True
            run.retrained |= run.plan.method is Method.RETRAIN
        except LeaseHeld:
            raise
        except LostRace:
            run.conflicts += 1
        except StoreUnavailable as fault:
            run.count_fault(fault, self.limits)
        except MemWalError as error:
            run.error = error
        run.seconds += self.clock.monotonic_seconds() - started

    def _index(
        self, seen: IndexState, plan: IndexPlan, built: Mapping[str, Sequence[Built]]
    ) -> None:
        if plan.groups:
            segments = []
            for result in built[plan.name]:
                if isinstance(result, MemWalError):
                    raise result
                segments.append(result)
            commit = partial(self.table.commit_segments, seen.table.version, plan.name, segments)
            self._commit(commit, "commit_segments", "committed_segments")
            return
        commit = partial(self.table.append, [plan.name], plan.segments_to_merge)
        if plan.method is Method.RETRAIN:
            commit = partial(self.table.retrain, plan.name, plan.segments_to_merge)
        self._commit(commit, plan.method.value, f"{plan.method.value}_done")

    def _commit(self, commit: Callable[[], None], before: str, after: str) -> None:
        """Commit if the lease is still ours; `before` and `after` name the steps around it."""
        self.before_commit()
        self.steps(before)
        commit()
        self.steps(after)


def _report_plan(seen: IndexState, plan: IndexPlan) -> IndexCatchupReport:
    """The report of one index in a dry run; a run would record what is merged now."""
    error = None if plan.refusal is None else Unsupported("MW-X01", plan.refusal)
    merged, recorded = seen.view.mem_wal.merged, seen.recorded(plan.name)
    return IndexCatchupReport(
        name=plan.name,
        **describe_error(error, DONE if plan.has_work else NOTHING_TO_DO),
        kind=plan.kind,
        method=plan.method,
        rows=plan.rows,
        unindexed_rows_before=plan.uncovered_rows,
        unindexed_rows_after=plan.uncovered_rows if error else 0,
        caught_up_before=_sorted(recorded),
        caught_up=_sorted(merged if plan.has_work else recorded),
        reason=plan.reason,
    )


def _report(run: Run, first: IndexState, last: IndexState, goal: Goal) -> IndexCatchupReport:
    """The report of one index: what the table says of it now, compared with the start."""
    name = run.plan.name
    reached = goal.is_reached(last, name)
    error = run.error if not reached or run.owes_retrain else None
    if not reached and error is None:
        error = LostRace(f"index {name!r}: other commits undid what was recorded; run again")
    index, recorded = last.table.index(name), last.recorded(name)
    changed = (index, recorded) != (first.table.index(name), first.recorded(name))
    # The commit of another index may have recorded this one without a round of its own.
    did = run.had_work and (changed or run.committed)
    described = describe_error(error, DONE if did else NOTHING_TO_DO)
    if error is not None and run.rounds and _has_advanced(first, last, name):
        described["outcome"] = PARTIAL
    return IndexCatchupReport(
        name=name,
        **described,
        kind=run.plan.kind,
        method=run.method,
        rows=run.rows,
        unindexed_rows_before=first.uncovered_rows(name) or 0,
        unindexed_rows_after=last.uncovered_rows(name),
        caught_up_before=_sorted(first.recorded(name)),
        caught_up=_sorted(recorded),
        seconds=round(run.seconds, 3),
        reason=run.reason,
        conflicts=run.conflicts,
    )


def _has_advanced(first: IndexState, last: IndexState, name: str) -> bool:
    """Whether the index covers more fragments, or is behind for fewer shards, than at the start."""
    before, after = first.table.index(name), last.table.index(name)
    if before is None or after is None:
        return False
    merged = first.view.mem_wal.merged
    late_before, late = (len(find_behind(seen.recorded(name), merged)) for seen in (first, last))
    return bool(after.covered - before.covered) or late < late_before


def _sorted(progress: Progress) -> dict[str, int]:
    return {str(shard): generation for shard, generation in sorted(progress.items())}
