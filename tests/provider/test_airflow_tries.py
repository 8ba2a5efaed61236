"""What is announced after several tries of one task; needs no Airflow."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memwal_airflow.operators.outcomes import summarize
from memwal_airflow.operators.task_runs import describe_task
from memwal_airflow.operators.tries import (
    Begun,
    begin_try,
    end_try,
    find_lost_job,
    find_lost_try,
    measure_hold,
    take_lost_try,
)
from memwal_airflow.processes.submission import Submission, make_folder


class Task:
    """One task, whose state outlives its tries."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        store = SimpleNamespace(
            get=self.kept.get, set=self.kept.__setitem__, delete=lambda key: self.kept.pop(key)
        )
        names = {"dag_id": "d", "run_id": "r", "task_id": "t", "map_index": None}
        self.context: dict[str, Any] = {
            "ti": SimpleNamespace(**names, try_number=0, max_tries=3),
            "task_state_store": store,
        }

    def begin(self, folder: str | None = None) -> None:
        self.context["ti"].try_number += 1
        begin_try(self.context, folder or f"folder-{self.context['ti'].try_number}")

    def end(self, report: dict[str, Any] | None, *, is_last: bool = False) -> dict[str, Any]:
        """The summary; {table: whether it moved} is `moved` of it."""
        found = summarize(report)
        outcomes = {"is_reported": report is not None, "is_held": found["outcome"] == "held"}
        return end_try(self.context, found, **outcomes, is_last=is_last)

    def try_once(self, report: dict[str, Any] | None, *, is_last: bool = False) -> dict[str, Any]:
        self.begin()
        return self.end(report, is_last=is_last)


def report(*tables: dict[str, Any]) -> dict[str, Any]:
    return {"job": "merge", "outcome": "failed", "tables": list(tables)}


def table(outcome: str, before: int | None, after: int | None, **more: Any) -> dict[str, Any]:
    versions = {"version_before": before, "version_after": after}
    return {"table": "t", "outcome": outcome, **versions, **more}


AWAY = table("failed", None, None, error="the store is away")
IDLE = table("nothing_to_do", 4, 4)
HALF = table("partial", 3, 4, shards=[{"shard_id": "a", "to_generation": 7}])


def moved(summary: dict[str, Any]) -> list[str]:
    return [found["table"] for found in summary["tables"] if found["progress"]]


@pytest.mark.parametrize(
    ("tries", "told"),
    [
        ([report(AWAY)] * 4, []),
        # Nothing to do after a try that failed is no progress.
        ([report(AWAY), report(IDLE)], []),
        # A job that left no report is as good as unseen.
        ([None, report(IDLE)], ["t"]),
        # A dry run moved nothing, whatever comes after it.
        ([{**report(HALF), "dry_run": True}, None], []),
    ],
)
def test_what_moved_is_told(tries: list[dict[str, Any] | None], told: list[str]) -> None:
    task = Task()
    found = [moved(task.try_once(each, is_last=n == len(tries))) for n, each in enumerate(tries, 1)]
    assert found[-1] == told


def test_what_an_earlier_try_did_is_told_however_the_last_one_ended() -> None:
    for last in (report(AWAY), report(IDLE), None):
        task = Task()
        task.try_once(report(HALF))
        task.try_once(report(AWAY))
        (found,) = task.try_once(last, is_last=True)["tables"]
        assert (found["progress"], found["version_after"]) == (True, 4)
        assert (found["watermark"], found["watermark_shards"]) == ({"a": 7}, 1)


def test_after_a_try_that_nobody_saw_the_end_of_the_table_itself_tells() -> None:
    task = Task()
    task.begin()
    task.begin()
    # It can't be looked at: nothing is told of it yet.
    assert moved(task.end(report(AWAY))) == []
    task.begin()
    assert moved(task.end(report(IDLE), is_last=True)) == ["t"]


def test_a_job_that_a_later_try_takes_over_is_seen() -> None:
    task = Task()
    assert find_lost_try(task.context) is None
    task.begin("its-folder")
    assert find_lost_try(task.context) == Begun(number=1, folder="its-folder", max_tries=3)
    task.begin("its-folder")
    assert find_lost_try(task.context) == Begun(number=2, folder="its-folder", max_tries=3)
    assert moved(task.end(report(AWAY))) == []
    assert find_lost_try(task.context) is None
    task.begin()
    assert moved(task.end(report(IDLE), is_last=True)) == []


