"""What the earlier tries of a task did: Airflow forgets a try's XComs when the next one starts.

Its task state outlives a try, a deferral and a reschedule. A try writes down that it begins, and,
if another one may follow, what it did and since when the lease is held.
"""

from __future__ import annotations

from typing import Any

from memwal_airflow.outcomes import carry_over

_KEY = "memwal_tries"


def begin_try(context: Any) -> list[int]:
    """Note that this try may change tables; the numbers of those before whose end nobody saw."""
    number, store = context["ti"].try_number, context["task_state_store"]
    known = _read(store)
    store.set(_KEY, {**known, "unseen": sorted({*known["unseen"], number})})
    return [unseen for unseen in known["unseen"] if unseen != number]


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
        moved = [table for table in whole["tables"] if _has_moved(table)]
        unseen = before if is_reported else known["unseen"]
        store.set(_KEY, {**known, "unseen": unseen, "tables": moved})
    return whole


def measure_hold(context: Any, now_seconds: float) -> float:
    """The seconds since a try of this task first found the lease held; 0 for the first."""
    store = context["task_state_store"]
    known = {"held_since": now_seconds, **_read(store)}
    store.set(_KEY, known)
    return now_seconds - float(known["held_since"])


def _has_moved(table: dict[str, Any]) -> bool:
    return any(part["progress"] for part in (table, *table.get("jobs", [])))


def _read(store: Any) -> dict[str, Any]:
    return {"unseen": [], "tables": [], **(store.get(_KEY) or {})}
