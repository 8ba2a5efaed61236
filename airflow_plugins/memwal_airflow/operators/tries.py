"""What the earlier tries of a task did: Airflow forgets a try's XComs when the next one starts.

Its task state outlives a try, a deferral and a reschedule. A try writes down that it begins and in
which folder its job runs, and, if another one may follow, what it did and since when the lease is
held. A try that began and never came to its end was lost by Airflow: its worker was killed, or it
was found dead when it resumed. That is no failure of its job, which may have gone on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from memwal_airflow.operators.outcomes import carry_over
from memwal_airflow.operators.task_runs import describe_task
from memwal_airflow.processes.submission import Submission, find_folder

_KEY = "memwal_tries"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A try that began, the name of its job's folder, and how many tries its task had then.

    Clearing a task gives it more of them.
    """

    number: int
    folder: str
    max_tries: int


def find_lost_try(context: Any) -> Begun | None:
    """The last try, if it began a job and never told how that ended."""
    begun = _read(context["task_state_store"])["begun"]
    return Begun(**begun) if begun else None


def find_lost_job(
    context: Any, directory: str, build_command: Callable[[Submission], list[str]]
) -> tuple[Submission | None, str | None]:
    """The job of a try that was lost, if it runs or has ended by itself, and what to tell of it.

    Only if it is the job that this try would start: `build_command` says which that is. The state
    of a task can be edited by whoever may clear it: another task's folder is let alone.
    """
    begun = find_lost_try(context)
    if begun is None:
        return None, None
    lost, again = f"Try {begun.number} was killed, or lost by Airflow", "starting again"
    job = find_folder(directory, begun.folder)
    order = job.read_order() if job else {}
    if job is None or not _is_same(order.get("task"), context["ti"]):
        return None, f"{lost}; its job's folder is not here, so it may still run: {again}"
    ended = job.read_end()
    if order["argv"] != build_command(job):
        job.cancel()
        return None, f"{lost}; its job was another one: {again}"
    if ended is not None and begun.max_tries != context["ti"].max_tries:
        job.remove()
        return None, f"{lost}; the task was cleared after its job had ended: {again}"
    if ended is not None and ended.why is not None:
        job.remove()
        return None, f"{lost}; its job was {ended.why}: {again}"
    goes_on = "has ended by itself" if ended else "goes on"
    return job, f"{lost}, but its job {goes_on}: this try takes it over"


def begin_try(context: Any, folder: str) -> None:
    """Note that this try waits for the job in `folder`, which may change tables."""
    number, store = context["ti"].try_number, context["task_state_store"]
    known = _read(store)
    begun, unseen = known["begun"] or {}, {*known["unseen"], number}
    if begun.get("folder") == folder:
        # The same job: its end will be seen after all.
        unseen -= {begun["number"]} - {number}
    is_lost = begun.get("number", number) != number
    store.set(
        _KEY,
        {
            **known,
            "unseen": sorted(unseen),
            "begun": {"number": number, "folder": folder, "max_tries": context["ti"].max_tries},
            "lost": known["lost"] + is_lost,
        },
    )


def end_try(
    context: Any, found: dict[str, Any], *, is_reported: bool, is_held: bool, is_last: bool
) -> dict[str, Any]:
    """The summary of this try and of those before; forgets them all if this was the last.

    After a try that was not held up, a lease that is held is another one's.
    """
    number, store = context["ti"].try_number, context["task_state_store"]
    known = _read(store)
    if not is_held:
        known.pop("held_since", None)
    before = [unseen for unseen in known["unseen"] if unseen != number]
    whole = carry_over(found, known["tables"], is_unseen=bool(before))
    if is_last:
        store.delete(_KEY)
    else:
        moved = [t for t in whole["tables"] if has_moved(t) and not found.get("dry_run")]
        unseen = before if is_reported else known["unseen"]
        store.set(_KEY, {**known, "begun": None, "unseen": unseen, "tables": moved})
    return whole


def take_lost_try(context: Any) -> bool:
    """Whether Airflow lost a try that this task has not had back yet. It has, after this."""
    store = context["task_state_store"]
    known = _read(store)
    if not known["lost"]:
        return False
    store.set(_KEY, {**known, "lost": known["lost"] - 1})
    return True


def measure_hold(context: Any, now_seconds: float) -> float:
    """The seconds since a try of this task first found the lease held; 0 for the first."""
    store = context["task_state_store"]
    known = _read(store)
    # Another host's clock, or this one's before it was set, may have been ahead.
    since = min(now_seconds, float(known.get("held_since", now_seconds)))
    store.set(_KEY, {**known, "held_since": since})
    return now_seconds - since


def has_moved(table: dict[str, Any]) -> bool:
    """Whether a table of a summary was changed, by any of its jobs."""
    return any(part["progress"] for part in (table, *table.get("jobs", [])))


def _is_same(task: Any, instance: Any) -> bool:
    """Whether a job was started by a try of this task."""
    own = describe_task(instance)
    return isinstance(task, dict) and {**task, "try_number": own["try_number"]} == own


def _read(store: Any) -> dict[str, Any]:
    kept = store.get(_KEY) or {}
    return {"unseen": [], "tables": [], "begun": None, "lost": 0, **kept}
