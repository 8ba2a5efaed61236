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

from memwal_airflow.outcomes import carry_over
from memwal_airflow.submission import Submission, find_folder

_KEY = "memwal_tries"


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A try that began, and the name of its job's folder."""

    number: int
    folder: str


def find_lost_try(context: Any) -> Begun | None:
    """The last try, if it began a job and never told how that ended."""
    begun = _read(context["task_state_store"])["begun"]
    return Begun(**begun) if begun else None


def find_lost_job(
    context: Any, directory: str, build_command: Callable[[Submission], list[str]]
) -> tuple[Submission | None, str | None]:
    """The job of a try that was lost, if it runs or has ended by itself, and what to tell of it.

    Only if it is the job that this try would start: `build_command` says which that is.
    """
    begun = find_lost_try(context)
    if begun is None:
        return None, None
    lost, again = f"Try {begun.number} was killed, or lost by Airflow", "starting again"
    job = find_folder(directory, begun.folder)
    argv = job.read_command() if job else None
    if job is None or argv is None:
        return None, f"{lost}; its job's folder is not here, so it may still run: {again}"
    ended = job.read_end()
    if argv != build_command(job):
        job.cancel()
        return None, f"{lost}; its job was another one: {again}"
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
            "begun": {"number": number, "folder": folder},
            "lost": known["lost"] + is_lost,
        },
    )


def end_try(
    context: Any, found: dict[str, Any], *, is_reported: bool, is_last: bool
) -> dict[str, Any]:
    """The summary of this try and of those before; forgets them all if this was the last."""
    number, store = context["ti"].try_number, context["task_state_store"]
    known = _read(store)
    before = [unseen for unseen in known["unseen"] if unseen != number]
    whole = carry_over(found, known["tables"], is_unseen=bool(before))
    if is_last:
        store.delete(_KEY)
    else:
        moved = [table for table in whole["tables"] if has_moved(table)]
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
    known = {"held_since": now_seconds, **_read(store)}
    store.set(_KEY, known)
    return now_seconds - float(known["held_since"])


def has_moved(table: dict[str, Any]) -> bool:
    """Whether a table of a summary was changed, by any of its jobs."""
    return any(part["progress"] for part in (table, *table.get("jobs", [])))


def _read(store: Any) -> dict[str, Any]:
    kept = store.get(_KEY) or {}
    return {"unseen": [], "tables": [], "begun": None, "lost": 0, **kept}
