"""Index catch-up against a table in memory that follows Lance's rules, with trouble by script."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from memwal.errors import (
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    Refused,
    StoreUnavailable,
    Unsupported,
    Usage,
)
from memwal.indexes import FragmentFacts, IndexFacts, SegmentFacts, TableIndexes
from memwal.jobs.index_catchup.apply import Built, BuiltSegment, IndexCatchupJob, SegmentTask
from memwal.jobs.index_catchup.plan import CatchupLimits, Method
from memwal.jobs.index_catchup.request import CatchupRequest
from memwal.model import ShardId, TableView
from memwal.testing import ManualClock
from tests.support.views import make_state, make_view

A = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
B = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c12")

Trouble = Callable[[str, str], None]
"""Told (operation, index) before it takes effect; may raise, or change the table."""


def no_trouble(operation: str, name: str) -> None:
    pass


@dataclass
class FakeTable:
    """One table: the Views and the IndexTable port in one.

    A commit that touches an index recomputes every entry: at full coverage it becomes what is
    merged, else it stays (seen on pylance 14).
    """

    fragments: dict[int, int]
    coverage: dict[str, list[set[int]]]
    merged: dict[ShardId, int]
    kinds: dict[str, str] = field(default_factory=dict)
    recorded: dict[str, dict[ShardId, int]] = field(default_factory=dict)
    version: int = 1
    trouble: Trouble = no_trouble
    after: Trouble = no_trouble
    commits: list[tuple[str, str]] = field(default_factory=list)
    looked: list[int] = field(default_factory=list)
    """The versions whose facts were asked for."""

    # -- what others do

    def merge(self, shard: ShardId = A, *, rows: int = 10) -> None:
        self.fragments[max(self.fragments, default=-1) + 1] = rows
        self.merged[shard] = self.merged.get(shard, 0) + 1
        self.version += 1

    # -- Views

    def table(self, **_: object) -> TableView:
        state = make_state(
            merged=dict(self.merged),
            index_catchup={name: dict(entry) for name, entry in self.recorded.items()},
        )
        return make_view(state=state, version=self.version, rows=sum(self.fragments.values()))

    # -- IndexTable

    def facts(self, version: int) -> TableIndexes:
        self.looked.append(version)
        return TableIndexes(
            version=version,
            fragments=tuple(
                FragmentFacts(fragment_id=f, rows=r) for f, r in self.fragments.items()
            ),
            indexes=tuple(
                IndexFacts(
                    name=name,
                    kind=self.kinds.get(name, "BTREE"),
                    columns=("k",),
                    segments=tuple(
                        SegmentFacts(uuid=str(n), fragment_ids=frozenset(s))
                        for n, s in enumerate(segments)
                    ),
                )
                for name, segments in sorted(self.coverage.items())
            ),
        )

    def record(self, name: str) -> None:
        self._commit("record", name, lambda: None)

    def append(self, names: Sequence[str], segments_to_merge: int) -> None:
        def act() -> None:
            for name in names:
                if name not in self.coverage:
                    raise Missing(name)
                segments = self.coverage[name]
                new = set(self.fragments).difference(*segments)
                at = len(segments) - segments_to_merge
                self.coverage[name] = [*segments[:at], new.union(*segments[at:])]

        for name in names[1:]:
            self.trouble("append", name)
        self._commit("append", names[0], act)

    def retrain(self, name: str, segments_to_merge: int) -> None:
        def act() -> None:
            self.coverage[name] = [set(self.fragments)]

        self._commit("retrain", name, act)

    def build(self, task: SegmentTask) -> BuiltSegment:
        self.trouble("build", task.index)
        data = json.dumps([f.fragment_id for f in task.fragments]).encode()
        return BuiltSegment(index=task.index, data=data)

    def commit_segments(self, version: int, name: str, segments: Sequence[BuiltSegment]) -> None:
        new = [set(json.loads(s.data)) for s in segments]

        def act() -> None:
            covered = set().union(*new)
            self.coverage[name] = [s for s in self.coverage[name] if not s <= covered] + new

        self._commit("segments", name, act)

    def _commit(self, operation: str, name: str, act: Callable[[], None]) -> None:
        self.trouble(operation, name)
        act()
        self.version += 1
        self.commits.append((operation, name))
        for index, segments in self.coverage.items():
            if set().union(*segments) >= set(self.fragments):
                self.recorded[index] = dict(self.merged)
        self.after(operation, name)


def job(table: FakeTable, **settings: object) -> IndexCatchupJob:
    def build(tasks: Sequence[SegmentTask]) -> Sequence[Built]:
        built: list[Built] = []
        for task in tasks:
            try:
                built.append(table.build(task))
            except MemWalError as error:
                built.append(error)
        return built

    ports = {"name": "t", "views": table, "table": table, "clock": ManualClock(), "build": build}
    return IndexCatchupJob(**{**ports, **settings})  # type: ignore[arg-type]


def run(table: FakeTable, *names: str, method: Method | None = None, **settings: object) -> dict:
    request = CatchupRequest(indexes=names, method=method or "auto")  # type: ignore[arg-type]
    found = job(table, request=request, **settings).run(table.table())
    return {i.name: i for i in found.indexes}


def behind_table(*names: str, **settings: object) -> FakeTable:
    """Two merged fragments that no index covers."""
    table = FakeTable(
        fragments={0: 1000}, coverage={name: [{0}] for name in names}, merged={}, **settings
    )  # type: ignore[arg-type]
    table.merge(A)
    table.merge(B)
    return table


def once(operation: str, name: str, effect: Callable[[], None]) -> Trouble:
    """Something that happens the first time only."""
    left = [effect]

    def trouble(now: str, index: str) -> None:
        if left and (now, index) == (operation, name):
            left.pop()()

    return trouble


def fail(error: Exception) -> Callable[[], None]:
    def effect() -> None:
        raise error

    return effect


def always(operation: str, name: str, error: Exception) -> Trouble:
    def trouble(now: str, index: str) -> None:
        if (now, index) == (operation, name):
            raise error

    return trouble


# ---- plain runs


def test_every_index_is_caught_up_in_one_commit() -> None:
    table = behind_table("one", "two")
    found = run(table)
    assert {i.outcome for i in found.values()} == {"done"}
    assert table.commits == [("append", "one")]
    assert {i.method for i in found.values()} == {Method.APPEND}
    assert found["two"].caught_up == {A: 1, B: 1}
    assert found["one"].caught_up == {A: 1, B: 1}
    assert (found["one"].unindexed_rows_before, found["one"].unindexed_rows_after) == (20, 0)


def test_a_second_run_commits_nothing() -> None:
    table = behind_table("one")
    run(table)
    version = table.version
    assert run(table)["one"].outcome == "nothing_to_do"
    assert table.version == version
    assert job(table).run(table.table()).outcome == "nothing_to_do"


def test_lost_entries_of_covered_indexes_take_one_commit_for_all() -> None:
    table = behind_table("one", "two", "three")
    run(table)
    table.recorded.clear()
    table.commits.clear()
    found = run(table)
    assert table.commits == [("record", "one")]
    assert {i.outcome for i in found.values()} == {"done"}
    assert {i.method for i in found.values()} == {Method.NONE}
    assert table.recorded["three"] == {A: 1, B: 1}


def test_what_indexing_records_by_the_way_needs_no_commit_of_its_own() -> None:
    table = behind_table("one", "two")
    table.coverage["two"] = [{0, 1, 2}]
    found = run(table)
    assert table.commits == [("append", "one")]
    assert found["two"].outcome == "done"
    assert found["two"].caught_up == {A: 1, B: 1}


def test_segments_of_several_indexes_are_built_together_and_committed_apiece() -> None:
    table = behind_table("one", "two")
    calls: list[list[tuple[str, int]]] = []

    def build(tasks: Sequence[SegmentTask]) -> Sequence[Built]:
        calls.append([(t.index, len(t.fragments)) for t in tasks])
        return [table.build(t) for t in tasks]

    limits = CatchupLimits(append_rows_max=1, segment_rows_min=10)
    found = run(table, build=build, limits=limits)
    assert calls == [[("one", 1), ("one", 1), ("two", 1), ("two", 1)]]
    assert table.commits == [("segments", "one"), ("segments", "two")]
    assert {i.method for i in found.values()} == {Method.SEGMENTS}
    assert table.coverage["one"] == [{0}, {1}, {2}]


def test_a_dry_run_tells_and_changes_nothing() -> None:
    table = behind_table("one")
    found = job(table).run(table.table(), dry_run=True)
    (index,) = found.indexes
    assert (index.outcome, index.method) == ("done", Method.APPEND)
    assert index.caught_up_before == {}
    assert index.caught_up == {A: 1, B: 1}
    assert table.commits == []


def test_only_named_indexes_are_touched() -> None:
    table = behind_table("one", "two")
    assert list(run(table, "two")) == ["two"]
    assert table.commits == [("append", "two")]
    with pytest.raises(Usage):
        run(table, "nope")


# ---- races


def test_a_merge_between_plan_and_commit_is_left_to_the_next_run() -> None:
    table = behind_table("one")
    table.after = once("append", "one", table.merge)
    found = run(table)
    assert found["one"].outcome == "done"
    assert found["one"].caught_up == {A: 1, B: 1}
    assert found["one"].unindexed_rows_after == 10
    assert table.commits == [("append", "one")]


def test_segments_over_a_merge_are_followed_by_an_append() -> None:
    # The merge lands before the commit: coverage is not full, so nothing is recorded at first.
    table = behind_table("one")
    table.trouble = once("segments", "one", table.merge)
    found = run(table, limits=CatchupLimits(append_rows_max=11, segment_rows_min=10))
    assert table.commits == [("segments", "one"), ("append", "one")]
    assert found["one"].outcome == "done"
    assert found["one"].caught_up == {A: 2, B: 1}


def test_a_lost_race_is_planned_again_after_a_pause() -> None:
    table = behind_table("one")
    table.trouble = once("append", "one", fail(LostRace("conflict")))
    clock = ManualClock()
    found = run(table, clock=clock)
    assert found["one"].outcome == "done"
    assert found["one"].conflicts == 1
    assert len(clock.slept_seconds) == 1
    assert table.commits == [("append", "one")]


def test_indexes_that_fail_together_are_tried_alone() -> None:
    table = behind_table("one", "two")
    table.trouble = always("append", "two", Unsupported("MW-E02", "no"))
    found = run(table)
    assert (found["one"].outcome, found["two"].outcome) == ("done", "refused")
    assert table.commits == [("append", "one")]


def test_a_race_that_is_always_lost_ends_after_bounded_attempts() -> None:
    table = behind_table("one", "two")
    table.trouble = always("append", "one", LostRace("conflict"))
    found = run(table, limits=CatchupLimits(conflict_attempts_max=4))
    assert (found["one"].outcome, found["one"].exit_code) == ("failed", 4)
    assert found["one"].conflicts == 4
    assert found["two"].outcome == "done"


def test_a_race_ends_at_its_deadline() -> None:
    table = behind_table("one")
    clock = ManualClock()

    def slow(operation: str, name: str) -> None:
        clock.advance(400.0)
        raise LostRace("conflict")

    table.trouble = slow
    found = run(table, clock=clock)
    assert found["one"].conflicts == 2
    assert found["one"].exit_code == 4


def test_a_commit_whose_reply_was_lost_counts_as_done() -> None:
    table = behind_table("one")
    table.after = once("append", "one", fail(StoreUnavailable("timed out")))
    found = run(table)
    assert found["one"].outcome == "done"
    assert table.commits == [("append", "one")]


def test_a_store_that_stays_away_is_reported() -> None:
    table = behind_table("one")
    table.trouble = always("append", "one", StoreUnavailable("timed out"))
    found = run(table)
    assert (found["one"].outcome, found["one"].exit_code) == ("failed", 1)
    assert found["one"].error == "timed out"


def test_entries_that_a_merge_erases_are_recorded_again() -> None:
    table = behind_table("one")
    table.after = once("append", "one", table.recorded.clear)
    found = run(table)
    assert found["one"].outcome == "done"
    assert table.commits == [("append", "one"), ("record", "one")]


def test_a_record_that_claims_more_than_is_covered_is_not_enough() -> None:
    table = behind_table("one")
    table.trouble = once("append", "one", fail(LostRace("a merge was first")))
    table.recorded["one"] = dict(table.merged)
    assert run(table)["one"].outcome == "done"
    assert table.commits == [("append", "one")]


def test_what_others_undid_after_it_was_reached_is_told() -> None:
    table = behind_table("one", "two")

    def undo() -> None:
        del table.recorded["one"]

    troubles = [LostRace("a merge was first")] * 2  # together with the other one, and alone

    def trouble(operation: str, name: str) -> None:
        if name == "two" and troubles:
            raise troubles.pop()

    table.trouble = trouble
    table.after = once("append", "two", undo)
    found = run(table)
    assert found["two"].outcome == "done"
    assert "other commits undid what was recorded" in str(found["one"].error)


def test_a_run_ends_under_steady_merging() -> None:
    table = behind_table("one")
    table.after = lambda operation, name: table.merge()
    found = run(table)
    assert found["one"].outcome == "done"
    assert len(table.commits) == 1


# ---- one index's trouble


def test_an_error_of_one_index_does_not_stop_the_others() -> None:
    table = behind_table("one", "two")
    table.trouble = always("append", "one", Unsupported("MW-E02", "cannot"))
    found = run(table)
    assert (found["one"].outcome, found["one"].error) == ("refused", "cannot (MW-E02)")
    assert found["one"].unindexed_rows_after == 20
    assert found["two"].outcome == "done"


def test_a_segment_that_fails_to_build_fails_its_index_only() -> None:
    table = behind_table("one", "two")
    table.trouble = always("build", "one", Unsupported("MW-E02", "cannot"))
    found = run(table, method=Method.SEGMENTS)
    assert found["one"].outcome == "refused"
    assert found["two"].outcome == "done"
    assert table.commits == [("segments", "two")]


def test_commits_that_cover_nothing_are_not_repeated_for_ever() -> None:
    class Stubborn(FakeTable):
        def append(self, name: str, segments_to_merge: int) -> None:
            self._commit("append", name, lambda: None)

    table = Stubborn(fragments={0: 1000, 1: 10}, coverage={"one": [{0}]}, merged={A: 1})
    found = run(table)
    assert (found["one"].outcome, found["one"].exit_code) == ("refused", 7)
    assert "10 rows are still not covered" in found["one"].error
    assert len(table.commits) == 3


def test_an_index_that_can_not_be_trained_is_refused_and_left_alone() -> None:
    table = FakeTable(
        fragments={0: 100}, coverage={"one": [], "two": []}, merged={A: 1}, kinds={"one": "IVF_PQ"}
    )
    found = run(table)
    assert found["one"].outcome == "refused"
    assert found["two"].outcome == "done"
    assert table.commits == [("append", "two")]


def test_an_index_that_is_dropped_meanwhile_is_reported() -> None:
    table = behind_table("one", "two")
    table.trouble = once("append", "two", lambda: table.coverage.pop("one") and None)
    table.after = no_trouble
    found = run(table)
    assert found["two"].outcome == "done"
    assert found["one"].outcome == "failed"
    assert found["one"].unindexed_rows_after is None


# ---- retrain


def test_a_retrain_that_is_asked_for_is_made_once() -> None:
    table = behind_table("one")
    run(table)
    table.commits.clear()
    found = run(table, method=Method.RETRAIN)
    assert (found["one"].outcome, found["one"].method) == ("done", Method.RETRAIN)
    assert table.commits == [("segments", "one")]


def test_a_lost_retrain_is_tried_again_though_coverage_is_full() -> None:
    table = behind_table("one", kinds={"one": "IVF_FLAT"})
    run(table)
    table.commits.clear()
    table.trouble = once("retrain", "one", fail(LostRace("conflict")))
    found = run(table, method=Method.RETRAIN)
    assert found["one"].outcome == "done"
    assert table.commits == [("retrain", "one")]


def test_a_refused_retrain_is_reported_though_coverage_is_full() -> None:
    table = behind_table("one", kinds={"one": "IVF_FLAT"})
    run(table)
    table.trouble = always("retrain", "one", Refused("MW-H01", "too few vectors"))
    found = run(table, method=Method.RETRAIN)
    assert (found["one"].outcome, found["one"].error) == ("refused", "too few vectors (MW-H01)")


# ---- lease


def test_the_lease_is_taken_first_and_everything_is_planned_again_then() -> None:
    table = behind_table("one")
    done: list[str] = []

    def take_lease() -> None:
        done.append("lease")
        table.merge()  # by somebody who held it until now
        table.looked.clear()

    report = job(table, take_lease=take_lease, steps=done.append).run(table.table())
    assert done == ["lease", "append", "append_done"]
    assert min(table.looked) > report.version_before
    assert (report.version_before, report.indexes[0].unindexed_rows_before) == (3, 30)
    assert report.indexes[0].caught_up == {A: 2, B: 1}


def test_what_commits_nothing_takes_no_lease() -> None:
    table = behind_table("one")
    held = fail(LeaseHeld("by somebody"))
    assert job(table, take_lease=held).run(table.table(), dry_run=True).outcome == "done"
    with pytest.raises(LeaseHeld):
        run(table, take_lease=held)
    assert table.commits == []
    run(table)
    assert run(table, take_lease=held)["one"].outcome == "nothing_to_do"


def test_a_lost_lease_ends_the_run_before_the_next_commit() -> None:
    table = behind_table("one", "two")
    checks: list[int] = []

    def before_commit() -> None:
        checks.append(1)
        if len(checks) == 2:
            raise LeaseHeld("superseded")

    limits = CatchupLimits(append_rows_max=1, segment_rows_min=10)
    with pytest.raises(LeaseHeld):
        run(table, before_commit=before_commit, limits=limits)
    assert table.commits == [("segments", "one")]


@pytest.mark.parametrize("kind", ["append", "segments", "record"])
def test_nothing_is_committed_without_the_lease(kind: str) -> None:
    table = behind_table("one")
    limits = CatchupLimits()
    if kind == "segments":
        limits = CatchupLimits(append_rows_max=1, segment_rows_min=10)
    if kind == "record":
        table.coverage["one"] = [set(table.fragments)]
    assert run(table, limits=limits)["one"].outcome == "done"
    assert table.commits == [(kind, "one")]

    again = behind_table("one")
    again.coverage["one"] = [set(again.fragments)] if kind == "record" else [{0}]
    with pytest.raises(LeaseHeld):
        run(again, limits=limits, before_commit=fail(LeaseHeld("superseded")))
    assert again.commits == []
