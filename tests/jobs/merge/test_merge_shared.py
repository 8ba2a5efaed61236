"""Commits that shards share, over the fakes and over real tables, on files and on S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import LeaseHeld, LostRace, StandDown, StoreUnavailable
from memwal.jobs.merge.apply.shared_commits import ATTEMPTS_MAX, SharedMerger
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.ports import Fold
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from tests.jobs.merge.merge_worlds import BASE, Real, Where, where
from tests.support.builders import Delete, Put, make_table
from tests.support.s3server import S3Server


@pytest.fixture(params=["memory", "lake", pytest.param("local", marks=pytest.mark.integration)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    return where(request.param, tmp_path)


def run(
    where: Where, request: MergeRequest | None = None, /, **settings: Any
) -> tuple[ShardReport, ShardReport]:
    merger = SharedMerger(single=where.merger(**settings))
    one, other = merger.run(where.shards, request or MergeRequest())
    return one, other


def base(**changes: int | None) -> dict[int, int]:
    numbers: dict[int, int | None] = {k: 1000 + k for k in BASE}
    numbers.update({int(k[1:]): n for k, n in changes.items()})
    return {k: n for k, n in numbers.items() if n is not None}


def fill(table: Where) -> None:
    """Even keys in one shard, odd ones in the other; new, known and deleted ones in both."""
    one, other = table.shards
    table.flush(one, Put([2, 50], 1))
    table.flush(one, Put([4], 10), Delete([6, 60]))
    table.flush(other, Put([1, 3, 51], 20), Delete([5]))


MERGED = base(k2=1, k50=2, k4=10, k6=None, k1=20, k3=21, k51=22, k5=None)


def rows(merge: ShardReport) -> tuple[int, int, int]:
    return merge.rows_inserted, merge.rows_updated, merge.rows_deleted


def test_one_commit_marks_both(table: Where) -> None:
    fill(table)
    one, other = run(table)
    assert [m.outcome for m in (one, other)] == ["done", "done"]
    assert [(m.from_generation, m.to_generation) for m in (one, other)] == [(0, 2), (0, 1)]
    assert [(m.commits, m.commits_shared) for m in (one, other)] == [(1, 0), (1, 1)]
    assert [m.generations for m in (one, other)] == [2, 1]
    assert [rows(m) for m in (one, other)] == [(1, 2, 1), (1, 2, 1)]
    assert table.progress() == dict(zip(table.shards, (2, 1), strict=True))
    assert table.numbers() == MERGED
    assert {m.outcome for m in run(table)} == {"nothing_to_do"}


def test_rows_are_told_apart_where_none_or_all_are_new(table: Where) -> None:
    one, other = table.shards
    table.flush(one, Put([50], 1))
    table.flush(other, Put([51, 53], 5))
    assert [rows(m) for m in run(table)] == [(1, 0, 0), (2, 0, 0)]
    table.flush(one, Put([50], 2), Delete([2]))
    table.flush(other, Put([51, 53], 6))
    assert [rows(m) for m in run(table)] == [(0, 1, 1), (0, 2, 0)]
    table.flush(one, Delete([4, 70]))
    table.flush(other, Delete([71]))
    assert [rows(m) for m in run(table)] == [(0, 0, 1), (0, 0, 0)]
    assert table.numbers() == base(k50=2, k2=None, k51=6, k53=7, k4=None)


def test_prefixes_go_on_until_all_is_merged(table: Where) -> None:
    fill(table)
    done = run(table, limits=MergeLimits(generations_per_commit_max=2))
    assert [m.outcome for m in done] == ["done", "done"]
    assert sum(m.commits - m.commits_shared for m in done) == 2
    assert table.numbers() == MERGED


@pytest.mark.parametrize(
    "limits",
    [
        MergeLimits(bytes_per_commit_max=1),
        MergeLimits(shards_per_commit_max=1),
        MergeLimits(generations_per_commit_max=1),
        MergeLimits(tombstones_in_commit_max=0),
    ],
    ids=["bytes", "shards", "generations", "tombstones"],
)
def test_what_does_not_fit_is_merged_alone(table: Where, limits: MergeLimits) -> None:
    fill(table)
    done = run(table, limits=limits)
    assert [(m.outcome, m.commits_shared) for m in done] == [("done", 0), ("done", 0)]
    assert table.numbers() == MERGED


def test_a_key_in_two_shards_is_not_doubled(table: Where) -> None:
    """There is no order between shards, so that either row may win; one does."""
    one, other = table.shards
    table.flush(one, Put([50], 1))
    table.flush(other, Put([50], 2))
    done = run(table)
    assert [(m.outcome, m.commits, m.commits_shared) for m in done] == [("done", 1, 0)] * 2
    assert table.numbers() == base(k50=2)


def test_a_deleted_key_of_one_shard_and_a_live_one_of_another(table: Where) -> None:
    one, other = table.shards
    table.flush(one, Put([2], 1))
    table.flush(other, Delete([2]))
    assert [(m.outcome, m.commits_shared) for m in run(table)] == [("done", 0)] * 2
    assert table.numbers() == base(k2=None)


def test_an_unguarded_fold_is_left_out(table: Where) -> None:
    """Its first generation's keys are all deleted later: nothing of it stops a shorter fold."""
    one, other = table.shards
    table.flush(one, Put([60], 1))
    table.flush(one, Delete([60]))
    table.flush(other, Put([51], 2))
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            racing.append(table.merger().run(one, MergeRequest(until_generation=1)))

    done = run(table, steps=steps)
    assert [(m.outcome, m.commits_shared) for m in done] == [("done", 0)] * 2
    assert table.numbers() == base(k51=2)


