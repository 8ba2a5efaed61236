"""Compaction against a table in memory: what surrounds the commit, and what comes of its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memwal.errors import Corruption, LeaseHeld, LostRace, MemWalError, StoreUnavailable
from memwal.jobs.compaction.apply import Compactor, TableCompaction
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask, TableFragments
from memwal.jobs.index_catchup.ports import RewrittenFragments
from memwal.testing import ManualClock


@dataclass
class FakeTable:
    """Fragments by id; the Views and the CompactionTable port in one. `log` is what was done."""

    ids: set[int] = field(default_factory=lambda: {1, 2, 3, 4})
    log: list[str] = field(default_factory=list)
    errors: list[MemWalError] = field(default_factory=list)
    lands: bool = False
    failing: frozenset[int] = frozenset()
    version: int = 1

    def table(self) -> FakeTable:
        return self

    def fragments(self, version: int) -> TableFragments:
        return TableFragments(
            version=version, fragment_ids=frozenset(self.ids), files=0, rows=0, deleted_rows=0
        )

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        pairs = [(1, 2), (3, 4)]
        return [
            CompactionTask(version=version, fragment_ids=pair, rows=1, file_bytes=1, data="")
            for pair in pairs
            if self.ids.issuperset(pair)
        ]

    def rewrite(
        self, tasks: Sequence[CompactionTask]
    ) -> Sequence[RewrittenFragments | MemWalError]:
        return [
            Corruption("unreadable")
            if self.failing.intersection(task.fragment_ids)
            else RewrittenFragments(fragment_ids=task.fragment_ids, data="")
            for task in tasks
        ]

    def commit(self, rewritten: Sequence[RewrittenFragments], limits: CompactionLimits) -> None:
        error = self.errors.pop(0) if self.errors else None
        if error is None or self.lands:
            self.log.append("commit")
            for done in rewritten:
                self.ids -= set(done.fragment_ids)
                self.ids.add(10 * done.fragment_ids[0])
        if error is not None:
            raise error


def run(
    where: FakeTable, before_commit: Callable[[], None] = lambda: None, **settings: Any
) -> TableCompaction:
    def catch_up() -> Any:
        where.log.append("catch up")

    return Compactor(
        views=where,  # type: ignore[arg-type]
        table=where,  # type: ignore[arg-type]
        clock=ManualClock(),
        rewrite=where.rewrite,
        catch_up=catch_up,
        before_commit=before_commit,
        **settings,
    ).run()


def test_indexes_are_caught_up_before_and_after() -> None:
    table = FakeTable()
    assert run(table).outcome == "done"
    assert table.log == ["catch up", "commit", "catch up"]
    assert table.ids == {10, 30}


def test_nothing_to_do_is_no_commit() -> None:
    table = FakeTable(ids={1, 3})
    assert run(table).outcome == "nothing_to_do"
    assert table.log == ["catch up"]


def test_a_lost_race_is_planned_again() -> None:
    table = FakeTable(errors=[LostRace("preempted")])
    done = run(table)
    assert (done.outcome, done.commits, done.conflicts) == ("done", 1, 1)


def test_races_without_end_are_given_up_by_number_and_by_time() -> None:
    limits = CompactionLimits(conflict_attempts_max=3)
    done = run(FakeTable(errors=[LostRace("preempted")] * 99), limits=limits)
    assert (done.outcome, done.exit_code, done.conflicts) == ("failed", 4, 3)
    table = FakeTable(errors=[LostRace("preempted")] * 99)
    done = run(table, limits=CompactionLimits(conflict_attempts_max=50, conflict_seconds_max=0.0))
    assert (done.exit_code, done.conflicts) == (4, 1)


def test_a_commit_whose_reply_was_lost_is_found_by_its_fragments() -> None:
    table = FakeTable(errors=[StoreUnavailable("no reply")], lands=True)
    done = run(table)
    assert (done.outcome, done.commits, done.conflicts) == ("done", 1, 1)
    assert table.log == ["catch up", "commit", "catch up"]


def test_fragments_that_went_for_another_reason_are_no_proof() -> None:
    """A merge can take some fragments of one task; the commit that failed is made again."""
    table = FakeTable(errors=[StoreUnavailable("no reply")])

    def lose_some() -> None:
        table.ids.difference_update({1, 2} if table.errors else ())

    done = run(table, before_commit=lose_some)
    assert (done.outcome, done.commits) == ("done", 1)
    assert table.ids == {30}


def test_a_lost_lease_ends_it() -> None:
    table = FakeTable()

    def lost() -> None:
        raise LeaseHeld("superseded")

    try:
        run(table, before_commit=lost)
    except LeaseHeld:
        pass
    else:
        raise AssertionError("went on without the lease")
    assert table.log == ["catch up"]


def test_tasks_that_fail_are_left_and_the_others_are_committed() -> None:
    table = FakeTable(failing=frozenset({1}))
    done = run(table)
    assert (done.outcome, done.exit_code, done.tasks, done.tasks_failed) == ("partial", 8, 1, 1)
    assert table.ids == {1, 2, 30}
