"""What `top` shows of its looks: rows, rates, the order, and what keys do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memwal.errors import StoreUnavailable
from memwal.jobs.status.plan import measure_table
from memwal.jobs.top.plan import (
    RATE_SECONDS,
    SORTS,
    Asked,
    Counted,
    Row,
    Sample,
    choose_rows,
    count_merged,
    judge_need,
    make_row,
    press,
    queue_up,
    read_rows,
)
from memwal.jobs.watch.plan import Lag, Look, Target, Waiting, assess
from memwal.model import LeaseClaim, ShardId, TableView
from tests.support.views import make_generation, make_shard, make_state, make_version, make_view

SHARD = ShardId("00000000-0000-4000-8000-000000000001")
SECOND = 10**9
NOW = 1_000 * SECOND
TARGET = Target(freshness_seconds=60.0)
CLAIM = LeaseClaim(
    token=3,
    claim_id="c",
    holder="anna@host:7",
    job="merge",
    acquired_at_nanos=NOW - 5 * SECOND,
    expires_at_nanos=NOW + 60 * SECOND,
)


def view(*rows: int | None, merged: int = 0, caught_up: int = 0) -> TableView:
    """A table with one shard, whose generations have so many rows."""
    listed = [make_generation(n, 100, count) for n, count in enumerate(rows, start=1)]
    state = make_state(merged={SHARD: merged}, index_catchup={"by_n": {SHARD: caught_up}})
    shard = make_shard(SHARD, listed, merged=merged)
    return make_view(
        shard, state=state, manifest=make_version(state, "by_n"), primary_key=("k",)
    )  # fmt: skip


def lag(found: TableView, ago: float = 40.0) -> Lag:
    times = {
        (SHARD, g.generation): NOW - round(ago * SECOND)
        for g in found.shards[0].manifest.flushed_generations
    }
    look = Look(view=found, flushed_at_nanos=times, changed=True, requests={})
    return assess("t", look, TARGET, None, now=500.0, now_nanos=NOW)


def row(found: Lag, lease: LeaseClaim | None = None) -> Row:
    need = judge_need(found, TARGET, now=500.0, every_seconds=2.0)
    return make_row(found, need, lease, rows_per_second=1.5, now=500.0, now_nanos=NOW)


def test_an_index_without_recorded_progress_is_behind_by_all_that_is_merged() -> None:
    found = view(5, 6, merged=2)
    found = replace(found, mem_wal=replace(found.mem_wal, index_catchup={}))
    assert row(lag(found)).index_lag_generations == 2
    assert measure_table(found, (), NOW).index_lag_generations == 2


def test_a_row_says_what_a_look_found() -> None:
    found = row(lag(view(5, 6, merged=1)))
    assert (found.pending_generations, found.pending_bytes) == (1, 100)
    assert (found.oldest_pending_seconds, found.oldest_unindexed_seconds) == (40.0, 40.0)
    assert (found.index_lag_generations, found.rows_per_second) == (1, 1.5)
    assert found.needs == ("merge", "index-catchup")
    assert found.lag_seconds == 40.0
    assert not found.is_late
    assert replace(found, oldest_pending_seconds=61.0).is_late
    nothing = row(lag(view()))
    assert (nothing.lag_seconds, nothing.needs, nothing.error) == (0.0, (), None)
    assert not Row(table="unknown").is_late


def test_what_runs_is_what_holds_the_lease() -> None:
    found = row(lag(view()), CLAIM)
    assert (found.running, found.holder, found.running_seconds) == ("merge", "anna@host:7", 5.0)
    for over in (None, replace(CLAIM, released=True), replace(CLAIM, expires_at_nanos=NOW)):
        found = row(lag(view()), over)
        assert (found.running, found.holder, found.running_seconds) == (None, None, None)


def test_rows_are_counted_as_they_are_merged() -> None:
    before, after = view(5, 6, 7), view(5, 6, 7, 8, merged=2)
    assert count_merged(None, after) == 0
    assert count_merged(before, after) == 11
    assert count_merged(after, after) == 0
    assert count_merged(before, view(5, 6, merged=2)) == 11
    # Dropped by garbage since: the look before still has them.
    assert count_merged(before, replace(view(merged=2))) == 11
    assert count_merged(view(5, None), view(5, None, merged=2)) is None
    assert count_merged(view(5, None), view(5, None, merged=1)) == 5


def test_a_rate_is_of_the_last_minute() -> None:
    counted = Counted().add(0.0, 0.0)
    assert counted.rate is None
    counted = counted.add(10.0, 100.0)
    assert counted.rate == 10.0
    counted = counted.grow(20.0, 0.0)
    assert counted.rate == 5.0
    late = counted.add(RATE_SECONDS + 15.0, 100.0)
    assert [at for at, _ in late.samples] == [20.0, RATE_SECONDS + 15.0]
    assert late.rate == 0.0
    restarted = counted.add(30.0, 7.0)
    assert (restarted.samples, restarted.rate) == (((30.0, 7.0),), None)
    assert counted.grow(30.0, None) == Counted()
    assert counted.add(20.0, 100.0).rate == 5.0
    assert Counted().add(1.0, 1.0).add(1.0, 2.0).rate is None


def waiting(table: str, oldest: float, priority: int = 5) -> Waiting:
    return Waiting(
        table=table, oldest=oldest, freshness_seconds=60.0, since=0.0, last_began=-1e9,
        priority=priority,
    )  # fmt: skip


def test_tables_queue_as_a_watch_would_take_them() -> None:
    rows = [Row(table=name) for name in "abcd"]
    rows[3] = replace(rows[3], running="merge")
    found = queue_up(rows, [waiting("a", 90.0), waiting("b", 50.0), waiting("d", 10.0)], now=100.0)
    assert [row.queue for row in found] == [2, 1, None, None]
    important = queue_up(rows, [waiting("a", 90.0, 9), waiting("b", 85.0, 1)], now=100.0)
    assert [row.queue for row in important] == [1, 2, None, None]


def sample(name: str, value: float, **labels: str) -> Sample:
    return Sample(f"memwal_{name}", labels, value)


def test_rows_of_a_watch_s_metrics() -> None:
    samples = [
        sample("pending_generations", 2, table="b"),
        sample("oldest_pending_seconds", 70, table="b"),
        sample("freshness_target_seconds", 60, table="b"),
        sample("index_lag_generations", 1, table="b", index="x"),
        sample("index_lag_generations", 4, table="b", index="y"),
        sample("lease_held_seconds", 12, table="b"),
        sample("queue_place", 7, table="b"),
        sample("last_look_timestamp_seconds", 0, table="a"),
        sample("consecutive_failures", 3, table="c", reason="StoreUnavailable"),
        sample("pending_bytes", float("nan"), table="c"),
        sample("requests_total", 5, operation="get"),
    ]
    a, b, c = read_rows(samples)
    assert (a.table, a.error, a.lag_seconds) == ("a", "not looked at yet", None)
    assert (b.pending_generations, b.index_lag_generations, b.is_late) == (2, 4, True)
    assert (b.running, b.running_seconds, b.error) == ("another run", 12, None)
    assert (b.queue, c.queue) == (7, None)
    assert (c.error, c.pending_bytes) == ("StoreUnavailable, 3 times", None)


ROWS = [
    Row(table="b", oldest_pending_seconds=5.0, queue=2),
    Row(table="a", oldest_pending_seconds=9.0, queue=1),
    Row(table="Cc"),
    Row(table="d", oldest_pending_seconds=7.0),
    Row(table="z", error="away", cause=StoreUnavailable("away")),
]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (Asked(), ["z", "a", "d", "b", "Cc"]),
        (Asked(reverse=True), ["z", "b", "d", "a", "Cc"]),
        (Asked(sort="table"), ["Cc", "a", "b", "d", "z"]),
        (Asked(sort="queue"), ["z", "a", "b", "Cc", "d"]),
        (Asked(text="c"), ["Cc"]),
    ],
)
def test_the_order(asked: Asked, names: list[str]) -> None:
    assert [row.table for row in choose_rows(ROWS, asked)] == names


def pressed(*keys: str, rows: int = 10, lines: int = 4) -> Asked | None:
    asked: Asked | None = Asked()
    for key in keys:
        assert asked is not None
        asked = press(asked, key, rows=rows, lines=lines)
    return asked


def test_keys() -> None:
    assert pressed("q") is None
    assert pressed("x") == Asked()
    assert pressed("r", "r") == Asked()
    assert pressed("r", "s") == Asked(sort="table")
    assert pressed(*"s" * len(SORTS)) == Asked()


def test_a_filter_is_typed() -> None:
    assert pressed("/", "q", "s", " ", "x", "backspace") == Asked(text="qs ", typing=True)
    assert pressed("/", "q", "up", "enter") == Asked(text="q")
    assert pressed("/", "q", "enter", "escape") == Asked()
    assert pressed("/", "q", "enter", "q") is None


@pytest.mark.parametrize(
    ("keys", "first"),
    [
        (["j", "down"], 2),
        (["j", "k", "up"], 0),
        ([" ", "page down"], 6),
        ([" ", "page up"], 0),
        (["end", "r"], 0),
    ],
)
def test_pages(keys: list[str], first: int) -> None:
    asked = pressed(*keys)
    assert asked is not None
    assert asked.first == first
