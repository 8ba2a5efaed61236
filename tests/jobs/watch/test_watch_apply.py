"""The loop of a watch, over tables that are numbers: who is worked on, when, and what is told."""

from __future__ import annotations

import pytest

from memwal.config import WatchSettings
from memwal.errors import Corruption, MemWalError, StoreUnavailable, Usage, WorkerDied
from memwal.jobs.watch.job import choose_watch_limits
from memwal.jobs.watch.ports import LookEnd, Watched
from tests.jobs.watch.worlds import OTHER, SHARD, FakeTable, World, one


def test_a_flush_is_merged_and_indexed_before_it_is_older_than_the_target() -> None:
    world, table = one()
    watch = world.watch(60.0)
    for _ in range(20):
        table.flush(world.clock)
        world.run(watch, 37.0)
    world.run(watch, 60.0)
    assert table.merged == table.indexed == {SHARD: 20}
    assert world.told("late") == world.told("error") == []
    assert watch.lag_seconds_max <= 60.0
    assert watch.rows == 20


def test_rows_that_stay_in_a_wal_count_as_lag_and_are_told_of_once() -> None:
    """No round can help; once they are flushed, the merge does not wait again."""
    world, table = one()
    watch = world.watch(limits={"upkeep_seconds": {"snapshot": 30.0}})
    table.unflushed[SHARD] = world.clock.now_nanos()
    world.run(watch, 200)
    (late,) = world.told("late")
    assert (late["stage"], late["freshness_seconds"]) == ("flushed", 60.0)
    (reason,) = late["reasons"]
    assert SHARD in reason and "`memwal rescue t`" in reason
    assert 170 < watch.lag_seconds_max < 200
    assert {round.jobs for _, round in world.rounds} == {("snapshot",)}
    table.flush(world.clock)
    flushed = world.clock.monotonic_seconds()
    world.run(watch, 40)
    began = next(at for at, round in world.rounds if "merge" in round.jobs)
    assert began - flushed < 31  # the next look's
    assert [fresh["lag_seconds"] for fresh in world.told("fresh")] == [0.0]


def test_a_plain_table_is_indexed_in_time_after_each_commit_and_left_alone_between() -> None:
    world, table = one(plain=True)
    watch = world.watch()
    for _ in range(3):
        table.version, table.committed_at_nanos = table.version + 1, world.clock.now_nanos()
        world.run(watch, 300)
    jobs = [round.jobs for _, round in world.rounds]
    assert jobs == [("index-catchup",)] * 3
    assert world.told("late") == world.told("error") == []


def test_a_generation_is_as_old_as_its_oldest_row() -> None:
    """One that is made at half of the target, and at that merged, keeps it."""
    world, table = one()
    watch = world.watch()
    table.unflushed[SHARD] = world.clock.now_nanos()
    world.run(watch, 31)
    table.flush(world.clock)
    world.run(watch, 29)
    assert table.merged == {SHARD: 1}
    assert world.told("late") == [] and 31 < watch.lag_seconds_max < 45


def test_tables_that_come_due_together_begin_early_enough_for_the_last() -> None:
    tables = {f"t{n}": FakeTable(name=f"t{n}", round_seconds=0.5) for n in range(28)}
    world = World(tables=tables)
    watch = world.watch(10.0, limits={"every_seconds": 1.0})

    def flush() -> None:
        for table in tables.values():
            table.flush(world.clock)

    for _ in range(4):
        world.run(watch, 15.0)
        flush()
    world.run(watch, 15.0)
    assert all(table.indexed == {SHARD: 4} for table in tables.values())
    assert watch.lag_seconds_max <= 10.0


def test_a_trigger_that_crosses_is_not_waited_with_and_indexes_are_folded() -> None:
    world, table = one()
    watch = world.watch(60.0)
    for _ in range(5):
        table.flush(world.clock)
    world.run(watch, 4.0)
    assert [work.jobs for _, work in world.rounds] == [("merge",)]
    world.run(watch, 40.0)
    assert [work.jobs for _, work in world.rounds] == [("merge",), ("index-catchup",)]
    assert world.rounds[1][0] >= 25.0


