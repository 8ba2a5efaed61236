"""What `memwal watch` reports: an event when something happens, and a summary at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memwal.errors import MemWalError
from memwal.grid import format_size
from memwal.jobs.watch.plan import Lag, Need, Standing
from memwal.jobs.watch.ports import Event, RoundEnd
from memwal.report import NOTHING_TO_DO, JobOnTable, JobReport, Section
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

_RECLAIMABLE = ("reclaimable_generations", "reclaimable_bytes")
_LOOKED = ("version", "shards", "pending_generations", "pending_bytes", *_RECLAIMABLE)


class WatchReport(JobReport):
    """What a watch did in all, its tables by their last rounds.

    `lag_seconds_max` is the worst lag that a look found, in the stage merged or indexed.
    """

    watched: int = 0
    rounds: int = 0
    looks: int = 0
    rows: int = 0
    lag_seconds_max: float = 0.0


class EventDocument(Section, extra="allow"):
    """A line of `memwal watch --json`; besides, what an event of its kind tells."""

    at: str
    table: str | None
    event: str


def event_document(event: Event) -> dict[str, Any]:
    """An event as `--json` prints it."""
    at = iso_time(event.at_nanos, "milliseconds") or ""
    told = EventDocument(at=at, table=event.table, event=event.event, **event.details)
    return told.model_dump()


def describe_look(lag: Lag, need: Need | None, now: float) -> dict[str, Any]:
    """The details of a look event: what it found, and what has to be done now, if anything."""
    found = {name: getattr(lag.state, name) for name in _LOOKED}
    return {
        **found,
        "index_lag_generations": dict(lag.state.index_lag_generations),
        "oldest_pending_seconds": _round(lag.pending_seconds(now)),
        "oldest_unindexed_seconds": _round(lag.unindexed_seconds(now)),
        "needs": list(need.jobs) if need else [],
        "reasons": list(need.reasons) if need else [],
    }


def describe_space(lag: Lag) -> dict[str, Any]:
    """The details of a space event: what piles up on a table whose garbage nobody collects."""
    return {
        **{name: getattr(lag.state, name) for name in _RECLAIMABLE},
        "message": "nothing deletes them, their WAL or old versions: give --retention 7d, or set "
        "retention in memwal.toml",
    }


def describe_standing(standing: Standing, holder: str | None) -> dict[str, Any]:
    """The details of an explain event; `waits_for` is in the order in which it has to end."""
    need, begins = standing.need, standing.begins_in_seconds
    waits = list(standing.hindrances)
    if begins is None and not waits:
        waits.append("rows: nothing is pending, and no index is behind")
    elif begins:
        waits.append(f"{begins:.0f} s, or more rows: small flushes share a commit until then")
    if holder is not None:
        waits.append(f"the lease, which {holder}")
    if standing.after:
        waits.append(f"a worker; before it: {', '.join(standing.after)}")
    return {
        "priority": standing.target.priority,
        "freshness_seconds": standing.target.freshness_seconds,
        "lag_seconds": _round(standing.lag_seconds),
        "needs": list(need.jobs) if need else [],
        "reasons": list(need.reasons) if need else [],
        "begins_in_seconds": _round(begins),
        "looks_again_in_seconds": _round(standing.looks_again_in_seconds),
        "waits_for": waits,
    }


def describe_error(error: MemWalError, **more: Any) -> dict[str, Any]:
    """The details of an error; `exit_code` says whether to wait, to run again or to act."""
    return {"message": str(error), "exit_code": error.exit_code, "outcome": error.outcome, **more}


def describe_jobs(end: RoundEnd) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each job of a round that did something or failed, with the details of its event."""
    for job in end.report.jobs if end.report is not None else ():
        if job.report.outcome != NOTHING_TO_DO:
            yield job.job, _describe_job(job, end.seconds)


def _describe_job(job: JobOnTable, seconds: float) -> dict[str, Any]:
    report = job.report
    return {
        "outcome": report.outcome,
        "version": report.version_after,
        **report.summary(),
        "seconds": round(seconds, 3),
        **({"message": report.error} if report.error else {}),
    }


def count_rows(end: RoundEnd) -> int:
    """The rows that a round's merge inserted, updated and deleted."""
    jobs = end.report.jobs if end.report is not None else ()
    return sum(sum(job.report.count_rows().values()) for job in jobs if job.job == "merge")


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def describe_event(event: Event) -> str:
    """Describe an event in one line: the time, the table, what happened."""
    at = iso_time(event.at_nanos) or ""
    what = "" if event.event == "explain" else f" {event.event}"
    return f"{at[:19]}Z {event.table or 'watch'}:{what}{_describe(event)}"


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
        case "explain":
            return "".join(f"\n    {line}" for line in _explain(found))
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


def _explain(found: Mapping[str, Any]) -> Iterator[str]:
    lag = found["lag_seconds"]
    known = "not known" if lag is None else f"{lag:.0f} s"
    target, priority = found["freshness_seconds"], found["priority"]
    yield f"lag: {known}, of {target:g} s; priority {priority}"
    needs = " and ".join(found["needs"]) or "nothing now"
    reasons = "; ".join(found["reasons"])
    yield f"needs: {needs}" + (f", as {reasons}" if reasons else "")
    for text in found["waits_for"] or ["nothing: a watch begins at its next look"]:
        yield f"waits for: {text}"


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