@pytest.mark.parametrize("until", [1, 2])
def test_a_merge_of_one_shard_in_between_is_noticed(table: Where, until: int) -> None:
    fill(table)
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            alone = table.merger().run(table.shards[0], MergeRequest(until_generation=until))
            racing.append(alone)

    one, other = run(table, steps=steps)
    assert [r.outcome for r in racing] == ["done"]
    assert one.conflicts == other.conflicts == 1
    assert (one.outcome, other.outcome) == ("done", "done")
    assert table.numbers() == MERGED
    assert table.progress() == dict(zip(table.shards, (2, 1), strict=True))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_around_the_commit_is_resolved_by_reading(table: Where, when: str) -> None:
    fill(table)
    faulty = Faulty(table.merger().table, when, StoreUnavailable("the reply was lost"))
    done = run(table, table=faulty)
    assert faulty.faults == 1
    assert [m.outcome for m in done] == ["done", "done"]
    assert [m.commits_found_landed for m in done] == ([0, 0] if when == "before" else [1, 1])
    assert [m.commits for m in done] == ([1, 1] if when == "before" else [0, 0])
    assert table.numbers() == MERGED


def test_races_without_end_lead_to_single_merges(table: Where) -> None:
    fill(table)
    faulty = Faulty(table.merger().table, "before", LostRace("always"), faults_max=99)
    done = run(table, table=faulty)
    assert faulty.faults == ATTEMPTS_MAX
    assert [(m.outcome, m.commits_shared) for m in done] == [("done", 0)] * 2
    assert [m.conflicts for m in done] == [ATTEMPTS_MAX] * 2
    assert table.numbers() == MERGED


@pytest.mark.parametrize("error", [LeaseHeld("a refresh has it"), StandDown("cancelled")])
@pytest.mark.parametrize("port", ["before_view", "before_commit"])
def test_what_ends_all_shards_is_told_of_each(table: Where, port: str, error: StandDown) -> None:
    """Also where it comes before the first look, when no shard is known to have work."""
    fill(table)
    asked: list[str] = []

    def stop() -> None:
        asked.append(port)
        raise error

    done = run(table, **{port: stop})
    assert [(m.outcome, m.exit_code, m.error) for m in done] == [("held", 4, str(error))] * 2
    assert asked == [port]
    assert table.progress() == {}


@pytest.mark.parametrize("looks", [0, 1])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_is_down_is_not_asked_shard_by_shard(
    table: Where, looks: int, when: str
) -> None:
    """Before anything was done it failed; after a commit without an answer nobody knows."""
    fill(table)
    views = Down(table.merger().views, looks)
    faulty = Faulty(table.merger().table, when, StoreUnavailable("the reply was lost"))
    done = run(table, views=views, table=faulty)
    assert [(m.outcome, m.exit_code) for m in done] == [("failed", 1)] * 2
    assert views.looks == looks + 1
    for merge in done:
        assert "the store is down" in (merge.error or "")
        assert ("may or may not have landed" in (merge.error or "")) == (looks == 1)
    assert bool(table.progress()) == (looks == 1 and when == "after")


@pytest.mark.parametrize("down", [False, True])
def test_a_store_that_fails_while_folding_is_looked_at(table: Where, down: bool) -> None:
    """If it is down, the others are not tried; if it is one shard's trouble, they are."""
    fill(table)
    views = Down(table.merger().views, 1 if down else 99)
    unread = Unread(table.merger().table, table.shards[0])
    one, other = run(table, views=views, table=unread)
    assert (one.outcome, one.exit_code) == ("failed", 1)
    assert other.outcome == ("failed" if down else "done")
    if down:
        assert (len(unread.folds), views.looks) == (1, 2)