def test_an_idle_table_is_looked_at_as_rarely_as_its_target_allows() -> None:
    world, _ = one()
    watch = world.watch(60.0)
    world.run(watch, 600.0)
    world.looked.clear()
    world.run(watch, 3000.0)
    assert 90 <= len(world.looked) <= 106
    assert len(world.told("look")) == 1


def test_a_table_that_fails_is_left_alone_longer_each_time_and_the_reason_is_told_once() -> None:
    world = World(tables={name: FakeTable(name=name) for name in ("t", "well")}, slots=1)
    world.tables["t"].round_error = WorkerDied("it died")
    watch = world.watch(60.0)
    for table in world.tables.values():
        table.flush(world.clock)
    world.run(watch, 1200.0)
    failures = [at for at, work in world.rounds if work.table == "t"]
    assert 4 <= len(failures) <= 14
    assert failures[-1] - failures[-2] > 2 * (failures[1] - failures[0])
    (error,) = world.told("error")
    assert error["message"] == "it died"
    assert error["exit_code"] == 1
    assert len(world.told("late")) == 1
    assert world.told("late")[0]["reasons"] == ["it died"]
    assert world.tables["well"].merged == {SHARD: 1}
    world.tables["t"].round_error = None
    world.run(watch, 400.0)
    assert world.tables["t"].merged == {SHARD: 1}
    assert len(world.told("fresh")) == 1
    world.tables["t"].round_error = WorkerDied("it died")
    world.tables["t"].flush(world.clock)
    world.run(watch, 60.0)
    assert len(world.told("error")) == 2


def test_a_shard_that_fails_does_not_keep_the_others_of_its_table() -> None:
    world, table = one(flushed={SHARD: [], OTHER: []})
    table.shard_error = Corruption("MW-M01", "torn")
    watch = world.watch(60.0)

    def flush() -> None:
        for shard in (SHARD, OTHER):
            table.flush(world.clock, shard)

    world.run(watch, 300.0, flush)
    assert table.merged[SHARD] > 250
    assert OTHER not in table.merged
    (error,) = world.told("error")
    assert error["about"] == OTHER
    assert error["message"] == "torn (MW-M01)"


def test_what_cant_be_merged_is_told_once_and_never_tried() -> None:
    world, table = one(flushed={SHARD: [], OTHER: []}, sealed={OTHER})
    table.flush(world.clock, OTHER)
    watch = world.watch(60.0)
    world.run(watch, 600.0)
    assert world.rounds == []
    (error,) = world.told("error")
    assert "SEALED" in error["message"]
    assert error["exit_code"] == 5
    table.sealed.clear()
    world.run(watch, 60.0)
    assert table.merged == {OTHER: 1}


def test_a_round_that_says_it_is_done_and_brings_nothing_further_is_a_failure() -> None:
    world, table = one(idle=True)
    table.flush(world.clock)
    watch = world.watch(60.0)
    world.run(watch, 900.0)
    assert len(world.rounds) <= 12
    assert ["no further" in e["message"] for e in world.told("error")] == [True]


def test_an_index_that_never_catches_up_keeps_no_row_from_being_merged() -> None:
    world, table = one(deaf=True)
    watch = world.watch(60.0)
    world.run(watch, 100.0, lambda: table.flush(world.clock))
    behind = []
    for _ in range(30):
        world.run(watch, 10.0, lambda: table.flush(world.clock))
        behind.append(len(table.flushed[SHARD]) - table.merged[SHARD])
    assert max(behind) < 30
    assert [late["stage"] for late in world.told("late")] == ["indexed"]
    world.run(watch, 400.0)
    world.rounds.clear()
    world.run(watch, 900.0)
    assert len(world.rounds) < 12
    assert {error["about"] for error in world.told("error")} == {"index by_n"}


def test_a_lease_that_is_held_is_no_failure() -> None:
    world, table = one(held=True)
    table.flush(world.clock)
    watch = world.watch(60.0)
    world.run(watch, 120.0)
    assert 10 <= len(world.rounds) <= 40
    assert world.told("error") == []
    table.held = False
    world.run(watch, 15.0)
    assert table.merged == {SHARD: 1}


