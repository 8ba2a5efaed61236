"""What people see of `memwal watch`: a line an event, and one for all at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memwal.grid import format_size
from memwal.jobs.watch.ports import Event
from memwal.jobs.watch.report import WatchReport
from memwal.text import count_of, iso_time

_COUNTS = (
    ("generations", "generations"),
    ("commits", "commits"),
    ("rows_inserted", "inserted"),
    ("rows_updated", "updated"),
    ("rows_deleted", "deleted"),
    ("indexes", "indexes"),
    ("rows_indexed", "rows indexed"),
    ("fragments_before", "fragments before"),
    ("fragments_after", "fragments after"),
    ("dropped", "generations dropped"),
    ("bytes_freed", "bytes freed"),
)


def describe_event(event: Event) -> str:
    """Describe an event in one line: the time, the table, what happened."""
    at = iso_time(event.at_nanos) or ""
    return f"{at[:19]}Z {event.table or 'watch'}: {event.event}{_describe(event)}"


def describe_end(report: WatchReport) -> str:
    """Sum up a watch in one line."""
    return (
        f"watch: {count_of(report.watched, 'table')}, {count_of(report.looks, 'look')}, "
        f"{count_of(report.rounds, 'round')}, "
        f"{count_of(report.rows, 'row')} merged, worst lag {report.lag_seconds_max:.1f} s, "
        f"in {report.seconds:.1f} s"
    )


def _describe(event: Event) -> str:
    found = event.details
    match event.event:
        case "look":
            return " " + ", ".join(_describe_look(found))
        case "late":
            text = f" by {found['lag_seconds'] - found['freshness_seconds']:.1f} s"
            reasons = "; ".join(found.get("reasons", ()))
            return f"{text}: not {found['stage']} yet" + (f": {reasons}" if reasons else "")
        case "fresh":
            late = found.get("late_seconds")
            return f" again, after {late:.1f} s" if late is not None else f": {found['message']}"
        case "space":
            count, size = found["reclaimable_generations"], found["reclaimable_bytes"]
            return f": {count} merged generations, {format_size(size)}; {found['message']}"
        case "gone":
            return f": {found['message']}"
        case "error":
            retry = found.get("retry_seconds")
            return f": {found['message']}" + (f" (again in {retry:.0f} s)" if retry else "")
    counts = [f"{found[key]} {name}" for key, name in _COUNTS if found.get(key)]
    message = [found["message"]] if found.get("message") else []
    return " " + ", ".join([found["outcome"], *counts, f"{found['seconds']:.2f} s", *message])


def _describe_look(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"version {found['version']}"
    pending, age = found["pending_generations"], found["oldest_pending_seconds"]
    yield f"{count_of(pending, 'generation')} pending" + (
        f" for {age:.0f} s" if age is not None else ""
    )
    behind = {name: lag for name, lag in found["index_lag_generations"].items() if lag != 0}
    if behind:
        indexes = "1 index" if len(behind) == 1 else f"{len(behind)} indexes"
        yield f"{indexes} behind for {found['oldest_unindexed_seconds'] or 0:.0f} s"
    if found["needs"]:
        yield "needs " + " and ".join(found["needs"])
