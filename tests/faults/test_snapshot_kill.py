"""Snapshot refreshes killed with SIGKILL at every step, and faults around their commits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwal.errors import LeaseHeld, LostRace, StoreUnavailable
from memwal.jobs.snapshot.plan import SnapshotTableReport
from memwal.testing import ManualClock
from tests.support import builders, snapshot_files
from tests.support.builders import KINDS, Put, Table
from tests.support.nursery import killed

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def refresh(table: Table, **settings: Any) -> SnapshotTableReport:
    return snapshot_files.refresh(table.stores, **{"clock": ManualClock(), **settings})


def merging(table: Table, step: str = "commit") -> Callable[[str], None]:
    """Merges everything right before the first commit: that commit then lowers progress."""
    done: list[object] = []

    def steps(name: str) -> None:
        if name == step and not done:
            done.extend(table.merge_all())

    return steps


def refresh_and_die(uri: str, shards: list[str], step: str, nth: int) -> None:
    """Runs in a process of its own, beside a merge that lands at the worst moment."""
    table = Table(uri=uri, kind=KINDS["int64"], shards=shards)  # type: ignore[arg-type]
    merge = merging(table)
    seen = 0

    def steps(name: str) -> None:
        nonlocal seen
        merge(name)
        seen += name == step
        if seen == nth and name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    refresh(table, steps=steps)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    table = builders.make_table(tmp_path / "t", rows=range(5), shards=2)
    for number, shard in enumerate(table.shards):
        table.flush(shard, Put([number, 10 + number], 1))
        table.flush(shard, Put([number, 20 + number], 2))
    return table


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("step", "nth"), [("commit", 1), ("committed", 1), ("repair", 1), ("commit", 2)]
)
def test_a_killed_refresh_is_finished_by_the_next_runs(table: Table, step: str, nth: int) -> None:
    assert killed(refresh_and_die, table.uri, table.shards, step, nth)
    truth = table.truth()
    assert table.lsm_rows().keys() == truth.keys()
    # Generations whose progress was overwritten are merged once more: the same rows.
    assert all(m.error is None for m in table.merge_all())
    builders.check_merged(table)
    refresh(table)
    assert refresh(table).outcome == "nothing_to_do"
    builders.check_merged(table)


class Failing:
    """A Snapshots port whose nth commit fails, before it lands or after."""

    def __init__(self, inner: Any, nth: int, error: Exception, *, lands: bool) -> None:
        self.inner, self.nth, self.error, self.lands = inner, nth, error, lands
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def commit(self, **arguments: Any) -> int:
        self.commits += 1
        if self.commits != self.nth:
            return int(self.inner.commit(**arguments))
        if self.lands:
            self.inner.commit(**arguments)
        raise self.error


@pytest.mark.parametrize("nth", [1, 2], ids=["first commit", "repair"])
@pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [LostRace("x"), StoreUnavailable("x")], ids=["race", "fault"])
def test_a_fault_never_leaves_progress_lowered(
    table: Table, nth: int, lands: bool, error: Exception
) -> None:
    failing = Failing(snapshot_files.store_of(table.stores), nth, error, lands=lands)
    result = refresh(table, snapshots=failing, steps=merging(table))
    assert failing.commits >= 2
    assert result.outcome == "done"
    assert table.progress() == dict.fromkeys(table.shards, 2)
    assert refresh(table).outcome == "nothing_to_do"


def test_a_lease_lost_after_the_commit_does_not_stop_the_repair(table: Table) -> None:
    asked: list[None] = []

    def before_commit() -> None:
        asked.append(None)
        if len(asked) > 1:
            raise LeaseHeld("lost")

    assert refresh(table, steps=merging(table), before_commit=before_commit).repairs == 1
    assert table.progress() == dict.fromkeys(table.shards, 2)
