"""Makes a table's indexes cover what merging added, until progress is recorded for each.

A run aims at the state it finds when it starts: every fragment there is, and the merge progress of
that version; so it ends under steady writes. It goes round: look, plan, act, look again. What
counts is what the table says afterwards, in the manifest of its latest version; a commit is no
proof. That is also all that a killed run leaves to the next one (invariant 8), and why a lost reply
does no harm.

Catch-up values are never written by hand: Lance takes claims that are too high, and
garbage collection believes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.errors import (
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    StoreUnavailable,
    Unsupported,
)
from memwal.jobs.index_catchup.plan import (
    COSTS,
    CatchupLimits,
    CatchupRequest,
    IndexCosts,
    IndexPlan,
    Method,
    Progress,
    TableIndexes,
    behind,
    check_names,
    plan_index,
    plan_indexes,
)
from memwal.jobs.index_catchup.ports import BuiltSegment, IndexTable, SegmentTask
from memwal.model import ShardId, TableView
from memwal.ports import Clock, Steps, Views


def no_steps(step: str) -> None:
    """The Steps port of a run that is not watched."""


Built = BuiltSegment | MemWalError
Build = Callable[[Sequence[SegmentTask]], Sequence[Built]]
"""Runs tasks side by side; the results come in the tasks' order, an error in place of a segment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexCatchup:
    """What happened to one index. `recorded` and `caught_up` are its entry before and after."""

    name: str
    outcome: str
    method: Method
    reason: str
    unindexed_rows_before: int
    unindexed_rows_after: int | None
    recorded: Progress
    caught_up: Progress
    rounds: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    error: str | None = None
    exit_code: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCatchup:
    """What happened to a table's indexes, and the version that the last look saw."""

    version: int
    indexes: tuple[IndexCatchup, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Look:
    """One version: its progress, as its own manifest has it, and what its indexes cover."""

    view: TableView
    table: TableIndexes

    def recorded(self, name: str) -> Progress:
        return self.view.mem_wal.index_catchup.get(name, {})


@dataclass(frozen=True, kw_only=True, slots=True)
class _Goal:
    """What has to be covered and recorded: the state at the start."""

    fragments: frozenset[int]
    merged: Progress

    def is_reached(self, look: _Look, name: str) -> bool:
        index = look.table.index(name)
        if index is None or behind(look.recorded(name), self.merged):
            return False
        left = {f.fragment_id for f in look.table.uncovered(index)}
        return not left & self.fragments


@dataclass(kw_only=True, slots=True)
class _Run:
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

    @property
    def owes_retrain(self) -> bool:
        """Whether a retrain was planned that has not landed: coverage alone does not tell."""
        return self.method is Method.RETRAIN and not self.retrained


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexCatchupJob:
    """Catches up the indexes of one table. Holds ports and limits; has no state of its own."""

    views: Views
    table: IndexTable
    clock: Clock
    build: Build
    limits: CatchupLimits = CatchupLimits()
    costs: IndexCosts = COSTS
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit; raises when the run has lost its lease."""

    def foresee(self, view: TableView, request: CatchupRequest) -> TableCatchup:
        """What a run would do, and what would be recorded; changes nothing."""
        look = _Look(view=view, table=self.table.facts(view.version))
        plans = self._plans(look, request)
        return TableCatchup(
            version=view.version, indexes=tuple(_foreseen(look, plan) for plan in plans)
        )

    def has_work(self, view: TableView, request: CatchupRequest) -> bool:
        """Whether a run would commit anything; if not, what it foresees is what there is."""
        plans = self._plans(_Look(view=view, table=self.table.facts(view.version)), request)
        return any(plan.has_work for plan in plans)

    def run(self, request: CatchupRequest) -> TableCatchup:
        """Catch up, index by index; the trouble of one does not stop the others.

        Raises what concerns the whole table: it can't be read, or the lease was lost.
        """
        first = self._look()
        goal = _Goal(
            fragments=frozenset(f.fragment_id for f in first.table.fragments),
            merged=dict(first.view.mem_wal.merged),
        )
        plans = self._plans(first, request)
        runs = {
            plan.name: _Run(plan=plan, had_work=plan.has_work, reason=plan.reason) for plan in plans
        }
        for run in runs.values():
            if run.plan.refusal is not None:
                run.error = Unsupported(run.plan.refusal)
        last = self._go_round(first, goal, runs, request)
        return TableCatchup(
            version=last.view.version,
            indexes=tuple(_result(run, first, last, goal) for run in runs.values()),
        )

    def _go_round(
        self, look: _Look, goal: _Goal, runs: Mapping[str, _Run], request: CatchupRequest
    ) -> _Look:
        """Act and look again until nothing is left to mend; returns the last look."""
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            todo = [run for run in runs.values() if run.error is None and run.plan.has_work]
            if not todo:
                return look
            self._act(look, todo)
            before, look = look, self._look()
            verdicts = [self._judge(run, before, look, goal, request) for run in todo]
            if any(verdicts) and not self._wait(attempt, deadline):
                break
        for run in runs.values():
            if run.error is None and run.plan.has_work:
                run.error = LostRace(
                    f"index {run.plan.name!r}: not caught up after {run.rounds} rounds, "
                    f"{run.conflicts} of them lost to other commits; run again when the table is "
                    "quieter"
                )
        return look

    def _look(self) -> _Look:
        view = self.views.table()
        return _Look(view=view, table=self.table.facts(view.version))

    def _plans(self, look: _Look, request: CatchupRequest) -> tuple[IndexPlan, ...]:
        check_names(look.table, request.names, look.view.uri)
        state = look.view.mem_wal
        return plan_indexes(
            look.table, state.index_catchup, state.merged, request, self.limits, self.costs
        )

    def _judge(
        self, run: _Run, before: _Look, look: _Look, goal: _Goal, request: CatchupRequest
    ) -> bool:
        """Set what the index still needs, now that the table was read again.

        Returns whether to pause before the next round. Indexing that Lance commits without covering
        anything would go on like that for ever, so it counts as a fault.
        """
        name, done = run.plan.name, run.plan
        run.plan = replace(done, method=Method.NONE, records=False)
        if run.error is not None or (goal.is_reached(look, name) and not run.owes_retrain):
            return False
        index, index_before = look.table.index(name), before.table.index(name)
        if index is None or index_before is None:
            run.error = Missing(f"index {name!r} was dropped meanwhile")
            return False
        # A retrain that was asked for is not asked for again once it has landed.
        asked = None if run.retrained and request.method is Method.RETRAIN else request.method
        state = look.view.mem_wal
        run.plan = plan_index(
            look.table,
            index,
            state.index_catchup.get(name),
            state.merged,
            asked,
            self.limits,
            self.costs,
        )
        if run.plan.refusal is not None:
            run.error = Unsupported(run.plan.refusal)
        elif run.committed and done.indexes and not index.covered - index_before.covered:
            run.faults += 1
            if run.faults >= self.limits.fault_attempts_max:
                run.error = Unsupported(
                    f"index {name!r}: Lance committed, but {run.plan.uncovered_rows:,} rows are "
                    "still not covered"
                )
            return True
        return not run.committed

    def _act(self, look: _Look, todo: Sequence[_Run]) -> None:
        """One round.

        Indexing records progress for every index with full coverage by the way, so the commit that
        does nothing else waits until there is nothing to index, and is made once.
        """
        work = [run for run in todo if run.plan.indexes]
        if not work:
            self._attempt(todo[0], partial(self._record, todo[0].plan.name))
            for run in todo[1:]:
                run.rounds += 1
                run.committed = todo[0].committed
            return
        built = self._build_all(look, work)
        for run in work:
            self._attempt(run, partial(self._index, look, run.plan, built))

    def _build_all(self, look: _Look, work: Sequence[_Run]) -> Mapping[str, Sequence[Built]]:
        """Build the segments of every index of the round at once."""
        tasks = [
            SegmentTask(
                version=look.table.version,
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

    def _attempt(self, run: _Run, act: Callable[[], None]) -> None:
        """Act for one index. A lost race or a fault is looked into afterwards, others end it."""
        started = self.clock.monotonic_seconds()
        run.rounds += 1
        run.committed = False
        if run.method is Method.NONE:
            run.method, run.reason = run.plan.method, run.plan.reason
        try:
            act()
            run.committed = True
            run.retrained |= run.plan.method is Method.RETRAIN
        except LeaseHeld:
            raise
        except LostRace:
            run.conflicts += 1
        except StoreUnavailable as fault:
            run.faults += 1
            if run.faults >= self.limits.fault_attempts_max:
                run.error = fault
        except MemWalError as error:
            run.error = error
        run.seconds += self.clock.monotonic_seconds() - started

    def _record(self, name: str) -> None:
        self.before_commit()
        self.steps("record")
        self.table.record(name)
        self.steps("recorded")

    def _index(self, look: _Look, plan: IndexPlan, built: Mapping[str, Sequence[Built]]) -> None:
        if plan.groups:
            segments = []
            for result in built[plan.name]:
                if isinstance(result, MemWalError):
                    raise result
                segments.append(result)
            self.before_commit()
            self.steps("commit_segments")
            self.table.commit_segments(look.table.version, plan.name, segments)
            self.steps("committed_segments")
            return
        self.before_commit()
        self.steps(plan.method.value)
        if plan.method is Method.RETRAIN:
            self.table.retrain(plan.name, plan.segments_to_merge)
        else:
            self.table.append(plan.name, plan.segments_to_merge)
        self.steps(f"{plan.method.value}_done")

    def _wait(self, attempt: int, deadline: float) -> bool:
        """Pause after a lost race; False when the deadline would pass."""
        longest = min(self.limits.conflict_wait_seconds_max, 0.05 * 2.0 ** min(attempt, 10))
        wait = self.clock.random() * longest
        if self.clock.monotonic_seconds() + wait > deadline:
            return False
        self.clock.sleep(wait)
        return True


def _foreseen(look: _Look, plan: IndexPlan) -> IndexCatchup:
    """One index of a dry run: what would be recorded is what is merged now."""
    recorded = dict(look.recorded(plan.name))
    error = None if plan.refusal is None else Unsupported(plan.refusal)
    otherwise = "done" if plan.has_work else "nothing_to_do"
    return IndexCatchup(
        name=plan.name,
        outcome=otherwise if error is None else error.outcome,
        method=plan.method,
        reason=plan.reason,
        unindexed_rows_before=plan.uncovered_rows,
        unindexed_rows_after=plan.uncovered_rows if error else 0,
        recorded=recorded,
        caught_up=dict(look.view.mem_wal.merged) if plan.has_work else recorded,
        error=None if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
    )


def _result(run: _Run, first: _Look, last: _Look, goal: _Goal) -> IndexCatchup:
    """What the table says of the index now, against what it said at the start."""
    name = run.plan.name
    index, index_before = last.table.index(name), first.table.index(name)
    reached = goal.is_reached(last, name)
    error = run.error if not reached or run.owes_retrain else None
    if not reached and error is None:
        error = LostRace(f"index {name!r}: other commits undid what was recorded; run again")
    changed = index != index_before or last.recorded(name) != first.recorded(name)
    if error is None:
        # An index that had no round of its own may have been recorded by another's commit.
        outcome = "done" if run.had_work and (changed or run.committed) else "nothing_to_do"
    elif run.rounds and _advanced(first, last, name):
        outcome = "partial"
    else:
        outcome = error.outcome
    return IndexCatchup(
        name=name,
        outcome=outcome,
        method=run.method,
        reason=run.reason,
        unindexed_rows_before=_uncovered_rows(first.table, name) or 0,
        unindexed_rows_after=_uncovered_rows(last.table, name),
        recorded=dict(first.recorded(name)),
        caught_up=dict(last.recorded(name)),
        rounds=run.rounds,
        conflicts=run.conflicts,
        seconds=run.seconds,
        error=None if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
    )


def _advanced(first: _Look, last: _Look, name: str) -> bool:
    """Whether the index covers or records more than at the start, though not all that it should."""
    before, after = first.table.index(name), last.table.index(name)
    if before is None or after is None:
        return False
    gained = after.covered - before.covered
    return bool(gained) or len(_behind(first, last, name)) < len(_behind(first, first, name))


def _behind(first: _Look, look: _Look, name: str) -> tuple[ShardId, ...]:
    return behind(look.recorded(name), first.view.mem_wal.merged)


def _uncovered_rows(table: TableIndexes, name: str) -> int | None:
    index = table.index(name)
    return None if index is None else sum(f.rows for f in table.uncovered(index))
