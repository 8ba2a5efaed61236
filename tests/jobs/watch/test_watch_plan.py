"""What a watch decides: properties that hold for any table, and what its settings come to."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.config import ResolvedTable, Settings, WatchSettings, make_settings
from memwal.jobs.status.plan import DueLimits
from memwal.jobs.watch.job import WatchOptions
from memwal.jobs.watch.plan import (
    Lag,
    LookUnderWay,
    Target,
    Waiting,
    assess,
    find_need,
    find_room,
    order_tables,
)
from memwal.testing import ManualClock
from tests.jobs.watch.worlds import OTHER, SHARD, FakeTable, World

NEVER = DueLimits(due_generations_min=10**6, due_bytes_min=10**18, due_age_seconds_min=1e12)
SECONDS = st.floats(0, 10_000)


def lag_of(table: FakeTable, clock: ManualClock, target: Target) -> Lag:
    world = World(tables={table.name: table}, clock=clock)
    world.start(world.watched(table.name).resolved)
    (end,) = world.collect()
    assert end.look is not None
    now = clock.monotonic_seconds()
    return assess(table.name, end.look, target, None, now=now, now_nanos=clock.now_nanos())


@given(st.lists(SECONDS, min_size=2, max_size=8), st.integers(0, 7), st.floats(1, 1e6))
def test_whoever_waits_is_served_before_any_other_is_twice(
    ages: list[float], hot: int, hopeless: float
) -> None:
    """Each wants a round all the time; one is later than all others, whatever is done for it."""
    names = [f"t{n}" for n in range(len(ages))]
    late = names[hot % len(names)]
    began = dict.fromkeys(names, -1.0)
    since = dict.fromkeys(names, 0.0)
    served = []
    for turn in range(1, 3 * len(names) + 1):
        now = float(turn)
        waiting = [
            Waiting(
                table=name,
                oldest=now - age - (hopeless * 1e6 if name == late else 0.0),
                freshness_seconds=60.0,
                since=since[name],
                last_began=began[name],
            )
            for name, age in zip(names, ages, strict=True)
        ]
        (first, *_) = order_tables(waiting, now=now)
        served.append(first)
        began[first], since[first] = now, now + 0.5
    for start in range(len(names)):
        assert set(served[start : start + 2 * len(names) - 1]) == set(names)


@settings(max_examples=60)
@given(
    st.floats(1, 3600),
    st.lists(st.floats(0, 7200), min_size=1, max_size=5),
    st.floats(0.1, 60),
    st.floats(0, 100),
)
def test_nothing_is_left_that_would_be_late_at_the_next_look(
    freshness: float, ages: list[float], look_seconds: float, round_seconds: float
) -> None:
    clock = ManualClock()
    table = FakeTable(name="t")
    for age in ages:
        table.flush(clock, ago=age)
    target = Target(freshness_seconds=freshness, due=NEVER)
    pace = {"look_seconds": look_seconds, "round_seconds": round_seconds}
    need = find_need(lag_of(table, clock, target), target, (), now=0.0, **pace)
    if need is None:
        assert max(ages) + look_seconds + round_seconds < freshness
        assert max(ages) < freshness / 2
    else:
        assert need.jobs == ("merge", "index-catchup")
        assert -need.oldest <= max(ages) + 1e-6


def test_looks_that_take_long_hold_up_others_only_of_a_store_that_answers_none() -> None:
    looks = [LookUnderWay(store="a", seconds=20.0, overdue=False) for _ in range(8)]
    assert find_room(looks, {"a": 1.0}, 16) == (8, set())
    assert find_room(looks, {"a": 20.0, "b": 1.0}, 16) == (12, set())
    looks += [LookUnderWay(store="a", seconds=1.0, overdue=False) for _ in range(4)]
    assert find_room(looks, {}, 16) == (12, {"a"})
    assert find_room(looks, {"a": 1.0}, 16) == (4, set())


def test_an_important_table_comes_first_and_no_other_waits_for_ever() -> None:
    """Two tables in three rounds are more than there is time for; the third has little to do."""
    priorities = {"hot": 9, "cold": 1, "usual": 5}
    flushed = dict.fromkeys(priorities, 0.0)
    began = dict.fromkeys(priorities, -1.0)
    served = []
    for turn in range(1, 61):
        now = float(turn)
        waiting = [
            Waiting(
                table=name,
                oldest=flushed[name],
                freshness_seconds=1.0,
                since=flushed[name],
                last_began=began[name],
                priority=priority,
            )
            for name, priority in priorities.items()
        ]
        (first, *_) = order_tables(waiting, now=now)
        served.append(first)
        flushed[first] = began[first] = now
    counts = {name: served.count(name) for name in priorities}
    assert counts["hot"] > counts["usual"] > counts["cold"] > 0
    assert set(served[-20:]) == set(priorities)


def test_a_round_that_takes_long_begins_early() -> None:
    clock = ManualClock()
    table = FakeTable(name="t")
    table.flush(clock, ago=5.0)
    target = Target(freshness_seconds=60.0, due=NEVER)
    lag = lag_of(table, clock, target)
    for round_seconds, is_needed in ((1.0, False), (30.0, True)):
        pace = {"look_seconds": 5.0, "round_seconds": round_seconds}
        assert (find_need(lag, target, (), now=0.0, **pace) is not None) == is_needed


def test_what_is_set_aside_is_not_worked_on_for_its_own_sake() -> None:
    clock = ManualClock()
    table = FakeTable(name="t")
    table.flush(clock, ago=100.0)
    target = Target(freshness_seconds=60.0)
    pace = {"look_seconds": 5.0, "round_seconds": 1.0}
    lag = lag_of(table, clock, target)
    assert find_need(lag, target, (), now=0.0, **pace) is not None
    assert find_need(lag, target, (SHARD,), now=0.0, **pace) is None
    merged = replace(table, merged={SHARD: 1}, indexed={OTHER: 1})
    lag = lag_of(merged, clock, target)
    found = find_need(lag, target, (), now=0.0, **pace)
    assert found is not None
    assert found.jobs == ("index-catchup",)
    assert find_need(lag, target, ("index by_n",), now=0.0, **pace) is None


def options(watch: WatchSettings) -> WatchOptions:
    return WatchOptions(tables=(), settings=watch, events=World(tables={}))


def test_garbage_is_collected_only_where_the_configuration_says_so() -> None:
    silent = WatchSettings()
    table = ResolvedTable(name="t", uri="/t", storage_options={}, settings=Settings())
    kept = table.with_settings(make_settings(retention=9e5))
    assert not options(silent).choose_target(table).target.collects
    assert options(silent).choose_target(kept).target.collects
