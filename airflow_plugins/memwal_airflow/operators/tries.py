"""What the earlier tries of a task did; Airflow drops a try's XComs when the next one starts.

Airflow's task state outlives a try, a deferral and a reschedule. In it a try records that it began
and in which folder its job runs, and, if another try may follow, what it did and since when the
lease has been held. A try that began but never recorded its end was lost by Airflow: its worker was
killed, or Airflow took it for dead when it resumed. That does not mean that its job failed; the job
may still be running.
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
    """A try that began, the name of its job's folder, and its task's `max_tries` at that time.

    Clearing a task raises `max_tries`.
    """

    number: int
    folder: str
    max_tries: int


def find_lost_try(context: Any) -> Begun | None:
    """Return the last try if it began a job and never recorded how that ended."""
    begun = _read(context["task_state_store"])["begun"]
    return Begun(**begun) if begun else None


def find_lost_job(
    context: Any, directory: str, build_command: Callable[[Submission], list[str]]
) -> tuple[Submission | None, str | None]:
    """Return the job of a lost try if it still runs or ended by itself, and a text about it.

    The job is returned only if it is the one that this try would start, whose command
    `build_command` gives. Whoever may clear a task can edit its state, so another task's folder is
    left alone.
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
    """Record that this try waits for the job in `folder`, which may change tables."""
    number, store = context["ti"].try_number, context["task_state_store"]
    known = _read(store)
    begun, unseen = known["begun"] or {}, {*known["unseen"], number}
    if begun.get("folder") == folder:
        # The same job as before: its end will be seen after all.
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
    """Return the summary of this and all earlier tries; if this was the last, forget them all.

    `is_held` says whether the lease was held in this try. If it was not, the time since it was
    first found held is reset: a lease that is held later is a different one.
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
    """Whether Airflow lost a try that the task was not given back; counts as given back now."""
    store = context["task_state_store"]
    known = _read(store)
    if not known["lost"]:
        return False
    store.set(_KEY, {**known, "lost": known["lost"] - 1})
    return True


def measure_hold(context: Any, now_seconds: float) -> float:
    """Return the seconds since a try of this task first found the lease held; 0 if this is it."""
    store = context["task_state_store"]
    known = _read(store)
    # The earlier time may be from a clock that was ahead: another host's, or this one's before it
    # was set.
    since = min(now_seconds, float(known.get("held_since", now_seconds)))
    store.set(_KEY, {**known, "held_since": since})
    return now_seconds - since


def has_moved(table: dict[str, Any]) -> bool:
    """Whether any job changed a table of a summary."""
    return any(part["progress"] for part in (table, *table.get("jobs", [])))


def _is_same(task: Any, instance: Any) -> bool:
    """Whether a try of this very task started the job."""
    own = describe_task(instance)
    return isinstance(task, dict) and {**task, "try_number": own["try_number"]} == own


def _read(store: Any) -> dict[str, Any]:
    kept = store.get(_KEY) or {}
    return {"unseen": [], "tables": [], "begun": None, "lost": 0, **kept}
