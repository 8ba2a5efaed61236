"""Rewrites a table's small fragments as fewer, and restores what that takes from the indexes.

Where the table's rows expire, those that have are deleted first, if that makes a fragment worth
rewriting. They are rows of the base: a row of a generation that renews one of them wins with and
without it. The commit is made against the version whose rows were judged. If a merge replaced one
of them meanwhile, it fails, and rows are judged anew, by the same cut. Once something has
landed, an error ends the run with a report of that.

Compaction erases `index_catchup` on pylance 14, and leaves fragments that zone maps and bloom
filters don't cover. Index catch-up repairs both, so it runs after compaction. It also runs before,
so that fragments that differ only in index coverage can be combined; but not where an index lacks
more rows than that is worth, as each row that it has then costs a remapping. A run that dies in
between leaves entries missing; the next run of either job sees that as work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from memwal.errors import LeaseHeld, LostRace, MemWalError, StoreUnavailable
from memwal.format.unknown import check_details
from memwal.jobs.compaction.plan import (
    AgedFragment,
    CompactionLimits,
    CompactionPlan,
    CompactionTableReport,
    CompactionTask,
    TableFragments,
    choose_tasks,
    is_worth_purging,
    name_purged,
)
from memwal.jobs.index_catchup.plan import IndexCatchupReport
from memwal.model import TableView
from memwal.ports import Clock, Steps, Views, back_off, no_steps
from memwal.report import (
    DONE,
    NOTHING_TO_DO,
    PARTIAL,
    AuditItem,
    Part,
    describe_error,
    join_errors,
    sum_up,
)
from memwal.rows.expire import Horizon, find_horizon


@dataclass(frozen=True, kw_only=True, slots=True)
class RewrittenFragments:
    """What one task wrote, not yet committed. `data` is Lance's own description."""

    fragment_ids: tuple[int, ...]
    file_bytes: int
    data: str = field(repr=False)


