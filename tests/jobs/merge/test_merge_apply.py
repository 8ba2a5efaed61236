"""The merge run's guards, one by one, over the table in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from memwal.errors import LeaseHeld, LostRace, StoreUnavailable
from memwal.jobs.merge.apply import ShardMerger, keep_fold
from memwal.jobs.merge.plan import MergeLimits, NextCommit
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.testing import ManualClock
from memwal.testing.tables import Changes, MemoryTable

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
ONE_EACH = MergeLimits(generations_per_commit_max=1)
TWO_PASSES = MergeLimits(tombstones_in_commit_max=0)


def changes(**rows: int | None) -> Changes:
    return {(k,): None if n is None else {"id": k, "n": n} for k, n in rows.items()}


@dataclass(kw_only=True)
class Views(MemoryTable):
    """A table whose views can be spoilt."""

    primary_key: tuple[str, ...] = ("id",)
    since_nanos: int | None = 0
    flushed_nanos: int = 10
    lowered_to: int | None = None
    down: int = 0
    """How many views from now on are refused by the store."""
    views: int = field(default=0)

    def shard(self, shard_id: ShardId) -> TableView:
        self.views += 1
        if self.down:
            self.down -= 1
            raise StoreUnavailable("no answer")
        view = super().shard(shard_id)
        if self.lowered_to is not None:
            shard = replace(view.shards[0], merged_generation=self.lowered_to)
            view = replace(view, shards=(shard,))
        return replace(view, primary_key=self.primary_key)

    def flushed_at_nanos(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        return self.flushed_nanos

    def mem_wal_since_nanos(self, view: TableView, not_after_nanos: int) -> int | None:
        return self.since_nanos


@pytest.fixture
def table() -> Views:
    made = Views(clock=ManualClock(), base=dict(changes(a=1, b=1)))  # type: ignore[arg-type]
    made.flush(SHARD, changes(a=2, c=2))
    made.flush(SHARD, changes(a=3, b=None))
    made.flush(SHARD, changes(a=4))
    return made


def run(where: Views, request: MergeRequest | None = None, /, **settings: Any) -> ShardReport:
    ports = {"views": where, "table": where, "clock": where.clock}
    return ShardMerger(**{**ports, **settings}).run(SHARD, request or MergeRequest())


def rows(table: Views) -> dict[object, object]:
    return {key[0]: row["n"] for key, row in table.versions[-1].rows.items()}


def at_step(wanted: str, act: Any) -> Any:
    """A Steps port that acts at the first step of a name."""
    done: list[str] = []

    def steps(step: str) -> None:
        if step == wanted and not done:
            done.append(step)
            act()

    return steps


def test_after_the_last_commit_nothing_is_read_again(table: Views) -> None:
    report = run(table, limits=ONE_EACH)
    assert (report.commits, report.conflicts, table.views) == (3, 0, 3)
    assert rows(table) == {"a": 4, "c": 2}
    table.flush(SHARD, changes(a=5))
    assert (run(table).to_generation, table.views) == (4, 4)


def test_all_is_merged(table: Views) -> None:
    assert run(table).outcome == "done"
    assert rows(table) == {"a": 4, "c": 2}


def test_a_table_without_a_key_is_refused_by_the_run_itself(table: Views) -> None:
    table.primary_key = ()
    merge = run(table)
    assert (merge.exit_code, len(table.versions)) == (7, 1)


@pytest.mark.parametrize("limits", [MergeLimits(), TWO_PASSES], ids=["commit", "delete pass"])
def test_nothing_is_written_without_the_lease(table: Views, limits: MergeLimits) -> None:
    def lost() -> None:
        raise LeaseHeld("superseded")

    merge = run(table, limits=limits, before_commit=lost)
    assert (merge.exit_code, len(table.versions)) == (4, 1)


def test_a_key_that_the_base_holds_twice_is_deleted_before_it_is_written(table: Views) -> None:
    table.doubles = {("a",), ("z",)}
    seen: list[str] = []
    report = run(table, steps=seen.append)
    assert (report.outcome, report.rows_deleted, table.doubles) == ("done", 2, {("z",)})
    assert seen[:3] == ["delete_pass", "between_passes", "commit"]
    assert rows(table) == {"a": 4, "c": 2}
    assert "1 key more than once" in str(report.warning)


def test_the_lease_is_asked_between_delete_pass_and_mark(table: Views) -> None:
    asked: list[int] = []

    def check() -> None:
        asked.append(len(table.versions))
        if len(asked) == 2:
            raise LeaseHeld("superseded")

    merge = run(table, limits=TWO_PASSES, before_commit=check)
    assert (asked, merge.exit_code, merge.to_generation) == ([1, 2], 4, 0)


def test_progress_that_falls_on_the_way_ends_the_run(table: Views) -> None:
    def fall() -> None:
        table.lowered_to = 0

    merge = run(table, limits=ONE_EACH, steps=at_step("committed", fall))
    assert merge.error is not None
    assert "merge progress fell from 1 to 0" in merge.error
    assert (merge.outcome, merge.commits) == ("partial", 1)


@pytest.mark.parametrize("since", [None, 11])
def test_generations_older_than_the_index_are_refused(table: Views, since: int | None) -> None:
    table.since_nanos = since
    assert (run(table).exit_code, len(table.versions)) == (5, 1)
    assert run(table, MergeRequest(allow_reinitialised=True)).outcome == "done"


def test_a_table_that_is_initialised_again_on_the_way_is_refused(table: Views) -> None:
    """Its progress is gone with the old index, and the generations are older than the new one."""

    def initialise_again() -> None:
        table.versions.append(replace(table.versions[-1], merged={}, touched=frozenset({("a",)})))
        table.since_nanos = 11

    merge = run(table, steps=at_step("commit", initialise_again))
    assert merge.exit_code == 5
    assert dict(table.versions[-1].merged) == {}


def test_a_table_that_is_initialised_again_before_any_progress_is_refused_at_once(
    table: Views,
) -> None:
    """Seen by the view that a merge of nothing new leaves: progress 0, then an old generation."""
    merge = ShardMerger(views=table, table=table, clock=table.clock, limits=ONE_EACH)

    def lose_all() -> None:
        table.versions[-1] = replace(table.versions[-1], merged={})
        table.since_nanos = None

    result = replace(merge, steps=at_step("committed", lose_all)).run(SHARD, MergeRequest())
    assert result.exit_code in (4, 5)
    assert result.commits == 1


def test_what_is_flushed_meanwhile_is_left_to_the_next_run(table: Views) -> None:
    merge = run(
        table,
        limits=ONE_EACH,
        steps=at_step("commit", lambda: table.flush(SHARD, changes(d=9))),
    )
    assert (merge.to_generation, merge.commits) == (3, 3)
    assert "d" not in rows(table)


def test_a_commit_that_comes_before_the_delete_pass_starts_the_fold_anew() -> None:
    """The pass lands on top of it; a key that it inserted and we delete would stay for good."""
    table = Views(clock=ManualClock(), base=dict(changes(b=1)))  # type: ignore[arg-type]
    table.flush(SHARD, changes(y=1, z=1))
    table.flush(SHARD, changes(z=None, b=None))
    racing: list[ShardReport] = []

    def overtake() -> None:
        racing.append(run(table, MergeRequest(until_generation=1)))

    merge = run(table, limits=TWO_PASSES, steps=at_step("delete_pass", overtake))
    assert (racing[0].commits, merge.outcome, merge.conflicts) == (1, "done", 1)
    assert rows(table) == {"y": 1}


class Faulty:
    """A MergeTable whose commits land, and then report an error."""

    def __init__(self, inner: MemoryTable, errors: list[Exception], *, lands: bool) -> None:
        self.inner, self.errors, self.lands = inner, errors, lands
        self.folds: list[list[int]] = []

    def fold(self, view: TableView, shard_id: ShardId, generations: Any) -> Any:
        self.folds.append([g.generation for g in generations])
        return self._faulty(self.inner.fold(view, shard_id, generations))

    def _faulty(self, fold: Any) -> Any:
        commit, rebase = fold.commit, fold.rebase

        def faulty_commit(shape: Any, mark: int) -> Any:
            if not self.errors:
                return commit(shape, mark)
            if self.lands:
                commit(shape, mark)
            raise self.errors.pop(0)

        fold.commit = faulty_commit
        fold.rebase = lambda view: self._faulty(rebase(view))
        return fold


def test_a_commit_whose_reply_was_lost_is_found_by_its_mark(table: Views) -> None:
    faulty = Faulty(table, [StoreUnavailable("no reply")], lands=True)
    merge = run(table, table=faulty)
    assert (merge.outcome, merge.commits, merge.commits_found_landed) == ("done", 0, 1)
    assert faulty.folds == [[1, 2, 3]]


def test_an_outcome_that_can_not_be_looked_up_is_said_to_be_unknown(table: Views) -> None:
    faulty = Faulty(table, [StoreUnavailable("no reply")], lands=True)

    def go_down() -> None:
        table.down = 9

    merge = run(table, table=faulty, steps=at_step("commit", go_down))
    assert merge.error is not None
    assert "may or may not have landed" in merge.error
    assert (merge.exit_code, merge.commits_found_landed) == (1, 0)


def test_a_generation_that_is_gone_and_not_merged_is_corruption_at_once(table: Views) -> None:
    table.lost.add((SHARD, 2))
    merge = run(table)
    assert merge.exit_code == 8
    assert merge.conflicts == 1


def test_a_generation_that_is_gone_because_it_was_merged_is_none(table: Views) -> None:
    """Merged and collected between our view and our fold."""

    class Collected(Faulty):
        def fold(self, view: TableView, shard_id: ShardId, generations: Any) -> Any:
            if not self.folds:
                run(table)
                table.lost.update((SHARD, n) for n in (1, 2, 3))
            return super().fold(view, shard_id, generations)

    merge = run(table, table=Collected(table, [], lands=True))
    assert (merge.outcome, merge.error, merge.commits_found_landed) == ("done", None, 1)


def test_faults_and_races_have_bounds(table: Views) -> None:
    down = Faulty(table, [StoreUnavailable("down")] * 99, lands=False)
    merge = run(table, table=down, limits=MergeLimits(fault_attempts_max=2))
    assert (merge.exit_code, merge.conflicts) == (1, 2)
    races = Faulty(table, [LostRace("lost")] * 99, lands=False)
    merge = run(table, table=races, limits=MergeLimits(conflict_attempts_max=5))
    assert (merge.exit_code, merge.conflicts) == (4, 5)
    late = Faulty(table, [LostRace("lost")] * 99, lands=False)
    limits = MergeLimits(conflict_seconds_max=0.2, conflict_wait_seconds_max=5.0)
    merge = run(table, table=late, limits=limits)
    assert merge.error is not None
    assert "no commit within 0.2 s" in merge.error


def test_a_fold_serves_the_prefix_that_it_was_made_for_or_was_cut_from(table: Views) -> None:
    view = table.shard(SHARD)
    listed = view.shards[0].pending
    fold = table.fold(view, SHARD, listed[:1])
    first, all_of_them, rest = (
        NextCommit(generations=part) for part in (listed[:1], listed, listed[1:])
    )
    assert keep_fold(fold, first, all_of_them) == (fold, first)
    assert keep_fold(fold, first, rest) == (None, rest)
    assert keep_fold(None, first, first) == (None, first)


def test_a_fold_is_used_again_for_the_same_prefix_only(table: Views) -> None:
    again = Faulty(table, [LostRace("lost")], lands=False)
    assert run(table, table=again).outcome == "done"
    assert again.folds == [[1, 2, 3]]

    table.flush(SHARD, changes(a=5))
    table.flush(SHARD, changes(a=6))
    other = Faulty(table, [], lands=True)

    def overtake() -> None:
        run(table, MergeRequest(until_generation=4))

    merge = run(table, table=other, steps=at_step("commit", overtake))
    assert merge.outcome == "done"
    assert rows(table)["a"] == 6
