"""The series that the page draws, made from run records. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from memwal_airflow.page.answers import Run

POINTS_MAX = 200
TREND_POINTS_MAX = 24


def backlog(runs: Sequence[Run], now: str | None, pending: Mapping[str, Any] | None) -> list[Any]:
    """Return the backlog before and after each run, oldest first, then the present one.

    A point is {"at", "generations", "bytes", "label"}; an unknown value is None.
    """
    points = []
    for run in reversed(runs):
        sizes = run.get("backlog") or {}
        for moment, when in (("before", "started_at"), ("after", "finished_at")):
            point = {
                "at": run[when],
                "generations": sizes.get(f"generations_{moment}"),
                "bytes": sizes.get(f"bytes_{moment}"),
                "label": f"{moment} {run['job']}",
            }
            if point["generations"] is not None or point["bytes"] is not None:
                points.append(point)
    if now is not None and pending is not None:
        points.append({"at": now, **pending, "label": "now"})
    points.sort(key=lambda point: str(point["at"]))
    return points[-POINTS_MAX:]


def throughput(runs: Iterable[Run]) -> list[Any]:
    """Return rows and bytes per second of each merge that moved something, oldest first."""
    points = []
    for run in runs:
        seconds = run.get("seconds") or 0
        if run["job"] != "merge" or seconds <= 0:
            continue
        rows = count_merged_rows(run)
        size = (run.get("summary") or {}).get("bytes_read")
        if rows or size:
            points.append(
                {
                    "at": run["finished_at"],
                    "rows": rows / seconds,
                    "bytes": None if size is None else size / seconds,
                    "label": f"merge of {rows} rows in {seconds:.1f} s",
                }
            )
    points.reverse()
    return points[-POINTS_MAX:]


def count_merged_rows(run: Run) -> int:
    """Count the rows that a merge inserted, updated or deleted."""
    summary = run.get("summary") or {}
    return sum(summary.get(f"rows_{what}") or 0 for what in ("inserted", "updated", "deleted"))


def trend(points: Sequence[Any]) -> list[int]:
    """Return the last backlogs in generations, for a sparkline."""
    return [p["generations"] for p in points if p["generations"] is not None][-TREND_POINTS_MAX:]


def iso(time: datetime | None) -> str | None:
    """Format a time as ISO text, to the millisecond; None for None."""
    return None if time is None else time.isoformat(timespec="milliseconds")
