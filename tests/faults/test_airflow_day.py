"""The checkers of `airflow_day.py` find what they are there for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.day_checks import (
    Event,
    Task,
    check_events,
    check_runs,
    check_status,
    check_tasks,
    check_verified,
    find_silent,
)

TROUBLES = {"orders": None, "parts": None, "visits": "missing", "stock": "held"}
RUN = "scheduled__2026-11-23T02:00:00+00:00"


def task(state: str | None, table: str | None = "orders", error: str = "", **more: Any) -> Task:
    fields = {"dag_id": "memwal_merge", "run_id": RUN, "task_id": "merge", **more}
    return Task(state=state, table=table, error=error, **fields)


def event(table: str = "orders", version: int | None = 7, **more: Any) -> Event:
    fields = {"asset": f"memwal merged {table}", "dag_id": "memwal_merge", "run_id": RUN, **more}
    return Event(extra={"table": table, "version": version}, **fields)


def record(**more: Any) -> dict[str, Any]:
    return {
        "run_id": f"memwal_merge/{RUN}/merge:0/1",
        "job": "merge",
        "outcome": "done",
        "version_before": 6,
        "version_after": 7,
        "summary": {},
        **more,
    }


@pytest.mark.parametrize(
    "well",
    [
        task("success"),
        task("skipped"),
        task("failed", "visits", "memwal merge: exit code 2: merge: /lake/visits: no such table"),
        task("failed", "stock", "exit code 4: stock: the lease is held by somebody else"),
        task("failed", "stock", killed=True),
    ],
)
def test_a_task_that_is_as_it_should_be(well: Task) -> None:
    assert check_tasks([well], TROUBLES) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (task("running"), "still running"),
        (task(None), "still None"),
        (task("upstream_failed"), "did not run"),
        (task("failed", error="boom"), "nothing wrong with its table: boom"),
        (task("failed", None, "boom", task_id="plan"), "nothing wrong with its table"),
        (task("failed", "visits", ""), "without a word"),
        (task("failed", "visits", "visits: lease held"), "does not say that its table is missing"),
        (task("failed", "visits", "/lake/parts: no such table"), "names parts:"),
        (task("failed", "visits", "visits; /lake/parts: no such table"), "names parts, visits:"),
        (task("failed", "visits", "no such table"), "names no table"),
    ],
)
def test_a_task_that_is_not(bad: Task, says: str) -> None:
    (found,) = check_tasks([task("success"), bad], TROUBLES)
    assert says in found


def test_a_run_is_red_if_a_task_is() -> None:
    here, there = ("memwal_merge", RUN), ("memwal_merge", "other")
    red = [task("failed", "visits")]
    assert check_runs({here: "failed", there: "success"}, red) == []
    assert check_runs({here: "failed"}, []) == [f"run memwal_merge {RUN}: failed, with no red task"]
    assert check_runs({here: "success"}, red) == [
        f"run memwal_merge {RUN}: success, with a red task"
    ]
    assert check_runs({here: "running"}, red) == [f"run memwal_merge {RUN}: still running"]


def test_an_event_of_what_its_run_did() -> None:
    assert check_events([event()], {"orders": [record()]}, TROUBLES, set()) == []


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "its run moved orders to set()"),
        ([record(version_after=8)], "moved orders to {8}"),
        ([record(version_before=7)], "moved orders to set()"),
        ([record(job="snapshot")], "moved orders to set()"),
        ([record(run_id="memwal_merge/other/merge/1")], "moved orders to set()"),
    ],
)
def test_an_event_without_progress(records: list[dict[str, Any]], says: str) -> None:
    (found,) = check_events([event()], {"orders": records}, TROUBLES, set())
    assert says in found
    unseen = {("memwal_merge", RUN, "orders")}
    assert check_events([event()], {"orders": records}, TROUBLES, unseen) == []


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([event(version=None)], "tells no version"),
        ([event("stock")], "stock is held and has not moved"),
        ([event("strange")], "of no table"),
        ([event(dag_id="own")], "of no job of ours"),
        ([event(), event()], "2 events of memwal merged orders"),
    ],
)
def test_an_event_that_should_not_be(events: list[Event], says: str) -> None:
    (found,) = check_events(events, {"orders": [record()]}, TROUBLES, set())
    assert says in found


def test_garbage_moves_no_version() -> None:
    collected = record(job="garbage", run_id=f"memwal_garbage/{RUN}/garbage/1", version_before=7)
    told = event(dag_id="memwal_garbage")
    some = {**collected, "summary": {"dropped": 2}}
    assert check_events([told], {"orders": [some]}, TROUBLES, set()) == []
    (found,) = check_events([told], {"orders": [collected]}, TROUBLES, set())
    assert "set()" in found


def test_progress_that_no_event_told_of() -> None:
    jobs = {"memwal_merge": "merge"}
    assert find_silent([event()], {"orders": [record()]}, jobs) == []
    (found,) = find_silent([event("parts")], {"orders": [record()]}, jobs)
    assert "orders moved to version 7" in found
    assert find_silent([], {"orders": [record(run_id="by-hand")]}, jobs) == []


def test_a_tables_end() -> None:
    well = {"outcome": "done", "pending_generations": 0, "index_lag_generations": 0}
    well |= {"reclaimable_bytes": 0, "lease": {"state": "released"}}
    assert check_status("orders", well) == []
    for name in ("pending_generations", "index_lag_generations", "reclaimable_bytes"):
        assert check_status("orders", {**well, name: 1}) == [f"orders: {name} is 1 at the end"]
    assert check_status("orders", {**well, "lease": {"state": "held"}}) != []
    bad = {"ok": False, "name": "listed generations", "detail": "gone"}
    assert check_verified("orders", {"outcome": "done", "checks": [{"ok": None}]}) == []
    assert check_verified("orders", {"outcome": "failed", "checks": [bad]}) == [
        "orders: verify: listed generations: gone"
    ]
    assert check_verified("orders", {"outcome": "failed", "error": "away"}) == [
        "orders: verify: away"
    ]
