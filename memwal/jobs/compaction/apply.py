"""Rewrites a table's small fragments as fewer, and restores what that takes from the indexes.

Compaction erases `index_catchup` on pylance 14, and leaves fragments that zone maps and bloom
filters don't cover. Index catch-up repairs both, so it runs after compaction. It also runs before,
so that fragments that differ only in index coverage can be combined. A run that dies in between
leaves entries missing; the next run of either job sees that as work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from memwal.errors import LeaseHeld, LostRace, MemWalError, StoreUnavailable
from memwal.format.unknown import check_details
from memwal.jobs.compaction.plan import (
    CompactionLimits,
    CompactionPlan,
    CompactionTask,
    TableFragments,
    choose_tasks,
)
from memwal.jobs.compaction.report import CompactionTableReport
from memwal.jobs.index_catchup.report import IndexCatchupReport, join_index_errors
from memwal.model import TableView
from memwal.ports import Clock, Steps, Views, back_off, no_steps
from memwal.report import DONE, NOTHING_TO_DO, PARTIAL, Part, sum_up


@dataclass(frozen=True, kw_only=True, slots=True)
class RewrittenFragments:
    """What one task wrote, not yet committed. `data` is Lance's own description."""

    fragment_ids: tuple[int, ...]
    data: str = field(repr=False)


class CompactionTable(Protocol):
    """The base table, as compaction needs it."""

    def fragments(self, version: int) -> TableFragments:
        """The fragments, files and rows of a version."""
        ...

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        """What Lance would rewrite in that version, as independent tasks."""
        ...

    def commit(self, rewritten: Sequence[RewrittenFragments], limits: CompactionLimits) -> None:
        """Commit rewritten fragments.

        Raises LostRace on a conflict, Unsupported for what Lance can't do, and StoreUnavailable for
        an error that leaves open whether the commit has landed.
        """
        ...


Rewritten = RewrittenFragments | MemWalError
Rewrite = Callable[[Sequence[CompactionTask]], Sequence[Rewritten]]
"""Runs tasks side by side; the results are in the tasks' order, with errors for failed tasks."""
Indexes = Sequence[IndexCatchupReport]


@dataclass(kw_only=True, slots=True)
class _Run:
    """The running totals of one table. `indexes` is the report of the last catch-up."""

    before: TableFragments
    plan: CompactionPlan
    indexes: Indexes
    tasks: int = 0
    rewritten: tuple[int, ...] = ()
    commits: int = 0
    conflicts: int = 0
    failed: int = 0
    seconds: float = 0.0
    error: MemWalError | None = None

    @property
    def outcome(self) -> str:
        if self.error is None:
            return DONE if self.commits else NOTHING_TO_DO
        return PARTIAL if self.commits else self.error.outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Compactor:
    """Compacts one table. Holds ports and limits; has no state of its own."""

    name: str
    """The table's name in the report."""
    views: Views
    table: CompactionTable
    clock: Clock
    rewrite: Rewrite
    foresee_indexes: Callable[[TableView], Indexes]
    """What index catch-up would do."""
    catch_up: Callable[[], Indexes]
    """Index catch-up of the table, under the lease that this run holds."""
    limits: CompactionLimits = CompactionLimits()
    steps: Steps = no_steps
    take_lease: Callable[[], None] = lambda: None
    """Called once there is something to do; raises LeaseHeld."""
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit; raises when the run has lost its lease."""

    def run(self, view: TableView, *, dry_run: bool = False) -> CompactionTableReport:
        """Catch up, compact and catch up under the lease, if `view` shows something to do.

        Otherwise, and in a dry run, it only reports. Raises errors of the whole table.
        """
        fragments, plan = self._foresee(view)
        run = _Run(before=fragments, plan=plan, indexes=self.foresee_indexes(view))
        # An index that is behind is work too: a killed run may have left it so, and Lance does not
        # combine fragments that differ in index coverage.
        behind = any(i.outcome == DONE for i in run.indexes)
        if dry_run or not (plan.tasks or behind):
            run.tasks = len(plan.tasks)
            outcome = DONE if plan.tasks else NOTHING_TO_DO
            return self._report(view, run, None if plan.tasks else fragments, outcome)
        self.take_lease()
        started = self.clock.monotonic_seconds()
        # The plan made without the lease may be out of date, so everything is read again.
        run.before = self._fragments()
        run.indexes = self.catch_up()
        self._compact(run)
        if run.commits:
            self.steps("restore")
            run.indexes = self.catch_up()
        after = self._fragments()
        run.seconds = self.clock.monotonic_seconds() - started
        return self._report(view, run, after, run.outcome)

    def _foresee(self, view: TableView) -> tuple[TableFragments, CompactionPlan]:
        """The fragments, and what a run would rewrite of them."""
        fragments = self.table.fragments(view.version)
        tasks = self.table.plan(view.version, self.limits)
        return fragments, choose_tasks(fragments, tasks, self.limits)

    def _fragments(self) -> TableFragments:
        """The fragments of the latest version."""
        return self.table.fragments(self.views.table().version)

    def _compact(self, run: _Run) -> None:
        """Make one commit, with a new plan for each retry after a lost race."""
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            view = self.views.table()
            check_details(view)
            _, run.plan = self._foresee(view)
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
                if self._has_landed(rewritten):
                    run.commits += 1
                    return
                run.error = error
            wait_max = self.limits.conflict_wait_seconds_max
            if not back_off(self.clock, attempt, wait_max, deadline):
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
        run.rewritten = tuple(sorted(i for r in done for i in r.fragment_ids))
        run.error = errors[0] if errors else None
        return done

    def _commit(self, rewritten: Sequence[RewrittenFragments]) -> None:
        self.before_commit()
        self.steps("commit")
        self.table.commit(rewritten, self.limits)
        self.steps("committed")

    def _has_landed(self, rewritten: Sequence[RewrittenFragments]) -> bool:
        """Whether a commit whose reply was lost has landed: then its old fragments are all gone.

        A commit lands as a whole, and a merge can't remove all fragments of a task.
        """
        there = self._fragments().fragment_ids
        return not any(there.intersection(r.fragment_ids) for r in rewritten)

    def _report(
        self, view: TableView, run: _Run, after: TableFragments | None, outcome: str
    ) -> CompactionTableReport:
        """The report; what is there afterwards is not known of a dry run that would rewrite."""
        error = None if run.error is None else str(run.error)
        code = 0 if run.error is None else run.error.exit_code
        own = Part(outcome=outcome, error=error, exit_code=code)
        outcome, code = sum_up((own, *run.indexes))
        return CompactionTableReport(
            table=self.name,
            outcome=outcome,
            exit_code=code,
            error="; ".join(e for e in (error, join_index_errors(run.indexes)) if e) or None,
            version_before=view.version,
            version_after=view.version if after is None else after.version,
            columns=view.describe_columns(),
            fragments_before=run.before.fragments,
            fragments_after=None if after is None else after.fragments,
            files_before=run.before.files,
            files_after=None if after is None else after.files,
            rows_before=run.before.rows,
            rows_after=None if after is None else after.rows,
            deleted_rows_before=run.before.deleted_rows,
            deleted_rows_after=None if after is None else after.deleted_rows,
            fragments_rewritten=run.rewritten if run.commits else (),
            tasks=run.tasks,
            tasks_failed=run.failed,
            tasks_left=run.plan.left_out,
            commits=run.commits,
            conflicts=run.conflicts,
            bytes_rewritten=run.plan.file_bytes,
            seconds=round(run.seconds, 3),
            reason=run.plan.reason,
            indexes=tuple(run.indexes),
            warnings=view.warnings,
        )