def test_a_table_that_cant_be_looked_at_is_looked_at_again_later() -> None:
    error = StoreUnavailable("away")
    world = World(tables={name: FakeTable(name=name) for name in ("t", "well")})
    world.tables["t"].look_error = error
    watch = world.watch(60.0)
    world.tables["well"].flush(world.clock)
    world.run(watch, 600.0)
    assert 4 <= [name for _, name in world.looked].count("t") <= 12
    assert [e["message"] for e in world.told("error")] == [str(error)]
    assert world.tables["well"].merged == {SHARD: 1}
    world.tables["t"].look_error = None
    world.tables["t"].flush(world.clock)
    world.run(watch, 400.0)
    assert world.tables["t"].merged == {SHARD: 1}


def test_an_index_whose_entry_was_erased_is_not_late_at_once_but_caught_up_in_time() -> None:
    """As a compaction does, until its own catch-up puts the entry back."""
    world, table = one()
    watch = world.watch(60.0)
    table.flush(world.clock)
    world.run(watch, 300.0)
    assert table.indexed == {SHARD: 1}
    table.indexed, before = {}, len(world.rounds)
    world.run(watch, 70.0)
    assert [work.jobs for _, work in world.rounds[before:]] == [("index-catchup",)]
    assert world.told("late") == []
    table.indexed, table.deaf = {}, True
    world.run(watch, 200.0)
    assert [late["stage"] for late in world.told("late")] == ["indexed"]


def test_upkeep_runs_in_slack_time_and_more_rarely_where_there_is_nothing_to_do() -> None:
    world, table = one(idle=True)
    watch = world.watch(60.0, limits={"upkeep_seconds": {"snapshot": 100.0, "garbage": 100.0}})
    world.run(watch, 5000.0)
    snapshots = [at for at, work in world.rounds if "snapshot" in work.jobs]
    assert 4 <= len(snapshots) <= 9
    busy, table = one()
    watch = busy.watch(60.0, limits={"upkeep_seconds": {"snapshot": 100.0}})
    busy.run(watch, 500.0, lambda: table.flush(busy.clock))
    assert 3 <= sum("snapshot" in work.jobs for _, work in busy.rounds) <= 6
    assert busy.told("late") == []


def test_fragments_stay_few_as_long_as_rows_come() -> None:
    """Compaction follows the merge that advises it; no key has to be set for that."""
    world, table = one()
    upkeep = choose_watch_limits(WatchSettings(), []).upkeep_seconds
    watch = world.watch(limits={"upkeep_seconds": upkeep})
    most = [0]

    def write() -> None:
        if int(world.clock.monotonic_seconds()) % 60 == 0:
            table.flush(world.clock)
        most[0] = max(most[0], table.fragments)

    world.run(watch, 2 * 3600, write)
    assert 32 <= most[0] <= 34
    assert len([round for _, round in world.rounds if "merge" in round.jobs]) >= 119
    assert world.told("late") == []
    never = world.watched("t", compacts=False)
    watch.watch([never])
    assert "compaction" not in watch.tables["t"].upkeep_seconds


def test_long_upkeep_never_holds_up_another_table() -> None:
    names = "abcd"
    world = World(tables={n: FakeTable(name=n, upkeep_seconds=500.0) for n in names})
    watch = world.watch(60.0, limits={"upkeep_seconds": {"compaction": 100.0}})
    for _ in range(24):
        for name in names:
            world.tables[name].flush(world.clock)
        world.run(watch, 100.0)
        keeping = {work.table for _, _, work in world.running if work.has_upkeep}
        assert len(keeping) <= 1
        assert {n for n in names if watch.tables[n].late_since is not None} <= keeping
    assert {work.table for _, work in world.rounds if work.has_upkeep} == set(names)


def test_upkeep_waits_while_a_table_is_late() -> None:
    world, table = one()
    table.round_error = WorkerDied("it died")
    table.flush(world.clock, ago=100.0)
    watch = world.watch(60.0, limits={"upkeep_seconds": {"snapshot": 50.0}})
    world.run(watch, 600.0)
    assert not any("snapshot" in work.jobs for _, work in world.rounds)


