"""What a watch measures of looks and rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from memwal.errors import LeaseHeld, MemWalError, StoreUnavailable, WorkerDied
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.merge.report import MergeTableReport
from memwal.jobs.watch.metrics import Reached, WatchMetrics, find_fresh
from memwal.jobs.watch.plan import Generation, Round, TableLook, Target, assess
from memwal.jobs.watch.ports import RoundEnd
from memwal.model import ShardId, TableState
from memwal.report import JobOnTable
from memwal.run.metrics.sink import Counts, Metrics, Stage
from memwal.testing.objects import ManualClock
from tests.support.views import make_shard, make_state, make_version, make_view

A, B = ShardId("a"), ShardId("b")
SECOND = 10**9


class Kept(Metrics):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.states: dict[str, TableState] = {}
        self.fresh: list[tuple[Stage, float]] = []
        self.counts: Counts = Counts()

    def record_state(self, table: str, state: TableState) -> None:
        self.states[table] = state

    def forget_table(self, table: str) -> None:
        del self.states[table]

    def record_freshness(self, stage: Stage, seconds: float) -> None:
        self.fresh.append((stage, seconds))

    def add(self, counts: Counts) -> None:
        self.counts.update(counts)


def look(
    listed: Mapping[ShardId, list[int]],
    merged: Mapping[ShardId, int],
    indexed: Mapping[ShardId, int] | None = None,
    *,
    at: float = 100.0,
    flushed: Mapping[Generation, float] | None = None,
) -> TableLook:
    """Generation n was flushed at second n unless `flushed` says otherwise; committed `at`."""
    state = make_state(merged=merged, index_catchup={} if indexed is None else {"i": indexed})
    version = make_version(state, *([] if indexed is None else ["i"]))
    shards = [make_shard(s, g, merged=merged.get(s, 0)) for s, g in listed.items()]
    times = flushed or {(s, g): float(g) for s, many in listed.items() for g in many}
    return TableLook(
        view=make_view(
            *shards, state=state, manifest=replace(version, timestamp_nanos=int(at * SECOND))
        ),
        flushed_at_nanos={key: int(seconds * SECOND) for key, seconds in times.items()},
        changed=True,
        requests={"list": 2},
    )


def told(*looks: TableLook) -> list[list[tuple[Stage, float]]]:
    progress: Reached | None = None
    found = []
    for each in looks:
        fresh, progress = find_fresh(progress, each)
        found.append(sorted(fresh))
    return found


def test_each_generation_is_told_once_in_each_stage() -> None:
    found = told(
        look({A: [1, 2]}, {}, {}, at=10),
        look({A: [1, 2]}, {A: 1}, {}, at=11),
        look({A: [1, 2]}, {A: 2}, {A: 1}, at=12),
        look({A: [1, 2]}, {A: 2}, {A: 2}, at=13),
        look({A: []}, {A: 2}, {A: 2}, at=14),
    )
    assert found == [
        [],
        [("merged", 10.0)],
        [("indexed", 11.0), ("merged", 10.0)],
        [("indexed", 11.0)],
        [],
    ]


def test_what_comes_and_goes_between_two_looks_counts() -> None:
    """Flushed and merged between looks; collected before the look that would find it indexed."""
    found = told(
        look({A: []}, {}, {}),
        look({A: [1], B: [7]}, {A: 1, B: 7}, {A: 0}, at=20),
        look({A: [], B: [7]}, {A: 1, B: 7}, {A: 1, B: 7}, at=30),
    )
    assert found[1] == [("merged", 13.0), ("merged", 19.0)]
    assert found[2] == [("indexed", 23.0), ("indexed", 29.0)]


def test_what_was_through_or_told_before_is_not_told_again() -> None:
    """As when an older version is restored. Without an index, what is merged is indexed."""
    merged, restored = look({A: [1]}, {A: 1}, at=4), look({A: [1]}, {})
    both = [("indexed", 3.0), ("merged", 3.0)]
    assert told(restored, merged, restored, merged) == [[], both, [], []]
    assert told(merged, merged) == [[], []]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def observer(kept: Kept, clock: ManualClock) -> WatchMetrics:
    return WatchMetrics(metrics=kept, clock=clock)


def observe(observer: WatchMetrics, found: TableLook) -> None:
    clock = observer.clock
    lag = assess(
        "t", found, Target(freshness_seconds=60), None,
        now=clock.monotonic_seconds(), now_nanos=clock.now_nanos(),
    )  # fmt: skip
    observer.looked(found, lag)


def test_a_look_is_the_table_s_state(
    observer: WatchMetrics, kept: Kept, clock: ManualClock
) -> None:
    now = clock.now_nanos() / SECOND
    times = {(A, 1): now - 50, (A, 2): now - 30, (A, 3): now - 20}
    observe(observer, look({A: [1, 2, 3]}, {A: 1}, {A: 0}, flushed=times))
    found = kept.states["t"]
    assert found.pending_generations == 2
    assert found.index_lag_generations == {"i": 1}
    assert found.freshness_target_seconds == 60
    assert found.oldest_pending_at_nanos == pytest.approx((now - 30) * SECOND)
    assert found.oldest_unindexed_at_nanos == pytest.approx((now - 50) * SECOND)
    assert found.looked_at_nanos == clock.now_nanos()
    assert found.cursors == ()
    assert kept.counts == {("memwal_requests_total", (("operation", "list"),)): 2}
    observer.forgot("t")
    assert kept.states == {}


def end(outcome: str = "done", error: MemWalError | None = None, **fields: Any) -> RoundEnd:
    facts = {"table": "t", "outcome": outcome, **fields}
    merge = JobOnTable(job="merge", report=MergeTableReport(**facts))
    report = None if error else MaintainTableReport(**facts, jobs=(merge,))
    work = Round(table="t", jobs=("merge",))
    return RoundEnd(work=work, seconds=1.0, report=report, error=error, requests={"put": 1})


def test_failures_in_a_row_are_counted_with_their_reason(
    observer: WatchMetrics, kept: Kept
) -> None:
    observer.ended(end(error=WorkerDied("x")))
    observer.ended(end("failed", exit_code=8))
    assert (kept.states["t"].failures, kept.states["t"].reason) == (2, "Corruption")
    for _ in range(3):
        observer.failed("t", StoreUnavailable("x"))
    assert (kept.states["t"].failures, kept.states["t"].reason) == (3, "StoreUnavailable")
    observe(observer, look({A: [1]}, {}))
    assert (kept.states["t"].failures, kept.states["t"].reason) == (2, "Corruption")
    observer.ended(end())
    assert (kept.states["t"].failures, kept.states["t"].reason) == (0, None)
    runs = {
        " ".join(value for _, value in labels): n
        for (name, labels), n in kept.counts.items()
        if name == "memwal_runs_total"
    }
    assert runs == {"watch failed": 2, "merge failed": 1, "watch done": 1, "merge done": 1}
    assert kept.counts["memwal_requests_total", (("operation", "put"),)] == 3


@pytest.mark.parametrize("held", [end(error=LeaseHeld("x")), end("held", exit_code=4)])
def test_a_lease_that_another_run_holds_is_no_failure(
    observer: WatchMetrics, kept: Kept, clock: ManualClock, held: RoundEnd
) -> None:
    since = clock.now_nanos()
    observer.ended(held)
    clock.sleep(5)
    observer.ended(held)
    assert (kept.states["t"].lease_held_at_nanos, kept.states["t"].failures) == (since, 0)
    observer.ended(end())
    assert kept.states["t"].lease_held_at_nanos is None


def test_others_that_hold_the_lease_in_turns_and_get_on_do_not_hang(
    observer: WatchMetrics, kept: Kept, clock: ManualClock
) -> None:
    found = look({A: [1, 2]}, {A: 1})
    observe(observer, found)
    observer.ended(end(error=LeaseHeld("x")))
    since = clock.now_nanos()
    clock.sleep(5)
    observe(observer, look({A: [1, 2, 3]}, {A: 1}))
    assert kept.states["t"].lease_held_at_nanos == since
    observe(observer, replace(found, view=replace(found.view, version=found.view.version + 1)))
    assert kept.states["t"].lease_held_at_nanos is None


def test_a_table_that_no_look_has_succeeded_on_is_shown_as_never_seen(
    observer: WatchMetrics, kept: Kept
) -> None:
    observer.turn(["t", "u"])
    never = TableState(looked_at_nanos=0)
    assert kept.states == {"t": never, "u": never}
    observe(observer, look({A: [1]}, {}))
    observer.turn(["t", "u"])
    assert kept.states["t"].looked_at_nanos > 0 and kept.states["u"].pending_generations is None
    observer.forgot("u")
    observer.turn(["t"])
    assert list(kept.states) == ["t"]
