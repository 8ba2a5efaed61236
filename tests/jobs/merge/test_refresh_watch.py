"""A merge without the lease, beside a snapshot refresh that lowers progress for a moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from memwal.jobs.merge.apply import RefreshWatch, ShardMerger
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.run.lease import ChainLeases
from memwal.store.records.lease import StoredLeases
from memwal.testing import ManualClock, MemoryBucket, MemoryObjects
from tests.support.memory_table import MemoryFold, MemoryTable

SHARD = ShardId("6f2c5a8e-1d0b-4d55-9a53-0f6f6a1f0c11")
FIRST_ONLY = MergeRequest(until_generation=1)


@dataclass(kw_only=True)
class Table(MemoryTable):
    """Runs what is planned for the moment before the next view, or before the next fold."""

    before_view: list[Callable[[], None]] = field(default_factory=list)
    before_fold: list[Callable[[], None]] = field(default_factory=list)

    def shard(self, shard_id: ShardId) -> TableView:
        if self.before_view:
            self.before_view.pop(0)()
        return super().shard(shard_id)

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> MemoryFold:
        if self.before_fold:
            self.before_fold.pop(0)()
        return super().fold(view, shard_id, generations)

    def set_progress(self, generation: int) -> None:
        """As a refresh from an old view does, and its repair."""
        latest = self.versions[-1]
        made = replace(latest, merged={SHARD: generation}, touched=frozenset())
        self.versions.append(made)

    @property
    def found(self) -> object:
        row = self.versions[-1].rows.get(("a",))
        return row and row["n"]


@pytest.fixture
def table() -> Table:
    """Three generations of two rows, of which the second deletes one; all merged."""
    made = Table(clock=ManualClock(), base={("a",): {"id": "a", "n": 0}})
    for n in (1, None, 3):
        rows = {("a",): None if n is None else {"id": "a", "n": n}, ("b",): {"id": "b", "n": 0}}
        made.flush(SHARD, rows)
    assert bare_merge(made, MergeRequest()).outcome == "done"
    assert made.found == 3
    return made


@pytest.fixture
def leases(table: Table) -> StoredLeases:
    objects = MemoryObjects(bucket=MemoryBucket(), clock=table.clock)
    return StoredLeases(objects, table.clock, holder="refresher")


def bare_merge(table: Table, request: MergeRequest) -> ShardReport:
    return ShardMerger(views=table, table=table, clock=table.clock).run(SHARD, request)


def watched_merge(
    table: Table,
    leases: StoredLeases,
    request: MergeRequest = FIRST_ONLY,
    lease_token: int | None = None,
) -> ShardReport:
    watch = RefreshWatch(leases=leases, lease_token=lease_token)
    merger = ShardMerger(
        views=table,
        table=table,
        clock=table.clock,
        limits=MergeLimits(tombstones_in_commit_max=0),
        before_commit=watch.before_commit,
        before_view=watch.before_view,
    )
    return merger.run(SHARD, request)


def test_unwatched_a_row_is_lost(table: Table) -> None:
    """What the watch is for."""
    table.set_progress(0)
    assert bare_merge(table, FIRST_ONLY).outcome == "done"
    table.set_progress(3)
    assert table.found == 1


def test_while_a_refresh_holds_the_lease_nothing_is_merged(
    table: Table, leases: StoredLeases
) -> None:
    claim = leases.acquire("snapshot")
    table.set_progress(0)
    merge = watched_merge(table, leases)
    assert (merge.exit_code, merge.commits, table.found) == (4, 0, 3)
    assert merge.error is not None
    assert "snapshot refresh may lower" in merge.error
    assert "(lease token 1, refresher: snapshot)" in merge.error
    table.set_progress(3)
    leases.release(claim)
    assert watched_merge(table, leases).outcome == "nothing_to_do"


def test_a_refresh_with_a_longer_lease_than_the_mergers_is_waited_for(table: Table) -> None:
    objects = MemoryObjects(bucket=MemoryBucket(), clock=table.clock)
    refresher = StoredLeases(objects, table.clock, ttl_seconds=3600, holder="refresher")
    mergers = StoredLeases(objects, table.clock, ttl_seconds=20, holder="merger")
    claim = refresher.acquire("snapshot")
    table.set_progress(0)
    table.clock.sleep(60)  # three times what the merger's own would last
    assert watched_merge(table, mergers).exit_code == 4
    assert refresher.is_live(claim)  # so that it repairs
    table.set_progress(3)
    assert table.found == 3


def test_a_refresh_that_begins_after_the_view_holds_the_commit_back(
    table: Table, leases: StoredLeases
) -> None:
    table.set_progress(0)
    table.before_fold = [lambda: (leases.acquire("snapshot"), None)[1]]
    merge = watched_merge(table, leases)
    assert (merge.exit_code, merge.commits, table.found) == (4, 0, 3)


def test_a_refresh_that_came_and_went_around_the_view_makes_it_void(
    table: Table, leases: StoredLeases
) -> None:
    def lower() -> None:
        leases.acquire("snapshot")
        table.set_progress(1)

    def repair() -> None:
        claim = leases.current()
        assert claim is not None
        table.set_progress(3)
        leases.release(claim)

    table.before_view, table.before_fold = [lower], [repair]
    merge = watched_merge(table, leases, MergeRequest(until_generation=2))
    assert (merge.commits, merge.conflicts, merge.to_generation) == (0, 1, 3)
    assert table.found == 3  # what a delete pass would have taken


@pytest.mark.parametrize(("own_claim", "found"), [(True, 3), (False, None)])
def test_a_refresh_among_jobs_that_share_a_lease_is_seen_by_its_own_claim(
    table: Table, leases: StoredLeases, own_claim: bool, found: object
) -> None:
    """Under the claim that the jobs share, nobody would see it come and go, and a row is lost."""
    chain = ChainLeases("maintain")

    def take(job: str, *, own_claim: bool = False) -> None:
        chain.take("t", leases, job, lambda text: None, own_claim=own_claim)

    def lower() -> None:
        take("snapshot", own_claim=own_claim)
        table.set_progress(1)

    def repair() -> None:
        table.set_progress(3)
        take("garbage")

    take("merge")
    table.before_view, table.before_fold = [lower], [repair]
    watched_merge(table, leases, MergeRequest(until_generation=2))
    chain.give_back("t")
    assert table.found == found


def test_other_holders_are_passed(table: Table, leases: StoredLeases) -> None:
    table.set_progress(0)
    leases.acquire("merge")
    assert watched_merge(table, leases).outcome == "done"


def test_a_refresh_that_was_cut_off_holds_until_another_has_committed(
    table: Table, leases: StoredLeases
) -> None:
    table.set_progress(0)
    leases.acquire("snapshot")
    table.clock.sleep(leases.ttl_seconds + 1)
    for between in (lambda: None, lambda: leases.acquire("merge"), lambda: leases.break_("test")):
        between()
        merge = watched_merge(table, leases)
        assert (merge.exit_code, merge.commits, table.found) == (4, 0, 3)
        assert merge.error is not None
        assert "merge once without --no-lease" in merge.error
    leases.release(replace(leases.acquire("merge"), unfenced=False))
    assert watched_merge(table, leases).outcome == "done"


def test_a_merge_goes_on_under_its_own_lease_and_stops_when_that_is_lost(
    table: Table, leases: StoredLeases
) -> None:
    table.set_progress(0)
    token = leases.acquire("merge").token
    assert watched_merge(table, leases, lease_token=token).outcome == "done"
    table.set_progress(0)
    table.before_fold = [lambda: (leases.break_("test"), None)[1]]
    merge = watched_merge(table, leases, lease_token=token)
    assert (merge.exit_code, merge.commits) == (4, 0)
    assert merge.error is not None
    assert f"lease token {token} was superseded" in merge.error