def test_each_try_that_was_lost_is_had_back_once() -> None:
    task = Task()
    task.begin("its-folder")
    task.begin("its-folder")
    task.begin()
    task.end(report(AWAY))
    assert [take_lost_try(task.context) for _ in range(3)] == [True, True, False]
    # A look within the same try, and a try that came to its end.
    begin_try(task.context, "another")
    begin_try(task.context, "another")
    task.end(report(AWAY))
    task.begin()
    assert not take_lost_try(task.context)


def test_each_job_of_a_backfill_for_itself() -> None:
    merged = {"job": "merge", **table("done", 3, 4)}
    caught_up = {"job": "index-catchup", **table("done", 4, 5)}
    task = Task()
    task.try_once(report(table("partial", 3, 4, jobs=[merged])))
    idle = {"job": "merge", **IDLE}
    (found,) = task.try_once(report(table("done", 4, 5, jobs=[idle, caught_up])))["tables"]
    assert {job["job"]: job["progress"] for job in found["jobs"]} == {
        "merge": True,
        "index-catchup": True,
    }
    task = Task()
    task.try_once(report(table("failed", 3, 3, jobs=[{"job": "merge", **AWAY}])))
    (found,) = task.try_once(report(table("done", 4, 5, jobs=[idle, caught_up])))["tables"]
    assert [job["progress"] for job in found["jobs"]] == [False, True]


def test_once_it_is_over_nothing_is_kept() -> None:
    task = Task()
    task.try_once(report(HALF))
    task.try_once(report(IDLE), is_last=True)
    assert task.kept == {}
    assert moved(task.try_once(report(IDLE), is_last=True)) == []


def test_how_long_a_lease_is_held_is_counted_over_all_looks_and_tries() -> None:
    task = Task()
    held = {**report(table("held", None, None)), "outcome": "held"}
    waited = []
    for now in (100.0, 160.0):
        task.try_once(held)
        waited.append(measure_hold(task.context, now))
    # A look within the same try.
    begin_try(task.context, "another")
    task.end(held)
    assert [*waited, measure_hold(task.context, 220.0)] == [0, 60, 120]
    # It got the lease, and failed.
    task.try_once(report(AWAY))
    task.try_once(held)
    assert measure_hold(task.context, 9000.0) == 0
    task.try_once(report(IDLE), is_last=True)
    assert task.kept == {}
    # A clock that was ahead makes no look wait for it.
    assert measure_hold(task.context, 1e9) == 0
    assert [measure_hold(task.context, now) for now in (100.0, 160.0)] == [0, 60]


def lose(task: Task, directory: Path, *, ended: bool) -> Submission:
    """A job that a try began, which then was lost."""
    job = make_folder(str(directory), "x")
    task.begin(job.folder.name)
    order = {"argv": ["memwal", "merge"], "task": describe_task(task.context["ti"])}
    (job.folder / "order.json").write_text(json.dumps(order))
    if ended:
        (job.folder / "exit.json").write_text('{"exit_code": 0, "why": null}')
    task.context["ti"].try_number += 1
    return job


def find(task: Task, directory: Path) -> Path | None:
    found, _ = find_lost_job(task.context, str(directory), lambda job: ["memwal", "merge"])
    return None if found is None else found.folder


def test_what_a_job_found_before_its_task_was_cleared_is_not_told_again(tmp_path: Path) -> None:
    for ended in (False, True):
        task = Task()
        job = lose(task, tmp_path, ended=ended)
        assert find(task, tmp_path) == job.folder
        task.context["ti"].max_tries += 4
        assert find(task, tmp_path) == (None if ended else job.folder)
        assert job.folder.exists() != ended


def test_no_try_touches_the_job_of_another_task(tmp_path: Path) -> None:
    others = Task()
    others.context["ti"].run_id = "another"
    job = lose(others, tmp_path, ended=False)
    task = Task()
    # Somebody edited what the task keeps.
    task.begin(job.folder.name)
    task.context["ti"].try_number += 1
    found, told = find_lost_job(task.context, str(tmp_path), lambda job: ["memwal", "rescue"])
    assert (found, "starting again" in str(told)) == (None, True)
    assert not (job.folder / "cancel").exists()
    assert find(others, tmp_path) == job.folder