@pytest.mark.parametrize("broken", ["sealed", "torn"])
def test_a_table_that_stays_late_has_its_upkeep_all_the_same(broken: str) -> None:
    """Nothing of it would be collected any more for the sake of one shard."""
    sealed = {OTHER} if broken == "sealed" else set()
    world, table = one(flushed={SHARD: [], OTHER: []}, sealed=sealed)
    table.shard_error = Corruption("MW-M01", "torn") if broken == "torn" else None
    table.flush(world.clock, OTHER)
    watch = world.watch(60.0, limits={"upkeep_seconds": {"garbage": 300.0}})
    world.run(watch, 3000.0)
    assert watch.tables["t"].late_since is not None
    assert 3 <= sum("garbage" in work.jobs for _, work in world.rounds) <= 6


def test_upkeep_comes_long_after_the_rounds_that_a_late_table_waits_for() -> None:
    world, table = one(held=True)
    table.flush(world.clock, ago=100.0)
    watch = world.watch(60.0, limits={"upkeep_seconds": {"garbage": 60.0}})
    world.run(watch, 590.0)
    assert len(world.rounds) > 50
    assert not any("garbage" in work.jobs for _, work in world.rounds)
    world.run(watch, 120.0)
    assert any("garbage" in work.jobs for _, work in world.rounds)


def test_upkeep_that_fails_is_put_off_itself() -> None:
    world, _ = one(round_error=WorkerDied("it died"))
    watch = world.watch(60.0, limits={"upkeep_seconds": {"garbage": 50.0}})
    world.run(watch, 3000.0)
    assert 1 <= len(world.rounds) <= 9


def test_a_store_that_never_answers_holds_up_no_other_table() -> None:
    names = [f"hung {number}" for number in range(3)]
    world = World(tables={name: FakeTable(name=name) for name in [*names, "t"]})
    world.hung = {f"/{name}" for name in names}
    watch = world.watch(60.0, limits={"looks_max": 2, "look_seconds_max": 5.0})
    world.tables["t"].flush(world.clock)
    world.run(watch, 60.0)
    assert world.tables["t"].merged == {SHARD: 1}
    assert [name for _, name in world.looked if name != "t"] == names
    assert all("5 s so far" in world.told("error", name)[0]["message"] for name in names)


def test_a_silent_store_of_many_tables_holds_up_no_table_of_another() -> None:
    silent = [f"hung {number:03}" for number in range(50)]
    well = [f"well {number}" for number in range(10)]
    world = World(tables={name: FakeTable(name=name) for name in [*silent, *well]})
    watch = world.watch(60.0)
    uris = {name: f"s3://silent/{name}" for name in silent} | {n: f"s3://well/{n}" for n in well}
    watch.watch([world.watched(name, uri=uri) for name, uri in uris.items()])
    world.hung = {uris[name] for name in silent}
    for name in well:
        world.tables[name].flush(world.clock)
    world.run(watch, 30.0)
    assert len(world.lost) < 40  # each has a thread
    world.run(watch, 25.0)
    assert all(world.tables[name].merged == {SHARD: 1} for name in well)
    assert not any(world.told("late", name) for name in well)
    world.run(watch, 200.0)
    assert {name for _, name in world.looked} == {*silent, *well}


def test_a_table_that_gets_another_address_is_looked_at_there() -> None:
    world, table = one()
    world.hung = {"/t"}
    watch = world.watch(60.0)
    world.run(watch, 1.0)
    there = world.watched("t").resolved.model_copy(update={"uri": "/elsewhere"})
    world.again.append([Watched(resolved=there, target=world.watched("t").target)])
    table.flush(world.clock)
    world.run(watch, 10.0)
    world.looks.append(LookEnd(table=world.lost[0], error=StoreUnavailable("away")))
    world.run(watch, 35.0)
    assert world.told("error") == []
    assert table.merged == {SHARD: 1}


