"""Rewrites a table's small fragments as fewer, and puts back what that takes from the indexes.

Compaction erases `index_catchup` on pylance 14, and leaves fragments that zone maps and bloom
filters don't cover. Index catch-up mends both: it runs before, so that fragments that differ only
in what indexes cover can be put together, and after. A run that dies in between leaves entries
missing; the next run of either job sees that as work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwal.errors import LeaseHeld, LostRace, MemWalError, StoreUnavailable
from memwal.jobs.compaction.plan import (
    CompactionLimits,
    CompactionPlan,
    CompactionTask,
    TableFragments,
    choose_tasks,
)
from memwal.jobs.index_catchup.apply import TableCatchup, no_steps
from memwal.jobs.index_catchup.ports import CompactionTable, RewrittenFragments
from memwal.model import TableView
from memwal.ports import Clock, Steps, Views

Rewritten = RewrittenFragments | MemWalError
Rewrite = Callable[[Sequence[CompactionTask]], Sequence[Rewritten]]
"""Runs tasks side by side; results in the tasks' order, an error in place of fragments."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCompaction:
    """What happened to a table's fragments. `catchup` is the index catch-up that followed."""

    outcome: str
    reason: str
    before: TableFragments
    after: TableFragments
    tasks: int = 0
    tasks_failed: int = 0
    tasks_left: int = 0
    commits: int = 0
    conflicts: int = 0
    file_bytes: int = 0
    catchup: TableCatchup | None = None
    seconds: float = 0.0
    error: str | None = None
    exit_code: int = 0


@dataclass(kw_only=True, slots=True)
class _Run:
    """The running totals of one table."""

    plan: CompactionPlan | None = None
    tasks: int = 0
    commits: int = 0
    conflicts: int = 0
    failed: int = 0
    error: MemWalError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Compactor:
    """Compacts one table. Holds ports and limits; has no state of its own."""

    views: Views
    table: CompactionTable
    clock: Clock
    rewrite: Rewrite
    catch_up: Callable[[], TableCatchup]
    limits: CompactionLimits = CompactionLimits()
    steps: Steps = no_steps
    before_commit: Callable[[], None] = lambda: None

    def foresee(self, view: TableView) -> tuple[TableFragments, CompactionPlan]:
        """The fragments, and what a run would rewrite of them; changes nothing."""
        fragments = self.table.fragments(view.version)
        tasks = self.table.plan(view.version, self.limits)
        return fragments, choose_tasks(fragments, tasks, self.limits)

    def run(self) -> TableCompaction:
        """Catch up, compact, catch up. Raises what concerns the whole table."""
        started = self.clock.monotonic_seconds()
        first = self.table.fragments(self.views.table().version)
        catchup = self.catch_up()
        run = _Run()
        self._compact(run)
        if run.commits:
            self.steps("restore")
            catchup = self.catch_up()
        plan = run.plan
        return TableCompaction(
            outcome=_outcome(run),
            reason="" if plan is None else plan.reason,
            before=first,
            after=self.table.fragments(self.views.table().version),
            tasks=run.tasks,
            tasks_failed=run.failed,
            tasks_left=0 if plan is None else plan.left_out,
            commits=run.commits,
            conflicts=run.conflicts,
            file_bytes=0 if plan is None else plan.file_bytes,
            catchup=catchup,
            seconds=self.clock.monotonic_seconds() - started,
            error=None if run.error is None else str(run.error),
            exit_code=0 if run.error is None else run.error.exit_code,
        )

    def _compact(self, run: _Run) -> None:
        """One commit, from a new plan each time that a merge got there first."""
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            _, run.plan = self.foresee(self.views.table())
            if not run.plan.tasks:
                return
            rewritten = self._rewrite(run, run.plan)
            if not rewritten:
                return
            try:
                self._commit(rewritten)
                run.commits += 1
                return
            except LeaseHeld:
                raise
            except (LostRace, StoreUnavailable) as error:
                run.conflicts += 1
                if self._landed(rewritten):
                    run.commits += 1
                    return
                run.error = error
            if not self._wait(attempt, deadline):
                break
        if isinstance(run.error, LostRace):
            run.error = LostRace(
                f"lost the race for the compaction commit {run.conflicts} times; run again when "
                f"the table is quieter ({run.error})"
            )

    def _rewrite(self, run: _Run, plan: CompactionPlan) -> list[RewrittenFragments]:
        """Run the tasks. Those that fail are left for the next run; the others are committed."""
        self.steps("rewrite")
        results = self.rewrite(plan.tasks)
        done = [r for r in results if isinstance(r, RewrittenFragments)]
        errors = [r for r in results if isinstance(r, MemWalError)]
        run.tasks, run.failed = len(done), len(errors)
        run.error = errors[0] if errors else None
        return done

    def _commit(self, rewritten: Sequence[RewrittenFragments]) -> None:
        self.before_commit()
        self.steps("commit")
        self.table.commit(rewritten, self.limits)
        self.steps("committed")

    def _landed(self, rewritten: Sequence[RewrittenFragments]) -> bool:
        """Whether a commit whose reply was lost is in the table: its old fragments are all gone.

        A commit is whole, so one of them is enough to tell; a merge can't take all of a task.
        """
        there = self.table.fragments(self.views.table().version).fragment_ids
        return not any(there.intersection(r.fragment_ids) for r in rewritten)

    def _wait(self, attempt: int, deadline: float) -> bool:
        longest = min(self.limits.conflict_wait_seconds_max, 0.05 * 2.0 ** min(attempt, 10))
        wait = self.clock.random() * longest
        if self.clock.monotonic_seconds() + wait > deadline:
            return False
        self.clock.sleep(wait)
        return True


def _outcome(run: _Run) -> str:
    if run.error is None:
        return "done" if run.commits else "nothing_to_do"
    return "partial" if run.commits else run.error.outcome
