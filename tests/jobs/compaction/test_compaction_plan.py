"""Which compaction tasks a run takes."""

from __future__ import annotations

from dataclasses import replace

from memwal.indexes import FragmentFacts
from memwal.jobs.compaction.plan import (
    CompactionLimits,
    CompactionTask,
    TableFragments,
    choose_tasks,
)

EACH = frozenset(FragmentFacts(fragment_id=n, rows=100) for n in range(12))
TABLE = TableFragments(version=3, each=EACH)
LIMITS = CompactionLimits()


def task(*fragments: int, file_bytes: int = 10) -> CompactionTask:
    return CompactionTask(version=3, fragment_ids=fragments, file_bytes=file_bytes, data="{}")


def test_no_task_is_no_work() -> None:
    found = choose_tasks(TABLE, [], LIMITS)
    assert (found.tasks, found.left_out, found.file_bytes) == ((), 0, 0)
    assert "none" in found.reason


def test_all_tasks_are_taken_within_the_limit() -> None:
    tasks = [task(0, 1), task(2, 3), task(4, 5)]
    found = choose_tasks(TABLE, tasks, LIMITS)
    assert found.tasks == tuple(tasks)
    assert found.file_bytes == 30
    assert "6 of 12 fragments" in found.reason
    assert "left" not in found.reason


def test_the_most_useful_tasks_come_first_and_the_rest_is_told() -> None:
    tasks = [task(0), task(1, 2), task(3, 4, 5), task(6, 7)]
    found = choose_tasks(TABLE, tasks, replace(LIMITS, compaction_tasks_max=2))
    assert found.tasks == (tasks[2], tasks[1])
    assert found.left_out == 2
    assert "2 tasks are left" in found.reason
