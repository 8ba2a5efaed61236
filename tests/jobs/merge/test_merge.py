"""One merge suite over the in-memory fakes and over real tables, on files and on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memwal.errors import Corruption, LostRace, StoreUnavailable
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.ports import Fold
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.store.commits import run_commit
from tests.jobs.merge.merge_worlds import BASE, Fake, OnTheLake, Real, Where
from tests.support.builders import Delete, Put, make_table
from tests.support.s3server import S3Server
from tests.support.stores import ON_S3

WORLDS = ("memory", "lake", pytest.param("local", marks=pytest.mark.integration))
EVERYWHERE = pytest.mark.parametrize("table", [*WORLDS, ON_S3], indirect=True)


@pytest.fixture(params=[*WORLDS, pytest.param("s3", marks=pytest.mark.nightly)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    if request.param == "memory":
        return Fake()
    if request.param == "lake":
        return OnTheLake()
    if request.param == "local":
        return Real(make_table(tmp_path / "t", rows=BASE))
    server: S3Server = request.getfixturevalue("s3_server")
    return Real(
        make_table(f"s3://{server.make_bucket()}/t", rows=BASE, options=server.storage_options)
    )


TWO_PASSES = MergeLimits(tombstones_in_commit_max=0)


def run(where: Where, request: MergeRequest | None = None, /, **settings: Any) -> ShardReport:
    return where.merger(**settings).run(where.shards[0], request or MergeRequest())


def base(**changes: int | None) -> dict[int, int]:
    numbers: dict[int, int | None] = {k: 1000 + k for k in BASE}
    numbers.update({int(k[1:]): n for k, n in changes.items()})
    return {k: n for k, n in numbers.items() if n is not None}


def fill(table: Where) -> None:
    shard = table.shards[0]
    table.flush(shard, Put([1, 50], 1))
    table.flush(shard, Put([2, 51], 10), Delete([50, 3]))
    table.flush(shard, Put([1], 20), Delete([51]))


@EVERYWHERE
@pytest.mark.parametrize("limits", [MergeLimits(), TWO_PASSES], ids=["one commit", "two passes"])
def test_everything_in_one_commit(table: Where, limits: MergeLimits) -> None:
    fill(table)
    merge = run(table, limits=limits)
    assert (merge.outcome, merge.commits, merge.generations) == ("done", 1, 3)
    assert (merge.from_generation, merge.to_generation) == (0, 3)
    assert (merge.rows_inserted, merge.rows_updated, merge.rows_deleted) == (0, 2, 1)
    assert table.progress() == {table.shards[0]: 3}
    assert table.numbers() == base(k1=20, k2=10, k3=None)


def test_prefixes_by_count_by_bytes_and_by_request(table: Where) -> None:
    fill(table)
    assert run(table, MergeRequest(until_generation=1)).to_generation == 1
    assert table.numbers() == base(k1=1, k50=2)
    merge = run(table, limits=MergeLimits(bytes_per_commit_max=1))
    assert (merge.commits, merge.generations) == (2, 2)
    assert table.numbers() == base(k1=20, k2=10, k3=None)
    assert run(table).outcome == "nothing_to_do"


def test_a_shorter_merge_in_between_is_noticed(table: Where) -> None:
    """The second commit must not land on rows that it never saw (see the merge plan)."""
    fill(table)
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            racing.append(run(table, MergeRequest(until_generation=1)))

    merge = run(table, steps=steps)
    assert [r.outcome for r in racing] == ["done"]
    assert merge.conflicts == 1
    assert merge.outcome == "done"
    assert table.numbers() == base(k1=20, k2=10, k3=None)
    assert table.progress() == {table.shards[0]: 3}


def test_a_fold_without_an_anchor_is_cut_to_one_generation(table: Where) -> None:
    shard = table.shards[0]
    table.flush(shard, Put([60], 1))
    table.flush(shard, Delete([60]))
    table.flush(shard, Put([61], 2))
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            racing.append(run(table, MergeRequest(until_generation=1)))

    merge = run(table, steps=steps)
    assert merge.outcome == "done"
    assert table.numbers() == base(k61=2)


def test_a_longer_merge_in_between_leaves_nothing_to_do(table: Where) -> None:
    fill(table)
    racing: list[ShardReport] = []

    def steps(step: str) -> None:
        if step == "commit" and not racing:
            racing.append(run(table))

    merge = run(table, MergeRequest(until_generation=2), steps=steps)
    assert (merge.outcome, merge.commits, merge.commits_found_landed) == ("done", 0, 1)
    assert table.numbers() == base(k1=20, k2=10, k3=None)


@EVERYWHERE
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_around_the_commit_is_resolved_by_reading(table: Where, when: str) -> None:
    fill(table)
    faulty = FaultyTable(table.merger().table, when)
    merge = run(table, table=faulty)
    assert faulty.faults == 1
    assert merge.outcome == "done"
    assert (merge.commits, merge.commits_found_landed) == ((1, 0) if when == "before" else (0, 1))
    assert table.numbers() == base(k1=20, k2=10, k3=None)


def test_races_without_end_are_given_up(table: Where) -> None:
    fill(table)
    merge = run(
        table,
        table=FaultyTable(table.merger().table, "before", LostRace("always"), faults_max=99),
        limits=MergeLimits(conflict_attempts_max=4),
    )
    assert (merge.outcome, merge.exit_code, merge.conflicts) == ("failed", 4, 4)
    assert "4 times" in (merge.error or "")
    assert table.progress() == {}


def test_a_deadline_ends_the_retries(table: Where) -> None:
    fill(table)
    merge = run(
        table,
        table=FaultyTable(table.merger().table, "before", LostRace("always"), faults_max=999),
        limits=MergeLimits(conflict_attempts_max=999, conflict_seconds_max=3.0),
    )
    assert (merge.outcome, merge.exit_code) == ("failed", 4)
    assert "within 3 s" in (merge.error or "")


class FaultyTable:
    """A MergeTable whose commits fail, before or after they land."""

    def __init__(
        self,
        inner: Any,
        when: str,
        error: Exception | None = None,
        *,
        faults_max: int = 1,
    ) -> None:
        self.inner = inner
        self.when = when
        self.error = error or StoreUnavailable("the reply was lost")
        self.faults = 0
        self.faults_max = faults_max

    def fold(self, *arguments: Any) -> Fold:
        return FaultyFold(self, self.inner.fold(*arguments))


class FaultyFold:
    def __init__(self, table: FaultyTable, inner: Any) -> None:
        self.table, self.inner = table, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def rebase(self, view: Any) -> FaultyFold:
        return FaultyFold(self.table, self.inner.rebase(view))

    def commit(self, *arguments: Any) -> Any:
        if self.table.faults >= self.table.faults_max:
            return self.inner.commit(*arguments)
        self.table.faults += 1
        if self.table.when == "after":
            self.inner.commit(*arguments)
        raise self.table.error


@pytest.mark.parametrize(
    ("said", "latest", "expected"),
    [
        ("Encountered corrupt file t.lance: 15 physical rows but 24 deleted rows", 3, Corruption),
        ("Retryable commit conflict for version 13", 3, LostRace),
        ("connection reset by peer", 3, StoreUnavailable),
        ("LanceError(IO): Generic N/A error: Not found: /t/data/a.lance", 3, Corruption),
        ("LanceError(IO): Generic N/A error: Not found: /t/data/a.lance", 4, StoreUnavailable),
        ("LanceError(IO): Generic N/A error: Not found: /t/data/a.lance", None, StoreUnavailable),
    ],
)
def test_what_became_of_a_commit(said: str, latest: int | None, expected: type[Exception]) -> None:
    class Base:
        version = 3

        @property
        def latest_version(self) -> int:
            if latest is None:
                raise OSError("connection reset by peer")
            return latest

    def fail() -> None:
        raise OSError(said)

    with pytest.raises(expected):
        run_commit(Base(), fail)