class CompactionTable(Protocol):
    """The base table, as compaction needs it."""

    def fragments(self, version: int) -> TableFragments:
        """The fragments, files and rows of a version."""
        ...

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        """What Lance would rewrite in that version, as independent tasks."""
        ...

    def find_aged(self, version: int, horizon: Horizon) -> Sequence[AgedFragment]:
        """The fragments of a version with rows that have expired."""
        ...

    def purge(self, version: int, horizon: Horizon) -> int:
        """Delete a version's expired rows in one commit; returns how many.

        Raises LostRace if any of them was changed or deleted since, and as `commit` does.
        """
        ...

    def commit(self, rewritten: Sequence[RewrittenFragments]) -> None:
        """Commit rewritten fragments.

        Raises LostRace on a conflict, Unsupported for what Lance can't do, and StoreUnavailable for
        an error that leaves open whether the commit has landed.
        """
        ...

    def has_landed(self, rewritten: Sequence[RewrittenFragments]) -> bool:
        """Whether the latest version has what these tasks wrote, by the names of the files."""
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
    reason: str
    tasks: int = 0
    bytes: int = 0
    rewritten: tuple[int, ...] = ()
    commits: int = 0
    conflicts: int = 0
    horizon: Horizon | None = None
    expired: int | None = None
    purged: int = 0
    failed: int = 0
    seconds: float = 0.0
    error: MemWalError | None = None

    @property
    def outcome(self) -> str:
        if self.error is None:
            return DONE if self.commits or self.purged else NOTHING_TO_DO
        return PARTIAL if self.commits or self.purged else self.error.outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Compactor:
    """Compacts one table. Holds ports and limits; has no state of its own."""

    name: str
    """The table's name in the report."""
    views: Views
    table: CompactionTable
    clock: Clock
    read_store_time: Callable[[str], int]
    """The store's own time, read off a file that is written under this name for the purpose."""
    rewrite: Rewrite
    plan_indexes: Callable[[TableView], Indexes]
    """What index catch-up would do."""
    catch_up: Callable[[], Indexes]
    """Index catch-up of the table, under the lease that this run holds."""
    limits: CompactionLimits = CompactionLimits()
    is_advised: bool = True
    """Whether small fragments are reason enough; rows that expired are, wherever it pays."""
    steps: Steps = no_steps
    take_lease: Callable[[], None] = lambda: None
    """Called once there is something to do; raises LeaseHeld."""
    before_commit: Callable[[], None] = lambda: None
    """Called before each commit; raises when the run has lost its lease."""
    intend: Callable[[AuditItem], None] = lambda item: None
    """Called before rows are purged; raises where it can't be written down, and they stay then."""

    def run(self, view: TableView, *, dry_run: bool = False) -> CompactionTableReport:
        """Catch up, compact and catch up under the lease, if `view` shows something to do.

        Otherwise, and in a dry run, it only reports. Raises errors of the whole table.
        """
        fragments, plan = self._plan(view)
        indexes = self.plan_indexes(view)
        run = _Run(before=fragments, plan=plan, indexes=indexes, reason=plan.reason)
        # An index that is behind is work too: a killed run may have left it so, and Lance does not
        # combine fragments that differ in index coverage.
        behind = self.is_advised and any(i.outcome == DONE for i in run.indexes)
        # By this host's clock: to ask the store for its time is a write, and deletes nothing yet.
        due = self._judge_age(run, view, self.clock.now_nanos())
        works = bool((self.is_advised and plan.tasks) or due)
        if dry_run or not (works or behind):
            run.purged = due
            if works:
                run.tasks, run.bytes = len(plan.tasks), plan.file_bytes
            outcome = DONE if works else NOTHING_TO_DO
            return self._report(view, run, None if works else fragments, outcome)
        self.take_lease()
        started = self.clock.monotonic_seconds()
        after: TableFragments | None = None
        try:
            self._work(run)
            after = self._fragments()
        except MemWalError as error:
            if not (run.commits or run.purged):
                raise
            run.error = error
            with suppress(MemWalError):
                after = self._fragments()
        run.seconds = self.clock.monotonic_seconds() - started
        return self._report(view, run, after, run.outcome)

    def _work(self, run: _Run) -> None:
        # The plan made without the lease may be out of date, so everything is read again.
        run.before = self._fragments()
        if run.horizon is not None:
            self._purge(run)
        comes_first = self._catches_up_first(run.indexes)
        if comes_first:
            run.indexes = self.catch_up()
        self._compact(run)
        if run.commits or not comes_first:
            self.steps("restore")
            run.indexes = self.catch_up()

    def _catches_up_first(self, indexes: Indexes) -> bool:
        """Whether no index lacks more than a sixteenth of a full fragment's rows."""
        lacking = max((index.unindexed_rows_before for index in indexes), default=0)
        return lacking < self.limits.target_rows_per_fragment / 16

    def _plan(self, view: TableView) -> tuple[TableFragments, CompactionPlan]:
        """The fragments, and what a run would rewrite of them."""
        fragments = self.table.fragments(view.version)
        tasks = self.table.plan(view.version, self.limits)
        return fragments, choose_tasks(fragments, tasks, self.limits)

    def _fragments(self) -> TableFragments:
        """The fragments of the latest version."""
        return self.table.fragments(self.views.table().version)

    def _judge_age(self, run: _Run, view: TableView, cut_nanos: int) -> int:
        """Find what has expired at the cut; returns how much of it is to be deleted."""
        run.horizon, run.expired = find_horizon(view, cut_nanos), None
        if run.horizon is None:
            return 0
        aged = self.table.find_aged(view.version, run.horizon)
        run.expired = sum(fragment.expired_rows for fragment in aged)
        return run.expired if is_worth_purging(aged, self.limits) else 0

    def _purge(self, run: _Run) -> None:
        """Delete what has expired by the store's time, which is asked for once.

        Raises LostRace, StoreUnavailable when no attempt is known to have landed.
        """
        cut_nanos = self.read_store_time(self.clock.new_id())
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        unclear = 0
        for attempt in count(1):
            view = self.views.table()
            due = self._judge_age(run, view, cut_nanos)
            if run.horizon is None or not due:
                run.purged = 0 if run.expired else unclear
                return
            self.intend(name_purged(due, run.horizon.before.isoformat()))
            self.before_commit()
            self.steps("purge")
            try:
                run.purged = self.table.purge(view.version, run.horizon)
                return
            except LeaseHeld:
                raise
            except (LostRace, StoreUnavailable) as error:
                run.conflicts += 1
                # The commit may have landed, and only the reply was lost.
                unclear = due if isinstance(error, StoreUnavailable) else unclear
                wait_max = self.limits.conflict_wait_seconds_max
                is_last = attempt >= self.limits.conflict_attempts_max
                if is_last or not back_off(self.clock, attempt, wait_max, deadline):
                    raise

    def _compact(self, run: _Run) -> None:
        """Make one commit, with a new plan for each retry after a lost race.

        Of several tasks that lost it, those land together whose fragments nobody has changed.
        """
        deadline = self.clock.monotonic_seconds() + self.limits.conflict_seconds_max
        for attempt in range(1, self.limits.conflict_attempts_max + 1):
            view = self.views.table()
            check_details(view)
            before, run.plan = self._plan(view)
            if not run.plan.tasks:
                run.error = None
                return
            rewritten = self._rewrite(run, run.plan)
            if not rewritten:
                return
            lost = self._land(run, rewritten)
            if lost is None:
                return
            if isinstance(lost, LostRace):
                changed = {f.fragment_id for f in before.each - self._fragments().each}
                kept = [r for r in rewritten if changed.isdisjoint(r.fragment_ids)]
                # With all of them as they were it was something else, such as a new index.
                if 0 < len(kept) < len(rewritten):
                    self._land(run, kept)
            run.error = lost
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
        run.failed = len(errors)
        run.error = errors[0] if errors else None
        return done

    def _land(self, run: _Run, rewritten: Sequence[RewrittenFragments]) -> MemWalError | None:
        """Commit tasks together; returns the error if they are not in the table then."""
        self.before_commit()
        self.steps("commit")
        try:
            self.table.commit(rewritten)
        except LeaseHeld:
            raise
        except (LostRace, StoreUnavailable) as error:
            run.conflicts += 1
            if not self.table.has_landed(rewritten):
                return error
        run.commits += 1
        run.tasks += len(rewritten)
        run.bytes += sum(r.file_bytes for r in rewritten)
        ids = (i for r in rewritten for i in r.fragment_ids)
        run.rewritten = tuple(sorted({*run.rewritten, *ids}))
        self.steps("committed")
        return None

    def _report(
        self, view: TableView, run: _Run, after: TableFragments | None, outcome: str
    ) -> CompactionTableReport:
        """The report; what is there afterwards is not known of a dry run that would rewrite."""
        own = Part(**{**describe_error(run.error), "outcome": outcome})
        outcome, code = sum_up((own, *run.indexes))
        behind = join_errors({index.name: index.error for index in run.indexes})
        return CompactionTableReport(
            table=self.name,
            outcome=outcome,
            exit_code=code,
            error="; ".join(e for e in (own.error, behind) if e) or None,
            version_before=view.version,
            version_after=after.version if after else None if run.error else view.version,
            columns=view.describe_columns(),
            fragments_before=run.before.fragments,
            fragments_after=None if after is None else after.fragments,
            files_before=run.before.files,
            files_after=None if after is None else after.files,
            rows_before=run.before.rows,
            rows_after=None if after is None else after.rows,
            expired_before=None if run.horizon is None else run.horizon.before.isoformat(),
            expired_rows=run.expired,
            purged_rows=run.purged,
            deleted_rows_before=run.before.deleted_rows,
            deleted_rows_after=None if after is None else after.deleted_rows,
            fragments_rewritten=run.rewritten,
            tasks=run.tasks,
            tasks_failed=run.failed,
            tasks_left=run.plan.left_out,
            commits=run.commits,
            conflicts=run.conflicts,
            bytes_rewritten=run.bytes,
            seconds=round(run.seconds, 3),
            reason=run.reason,
            indexes=tuple(run.indexes),
            warnings=view.warnings,
        )
