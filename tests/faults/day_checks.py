"""What `airflow_day.py` holds a day to, as plain functions over what Airflow and memwal told.

Each returns findings: texts that name the task, event or table. None is well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMES_TROUBLE = {
    "damaged": r"manifest|corrupt",
    "unreachable": r"(?i)unreachable|timed? ?out|gave up|can't be reached",
    "held": r"lease",
    "missing": r"no such table|not found|does not exist",
}
"""What the text of a red task has to hold, by what is wrong with its table."""
JOBS = {
    "memwal_merge": "merge",
    "memwal_index_catchup": "index-catchup",
    "memwal_garbage": "garbage",
    "memwal_snapshot": "snapshot",
    "memwal_compaction": "compaction",
    "memwal_verify": "verify",
}
_OVER = {"success", "failed", "skipped", "upstream_failed", "removed"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task instance at the end of the day. `error` is what its last try said; `killed`: it was
    killed, and could say nothing.
    """

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    state: str | None
    tries: int = 1
    table: str | None = None
    error: str = ""
    killed: bool = False

    def __str__(self) -> str:
        place = "" if self.map_index < 0 else f"[{self.map_index}]"
        return f"{self.dag_id} {self.run_id} {self.task_id}{place} ({self.table or 'no table'})"


@dataclass(frozen=True, kw_only=True)
class Event:
    """An asset event, and the run whose task added it."""

    asset: str
    dag_id: str
    run_id: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"event {self.asset!r} of {self.dag_id} {self.run_id}"


def check_tasks(tasks: Iterable[Task], troubles: Mapping[str, str | None]) -> list[str]:
    """Every task is over, and a red one names what is wrong with its own table."""
    found = []
    for task in tasks:
        trouble = troubles.get(task.table or "")
        if task.state not in _OVER:
            found.append(f"{task}: still {task.state}")
        elif task.state == "upstream_failed":
            found.append(f"{task}: did not run for something else's failure")
        elif task.state == "failed" and trouble is None:
            found.append(f"{task}: red, with nothing wrong with its table: {task.error}")
        elif task.state == "failed" and trouble is not None:
            found += [] if task.killed else _check_error(task, trouble, troubles)
    return found


def _check_error(task: Task, trouble: str, troubles: Mapping[str, str | None]) -> list[str]:
    if not task.error:
        return [f"{task}: red, without a word"]
    if not re.search(NAMES_TROUBLE[trouble], task.error):
        return [f"{task}: red, and does not say that its table is {trouble}: {task.error}"]
    named = {name for name in troubles if re.search(rf"\b{re.escape(name)}\b", task.error)}
    if named != {task.table}:
        return [f"{task}: red, and names {', '.join(sorted(named)) or 'no table'}: {task.error}"]
    return []


def check_runs(states: Mapping[tuple[str, str], str], tasks: Iterable[Task]) -> list[str]:
    """A run is over, and red exactly if one of its tasks is. `states`: (DAG, run) -> state."""
    red = {(task.dag_id, task.run_id) for task in tasks if task.state == "failed"}
    found = []
    for run, state in states.items():
        if state not in ("success", "failed"):
            found.append(f"run {' '.join(run)}: still {state}")
        elif (state == "failed") != (run in red):
            number = "a" if run in red else "no"
            found.append(f"run {' '.join(run)}: {state}, with {number} red task")
    return found


def check_events(
    events: Iterable[Event],
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    troubles: Mapping[str, str | None],
    unseen: Collection[tuple[str, str, str]],
) -> list[str]:
    """An event is about a healthy table that its run has moved, and tells how far.

    `records` are the run records by table; `unseen` are (DAG, run, table) where a try's end may not
    have been seen: there an event may come without a record, once.
    """
    found = []
    told: Counter[tuple[str, str, str]] = Counter()
    for event in events:
        table = str(event.extra.get("table"))
        version = event.extra.get("version")
        job = JOBS.get(event.dag_id)
        if table not in troubles or job is None:
            found.append(f"{event}: of no table, or of no job of ours: {dict(event.extra)}")
            continue
        if troubles[table] is not None:
            found.append(f"{event}: {table} is {troubles[table]} and has not moved")
            continue
        told[event.asset, event.dag_id, event.run_id] += 1
        moved = [record for record in records.get(table, ()) if is_of(record, event, job)]
        versions = {record.get("version_after") for record in moved if has_moved(record)}
        is_unseen = (event.dag_id, event.run_id, table) in unseen
        if version is None:
            found.append(f"{event}: tells no version")
        elif version not in versions and not is_unseen:
            found.append(f"{event}: version {version}, but its run moved {table} to {versions}")
    found += [f"{number} events of {' '.join(key)}" for key, number in told.items() if number > 1]
    return found


def is_of(record: Mapping[str, Any], event: Event, job: str) -> bool:
    """Whether the record is of a job that a task of the event's run ran."""
    run = re.sub(r"[^A-Za-z0-9_.~:+@/=-]", "-", f"{event.dag_id}/{event.run_id}/")
    return record.get("job") == job and str(record.get("run_id")).startswith(run)


def has_moved(record: Mapping[str, Any]) -> bool:
    """Whether the run changed its table: another version, or something collected."""
    if record.get("outcome") not in ("done", "partial", "failed"):
        return False
    summary = record.get("summary") or {}
    collected = any(summary.get(name) for name in ("dropped", "deleted", "versions_expired"))
    return record.get("version_before") != record.get("version_after") or collected


def find_silent(
    events: Iterable[Event],
    records: Mapping[str, Sequence[Mapping[str, Any]]],
    jobs: Mapping[str, str],
) -> list[str]:
    """Progress that no event told of. `jobs`: the DAGs that announce, with their jobs."""
    told = {(event.dag_id, event.run_id, str(event.extra.get("table"))) for event in events}
    prefixes = {(d, t, re.sub(r"[^A-Za-z0-9_.~:+@/=-]", "-", f"{d}/{r}/")) for d, r, t in told}
    found = []
    for table, those in records.items():
        for record in those:
            dag_id, _, rest = str(record.get("run_id")).partition("/")
            if jobs.get(dag_id) != record.get("job") or not has_moved(record) or not rest:
                continue
            name = str(record["run_id"])
            if not any(d == dag_id and t == table and name.startswith(p) for d, t, p in prefixes):
                found.append(f"{name}: {table} moved to version {record.get('version_after')}, "
                             "and no event told of it")  # fmt: skip
    return found


def check_status(name: str, status: Mapping[str, Any]) -> list[str]:
    """A table at the day's end: nothing pending, indexed, collected, and nobody at work."""
    wanted = {
        "outcome": "done",
        "pending_generations": 0,
        "index_lag_generations": 0,
        "reclaimable_bytes": 0,
    }
    found = [
        f"{name}: {key} is {status.get(key)!r} at the end"
        for key, value in wanted.items()
        if status.get(key) != value
    ]
    lease = (status.get("lease") or {}).get("state")
    if lease == "held":
        found.append(f"{name}: its lease is still held")
    return found


def check_verified(name: str, report: Mapping[str, Any]) -> list[str]:
    """What `memwal verify` does not find in order."""
    broken = [check for check in report.get("checks", []) if check.get("ok") is False]
    if report.get("outcome") != "done" and not broken:
        return [f"{name}: verify: {report.get('error')}"]
    return [f"{name}: verify: {check['name']}: {check['detail']}" for check in broken]
