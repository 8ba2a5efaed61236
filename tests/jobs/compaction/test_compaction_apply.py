"""Compaction against a table in memory: what surrounds the commit, and what comes of its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from memwal.errors import Corruption, LeaseHeld, LostRace, MemWalError, StoreUnavailable
from memwal.indexes import FragmentFacts
from memwal.jobs.compaction.apply import Compactor, RewrittenFragments
from memwal.jobs.compaction.plan import (
    AgedFragment,
    CompactionLimits,
    CompactionTableReport,
    CompactionTask,
    TableFragments,
)
from memwal.jobs.index_catchup.plan import IndexCatchupReport
from memwal.model import ColumnInfo, MemWalState, VersionManifest
from memwal.report import AuditItem
from memwal.rows.expire import EXPIRE_KEY, Horizon, make_expire
from memwal.testing import ManualClock

DAY = 86_400
STORE_NOW = 1_750_000_000 * 10**9


@dataclass
class FakeTable:
    """Fragments by id; the Views and the CompactionTable port in one. `log` is what was done."""

    ids: set[int] = field(default_factory=lambda: {1, 2, 3, 4})
    log: list[str] = field(default_factory=list)
    errors: list[MemWalError] = field(default_factory=list)
    lands: bool = False
    failing: frozenset[int] = frozenset()
    marks: frozenset[int] = frozenset()
    """Fragments of which somebody deletes a row while the first commit is made."""
    marked: frozenset[int] = frozenset()
    version: int = 1
    warnings: tuple[str, ...] = ()
    mem_wal: MemWalState = MemWalState(
        index_uuid="", created_at_millis=0, merged={}, index_catchup={}
    )

    manifest: VersionManifest = VersionManifest(version=1, timestamp_nanos=0, mem_wal=None)
    columns: tuple[ColumnInfo, ...] = (
        ColumnInfo(field_id=1, name="at", type_text="timestamp[us]", nullable=True),
    )
    policy_text: str | None = None
    rows: int = 200
    aged: list[AgedFragment] = field(default_factory=list)
    horizons: list[Horizon] = field(default_factory=list)

    def table(self) -> FakeTable:
        return self

    def describe_columns(self) -> dict[str, str]:
        return {"id": "int64", "at": "timestamp[us]"}

    def find_aged(self, version: int, horizon: Horizon) -> Sequence[AgedFragment]:
        self.horizons.append(horizon)
        return self.aged

    def purge(self, version: int, horizon: Horizon) -> int:
        self.horizons.append(horizon)
        error = self.errors.pop(0) if self.errors else None
        found = sum(fragment.expired_rows for fragment in self.aged)
        if error is None or self.lands:
            self.log.append("purge")
            self.aged = []
        if error is not None:
            raise error
        return found

    def fragments(self, version: int) -> TableFragments:
        each = (
            FragmentFacts(fragment_id=i, rows=1, deleted_rows=i in self.marked) for i in self.ids
        )
        return TableFragments(version=version, each=frozenset(each))

    def plan(self, version: int, limits: CompactionLimits) -> Sequence[CompactionTask]:
        pairs = [(1, 2), (3, 4)]
        return [
            CompactionTask(version=version, fragment_ids=pair, file_bytes=pair[0], data="")
            for pair in pairs
            if self.ids.issuperset(pair)
        ]

    def rewrite(
        self, tasks: Sequence[CompactionTask]
    ) -> Sequence[RewrittenFragments | MemWalError]:
        return [
            Corruption("MW-M01", "unreadable")
            if self.failing.intersection(task.fragment_ids)
            else RewrittenFragments(
                fragment_ids=task.fragment_ids, file_bytes=task.file_bytes, data=""
            )
            for task in tasks
        ]

    def commit(self, rewritten: Sequence[RewrittenFragments]) -> None:
        error = self.errors.pop(0) if self.errors else None
        self.marked |= self.marks
        if error is None or self.lands:
            self.log.append("commit")
            for done in rewritten:
                self.ids -= set(done.fragment_ids)
                self.ids.add(10 * done.fragment_ids[0])
        if error is not None:
            raise error

    def has_landed(self, rewritten: Sequence[RewrittenFragments]) -> bool:
        return any(10 * r.fragment_ids[0] in self.ids for r in rewritten)


def run(
    where: FakeTable,
    *,
    behind: bool = True,
    unindexed: int = 0,
    dry_run: bool = False,
    catches_up: MemWalError | None = None,
    **settings: Any,
) -> CompactionTableReport:
    def catch_up() -> list[IndexCatchupReport]:
        if catches_up is not None:
            raise catches_up
        where.log.append("catch up")
        return [index_report("nothing_to_do")]

    return Compactor(
        name="t",
        views=where,  # type: ignore[arg-type]
        table=where,  # type: ignore[arg-type]
        **{"clock": ManualClock(), "read_store_time": lambda name: STORE_NOW, **settings},
        rewrite=where.rewrite,
        plan_indexes=lambda view: [index_report("done" if behind else "nothing_to_do", unindexed)],
        catch_up=catch_up,
    ).run(where, dry_run=dry_run)  # type: ignore[arg-type]


def index_report(outcome: str, unindexed: int = 0) -> IndexCatchupReport:
    return IndexCatchupReport(
        name="one",
        outcome=outcome,
        method="none",
        unindexed_rows_before=unindexed,
        unindexed_rows_after=0,
    )


def test_indexes_are_caught_up_before_and_after() -> None:
    table = FakeTable()
    assert run(table).outcome == "done"
    assert table.log == ["catch up", "commit", "catch up"]
    assert table.ids == {10, 30}


@pytest.mark.parametrize(
    ("ids", "log"), [({1, 2}, ["commit", "catch up"]), ({1, 3}, ["catch up"])], ids=["some", "none"]
)
def test_rows_that_an_index_takes_in_afterwards_need_no_remapping(
    ids: set[int], log: list[str]
) -> None:
    limits = CompactionLimits(target_rows_per_fragment=1_600)
    table = FakeTable(ids=ids)
    run(table, unindexed=100, limits=limits)
    assert table.log == log
    table = FakeTable(ids=set(ids))
    run(table, unindexed=99, limits=limits)
    assert table.log[0] == "catch up"


def test_nothing_to_do_is_no_commit() -> None:
    table = FakeTable(ids={1, 3})
    assert run(table).outcome == "nothing_to_do"
    assert table.log == ["catch up"]


# ---- in which order


def test_the_lease_is_taken_first_and_everything_is_planned_again_then() -> None:
    table = FakeTable()

    def take_lease() -> None:
        table.log.append("lease")
        table.ids.difference_update({1, 2})  # by somebody who held it until now

    done = run(table, take_lease=take_lease)
    assert table.log == ["lease", "catch up", "commit", "catch up"]
    assert (done.fragments_before, done.tasks, table.ids) == (2, 1, {30})


def test_a_lease_that_is_held_leaves_the_table_as_it_is() -> None:
    table = FakeTable()

    def held() -> None:
        raise LeaseHeld("by somebody")

    with pytest.raises(LeaseHeld):
        run(table, take_lease=held)
    assert table.log == []


def test_an_index_that_is_behind_is_work_too() -> None:
    table = FakeTable(ids={1, 3})
    assert run(table, behind=False).outcome == "nothing_to_do"
    assert table.log == []
    run(table)
    assert table.log == ["catch up"]


def test_what_changes_nothing_takes_no_lease() -> None:
    table = FakeTable()
    lease = {"take_lease": lambda: table.log.append("lease")}
    foreseen = run(table, dry_run=True, **lease)
    assert (foreseen.outcome, foreseen.tasks, foreseen.commits) == ("done", 2, 0)
    table.ids = {1, 3}
    assert run(table, behind=False, **lease).outcome == "nothing_to_do"
    assert table.log == []


# ---- races and faults


def test_a_lost_race_is_planned_again() -> None:
    table = FakeTable(ids={1, 2}, errors=[LostRace("preempted")])
    done = run(table)
    assert (done.outcome, done.commits, done.conflicts) == ("done", 1, 1)


def test_of_several_tasks_those_land_whose_fragments_nobody_changed() -> None:
    table = FakeTable(errors=[LostRace("preempted")], marks=frozenset({1}))
    done = run(table, limits=CompactionLimits(conflict_attempts_max=1))
    assert (done.outcome, done.commits, done.conflicts) == ("partial", 1, 1)
    assert (done.fragments_rewritten, table.ids) == ((3, 4), {1, 2, 30})
    assert (done.tasks, done.bytes_rewritten) == (1, 3)
    table = FakeTable(errors=[LostRace("preempted")], marks=frozenset({1}))
    done = run(table)  # and the other in its turn
    assert (done.outcome, done.commits, done.conflicts) == ("done", 2, 1)
    assert (done.fragments_rewritten, table.ids) == ((1, 2, 3, 4), {10, 30})
    assert (done.tasks, done.bytes_rewritten) == (2, 4)
    assert "4 of 4 fragments" in str(done.reason)


def test_a_race_that_was_lost_to_an_index_is_planned_again() -> None:
    table = FakeTable(errors=[LostRace("preempted")])
    done = run(table)
    assert (done.commits, done.conflicts, table.ids) == (1, 1, {10, 30})


def test_races_without_end_are_given_up_by_number_and_by_time() -> None:
    limits = CompactionLimits(conflict_attempts_max=3)
    done = run(FakeTable(errors=[LostRace("preempted")] * 99), limits=limits)
    assert (done.outcome, done.exit_code, done.conflicts) == ("failed", 4, 3)
    table = FakeTable(errors=[LostRace("preempted")] * 99)
    done = run(table, limits=CompactionLimits(conflict_attempts_max=50, conflict_seconds_max=0.0))
    assert (done.exit_code, done.conflicts) == (4, 1)


def test_a_commit_whose_reply_was_lost_is_found_by_its_files() -> None:
    table = FakeTable(errors=[StoreUnavailable("no reply")], lands=True)
    done = run(table)
    assert (done.outcome, done.commits, done.conflicts) == ("done", 1, 1)
    assert table.log == ["catch up", "commit", "catch up"]


def test_fragments_that_went_for_another_reason_are_no_proof() -> None:
    """An upsert of all rows, or another compaction, takes them away; nothing was rewritten then."""
    table = FakeTable(errors=[StoreUnavailable("no reply")])

    def lose_all() -> None:
        table.ids.clear()

    done = run(table, before_commit=lose_all)
    assert (done.outcome, done.commits, done.tasks, done.bytes_rewritten) == (
        "nothing_to_do", 0, 0, 0,
    )  # fmt: skip


@pytest.mark.parametrize("at", ["committed", "restore"])
def test_what_has_landed_is_reported_whatever_comes_then(at: str) -> None:
    def steps(step: str) -> None:
        if step == at:
            raise StoreUnavailable("away")

    done = run(FakeTable(), steps=steps)
    assert (done.outcome, done.commits, done.fragments_after) == ("partial", 1, 2)
    assert [item.fragments for item in done.audited()] == [(1, 2, 3, 4)]
    purged = run(aging(FULL), catches_up=StoreUnavailable("away"))
    assert (purged.outcome, purged.purged_rows) == ("partial", 6)


def test_a_lost_lease_ends_it() -> None:
    table = FakeTable()

    def lost() -> None:
        raise LeaseHeld("superseded")

    with pytest.raises(LeaseHeld):
        run(table, before_commit=lost)
    assert table.log == ["catch up"]


def test_tasks_that_fail_are_left_and_the_others_are_committed() -> None:
    table = FakeTable(failing=frozenset({1}))
    done = run(table)
    assert (done.outcome, done.exit_code, done.error) == ("partial", 6, "unreadable (MW-M01)")
    assert (done.tasks, done.tasks_failed) == (1, 1)
    assert table.ids == {1, 2, 30}


# ---- rows that expire


def aging(*aged: AgedFragment, **how: Any) -> FakeTable:
    """A table whose rows expire after a day, where nothing else is to do."""
    config = {EXPIRE_KEY: make_expire("at", DAY).as_text()}
    manifest = VersionManifest(version=1, timestamp_nanos=0, mem_wal=None, config=config)
    return FakeTable(ids={1, 3}, manifest=manifest, aged=list(aged), **how)


FULL = AgedFragment(rows=100, deleted_rows=5, expired_rows=6)
FEW = AgedFragment(rows=100, deleted_rows=0, expired_rows=10)


def test_what_has_expired_is_purged_before_all_else() -> None:
    table = aging(FULL, FEW)
    done = run(table, behind=False)
    assert table.log == ["purge", "catch up"]
    assert (done.outcome, done.expired_rows, done.purged_rows) == ("done", 16, 16)
    assert done.expired_before == "2025-06-14T15:06:40+00:00"


def test_it_waits_until_a_fragment_is_worth_it() -> None:
    table = aging(FEW)
    done = run(table, behind=False)
    assert (done.outcome, done.expired_rows, done.purged_rows) == ("nothing_to_do", 10, 0)
    assert table.log == []
    limits = CompactionLimits(materialize_deletions_threshold=0.05)
    assert run(table, behind=False, limits=limits).purged_rows == 10


def test_a_dry_run_tells_what_would_be_purged() -> None:
    table = aging(FULL, FEW)
    done = run(table, behind=False, dry_run=True, read_store_time=None)
    assert (done.outcome, done.expired_rows, done.purged_rows) == ("done", 16, 16)
    assert table.log == []


@pytest.mark.parametrize("seconds", [-3 * DAY, 3 * DAY])
def test_time_is_the_store_s(seconds: int) -> None:
    """A host's clock that is wrong may look too early or too late; it deletes nothing."""
    clock = ManualClock(start_nanos=STORE_NOW + seconds * 10**9)
    table = aging(FULL)
    run(table, clock=clock)
    foreseen, *purged = (horizon.before.timestamp() for horizon in table.horizons)
    assert foreseen == STORE_NOW // 10**9 + seconds - DAY
    assert set(purged) == {STORE_NOW // 10**9 - DAY}


def test_the_cut_is_one_however_often_a_race_is_lost() -> None:
    times = iter(range(STORE_NOW, STORE_NOW + 10**15, 10**12))
    table = aging(FULL, errors=[LostRace("renewed")] * 2)
    done = run(table, behind=False, read_store_time=lambda name: next(times))
    assert (done.purged_rows, done.conflicts) == (6, 2)
    assert len({horizon.before for horizon in table.horizons[1:]}) == 1


def test_a_purge_that_never_lands_is_given_up() -> None:
    table = aging(FULL, errors=[LostRace("renewed")] * 99)
    with pytest.raises(LostRace):
        run(table, limits=CompactionLimits(conflict_attempts_max=3))
    assert len(table.errors) == 96
    assert table.log == []


def test_a_purge_whose_reply_was_lost_is_counted() -> None:
    table = aging(FULL, errors=[StoreUnavailable("no reply")], lands=True)
    done = run(table, behind=False)
    assert (done.outcome, done.purged_rows) == ("done", 6)
    assert table.log == ["purge", "catch up"]


def test_a_store_that_tells_no_time_purges_nothing() -> None:
    def away(name: str) -> int:
        raise StoreUnavailable("away")

    table = aging(FULL)
    with pytest.raises(StoreUnavailable):
        run(table, read_store_time=away)
    assert table.log == []


def test_a_lost_lease_purges_nothing() -> None:
    def lost() -> None:
        raise LeaseHeld("by somebody")

    table = aging(FULL)
    with pytest.raises(LeaseHeld):
        run(table, before_commit=lost)
    assert table.log == []


def test_the_trail_names_what_is_to_be_purged_and_what_was() -> None:
    def refuse(item: AuditItem) -> None:
        raise StoreUnavailable(f"{item.reason}, {item.done}")

    table = aging(FULL)
    with pytest.raises(StoreUnavailable, match=r"6 rows were older than 2025-06-14.*, None"):
        run(table, behind=False, intend=refuse)
    assert table.log == []
    (item,) = run(aging(FULL), behind=False).audited()
    assert (item.action, item.kind, item.reason) == (
        "delete",
        "expired_rows",
        "6 rows were older than 2025-06-14T15:06:40+00:00",
    )