def test_progress_that_falls_on_the_way_ends_that_shard(table: Where) -> None:
    """As after a restore: what was merged before is pending again, and not taken for it."""
    fill(table)
    table.merger().run(table.shards[0], MergeRequest(until_generation=1))
    views = Lowered(table.merger().views, table.shards[0])
    faulty = Faulty(table.merger().table, "before", LostRace("once"))
    one, other = run(table, views=views, table=faulty)
    assert (one.outcome, one.exit_code, one.conflicts) == ("failed", 4, 1)
    assert "progress fell from 1 to 0" in (one.error or "")
    assert (other.outcome, other.commits) == ("done", 1)


def test_an_empty_run(table: Where) -> None:
    assert [m.outcome for m in run(table)] in (["nothing_to_do"] * 2, ["failed"] * 2)
    assert table.progress() == {}


@pytest.mark.nightly
@pytest.mark.integration
def test_on_s3(s3_server: S3Server) -> None:
    uri = f"s3://{s3_server.make_bucket()}/t"
    options = s3_server.storage_options
    where = Real(make_table(uri, rows=BASE, shards=2, options=options))
    fill(where)
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            racing.append(where.merger().run(where.shards[0], MergeRequest(until_generation=1)))

    faulty = Faulty(where.merger().table, "after", StoreUnavailable("the reply was lost"))
    one, other = run(where, steps=steps, table=faulty)
    # The first attempt loses its race and is taken for a lost reply; the second one lands.
    assert [m.outcome for m in (*racing, one, other)] == ["done"] * 3
    assert where.numbers() == MERGED
    assert where.progress() == dict(zip(where.shards, (2, 1), strict=True))


class Faulty:
    """A MergeTable whose shared commits fail, before or after they land."""

    def __init__(self, inner: Any, when: str, error: Exception, *, faults_max: int = 1) -> None:
        self.inner, self.when, self.error = inner, when, error
        self.faults, self.faults_max = 0, faults_max

    def fold(self, *arguments: Any) -> Fold:
        fold: Fold = self.inner.fold(*arguments)
        return fold

    def share(self, folds: Mapping[ShardId, Fold]) -> Any:
        shared = self.inner.share(folds)
        return None if shared is None else FaultyShared(self, shared)


class FaultyShared:
    def __init__(self, table: Faulty, inner: Any) -> None:
        self.table, self.inner = table, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, *arguments: Any) -> Any:
        if self.table.faults >= self.table.faults_max:
            return self.inner.commit(*arguments)
        self.table.faults += 1
        if self.table.when == "after":
            self.inner.commit(*arguments)
        raise self.table.error


class Unread:
    """A MergeTable that can't read one shard's generations."""

    def __init__(self, inner: Any, shard_id: ShardId) -> None:
        self.inner, self.shard_id = inner, shard_id
        self.folds: list[ShardId] = []

    def fold(self, view: Any, shard_id: ShardId, generations: Any) -> Fold:
        self.folds.append(shard_id)
        if shard_id == self.shard_id:
            raise StoreUnavailable("no answer")
        fold: Fold = self.inner.fold(view, shard_id, generations)
        return fold

    def share(self, folds: Mapping[ShardId, Fold]) -> Any:
        return self.inner.share(folds)


class Down:
    """Views that can be taken so many times, and then no more."""

    def __init__(self, inner: Any, looks_max: int) -> None:
        self.inner, self.looks, self.looks_max = inner, 0, looks_max

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def shard(self, shard_id: ShardId) -> Any:
        return self._look(lambda: self.inner.shard(shard_id))

    def shards(self, shard_ids: Any) -> Any:
        return self._look(lambda: self.inner.shards(shard_ids))

    def _look(self, look: Any) -> Any:
        self.looks += 1
        if self.looks > self.looks_max:
            raise StoreUnavailable("the store is down")
        return look()


class Lowered:
    """Views that forget one shard's progress, from the second one on."""

    def __init__(self, inner: Any, shard_id: ShardId) -> None:
        self.inner, self.shard_id, self.views = inner, shard_id, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def shard(self, shard_id: ShardId) -> Any:
        return self._lowered(self.inner.shard(shard_id))

    def shards(self, shard_ids: Any) -> Any:
        return self._lowered(self.inner.shards(shard_ids))

    def _lowered(self, view: Any) -> Any:
        self.views += 1
        if self.views == 1:
            return view
        return replace(
            view,
            shards=tuple(
                replace(s, merged_generation=0) if s.shard_id == self.shard_id else s
                for s in view.shards
            ),
        )


def test_shards_of_which_one_has_a_key_twice_in_the_base_share_no_commit() -> None:
    table = where("memory", Path())
    one, other = table.shards
    table.flush(one, Put([0], 1))
    table.flush(other, Put([1], 2))
    table.table.doubles = {(0,)}  # type: ignore[union-attr]
    reports = run(table)
    assert [(r.outcome, r.commits_shared) for r in reports] == [("done", 0)] * 2
    assert not table.table.doubles  # type: ignore[union-attr]