def test_tables_come_and_go_with_the_configuration() -> None:
    world = World(tables={name: FakeTable(name=name) for name in ("a", "b")})
    watch = world.watch(60.0)
    world.run(watch, 20.0)
    world.again.append(Usage("broken: line 3"))
    world.run(watch, 20.0)
    (error,) = world.told("error", None)
    assert error["message"] == "broken: line 3"
    assert set(watch.tables) == {"a", "b"}
    world.tables["c"] = FakeTable(name="c")
    for name in ("a", "b", "c"):
        world.tables[name].flush(world.clock)
    world.again.append([world.watched("b"), world.watched("c")])
    world.run(watch, 60.0)
    assert len(world.told("fresh", None)) == 1
    assert set(watch.tables) == {"b", "c"}
    assert [event.table for event in world.events if event.event == "gone"] == ["a"]
    assert world.tables["a"].merged == {}
    assert world.tables["b"].merged == world.tables["c"].merged == {SHARD: 1}


def test_a_namespace_that_cant_be_listed_is_told_once_and_takes_no_table_away() -> None:
    world, table = one()
    unlisted: dict[str, MemWalError] = {"lake:*": StoreUnavailable("lake:*: away")}
    watch = world.watch(60.0, find_unlisted=lambda: dict(unlisted))
    table.flush(world.clock)
    world.run(watch, 60.0)
    assert table.merged == {SHARD: 1}
    (error,) = world.told("error", None)
    assert (error["message"], error["exit_code"], error["kept"]) == ("lake:*: away", 1, 1)
    unlisted.clear()
    world.run(watch, 60.0)
    assert world.told("fresh", None) == [{"message": "lake:*: can be listed again"}]


def test_a_table_that_goes_away_finishes_its_round() -> None:
    world, table = one(round_seconds=30.0)
    table.flush(world.clock, ago=100.0)
    watch = world.watch(60.0)
    world.run(watch, 1.0)
    assert len(world.running) == 1
    world.again.append([])
    world.run(watch, 20.0)
    assert list(watch.tables) == ["t"]
    world.run(watch, 20.0)
    assert watch.tables == {}
    assert len(world.told("merge")) == len(world.told("gone")) == 1


def test_once_serves_each_table_once_and_ends() -> None:
    world = World(tables={name: FakeTable(name=name) for name in ("a", "b", "lost", "idle")})
    world.tables["lost"].look_error = Usage("no such table")
    for name in ("a", "b"):
        world.tables[name].flush(world.clock)
    watch = world.watch(60.0, once=True)
    world.run(watch, 600.0)
    assert watch.is_over
    assert world.clock.monotonic_seconds() < 20.0
    outcomes = {name: state.report.outcome for name, state in watch.tables.items() if state.report}
    assert outcomes == {"a": "done", "b": "done", "lost": "failed", "idle": "nothing_to_do"}


def test_a_dry_run_of_once_says_what_would_be_done_and_ends() -> None:
    world = World(tables={name: FakeTable(name=name) for name in ("due", "idle")})
    world.tables["due"].flush(world.clock)
    watch = world.watch(60.0, once=True, acts=False)
    world.run(watch, 600.0)
    assert watch.is_over
    assert world.rounds == []
    outcomes = {name: state.report.outcome for name, state in watch.tables.items() if state.report}
    assert outcomes == {"due": "done", "idle": "nothing_to_do"}
    assert [told["needs"] for told in world.told("look", "due")] == [["merge", "index-catchup"]]


def test_a_watch_that_nobody_hears_or_is_to_stop_begins_nothing_and_takes_in_what_runs() -> None:
    world, table = one(round_seconds=30.0)
    table.flush(world.clock, ago=100.0)
    watch = world.watch(60.0)
    world.run(watch, 1.0)
    world.is_heard = False
    assert watch.is_over
    world.is_heard = True
    watch.end()
    assert watch.is_over
    looks = len(world.looked)
    world.clock.advance(20.0)  # a look is due
    watch.turn()
    watch.finish()
    assert table.merged == {SHARD: 1}
    assert len(world.told("merge")) == 1
    assert (len(world.looked), len(world.rounds)) == (looks, 1)
