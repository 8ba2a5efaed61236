"""What `memwal watch` reports: an event when something happens, and a summary at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memwal.errors import MemWalError
from memwal.grid import format_size
from memwal.jobs.watch.plan import Lag, Need
from memwal.jobs.watch.ports import Event, RoundEnd
from memwal.report import NOTHING_TO_DO, JobOnTable, JobReport, Section
from memwal.text import count_of, iso_time

_LOOKED = (
    *("version", "shards", "pending_generations", "pending_bytes"),
    *("reclaimable_generations", "reclaimable_bytes"),
)


class WatchReport(JobReport):
    """What a watch did in all, its tables by their last rounds.

    `lag_seconds_max` is the worst lag that a look found, in the stage flushed, merged or indexed.
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
        "unflushed_seconds": lag.state.unflushed_seconds,
        "needs": list(need.jobs) if need else [],
        "reasons": list(need.reasons) if need else [],
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
    """Describe an event in one line: the time, the table, what happened, and its details."""
    at, details = (iso_time(event.at_nanos) or "")[:19], dict(event.details)
    what = ": ".join(filter(None, (event.event, details.pop("message", None))))
    facts = ", ".join(filter(None, (_describe(*pair) for pair in details.items())))
    return " ".join(filter(None, (f"{at}Z {event.table or 'watch'}:", what, facts)))


def _describe(name: str, value: Any) -> str:
    """A detail in words; empty for what is none, or nothing."""
    words = name.replace("_", " ")
    match value:
        case {**of_each}:
            value = " and ".join(f"{one} {n}" for one, n in of_each.items() if n)
        case list():
            value = " and ".join(map(str, value))
        case int() | float() if name.endswith("_seconds") or name == "seconds":
            words, value = words.removesuffix("seconds").strip(), value and f"{value:.1f} s"
        case int() if name.endswith("_bytes"):
            words, value = words.removesuffix(" bytes"), value and format_size(value)
    return f"{words} {value}".strip() if value else ""


def describe_end(report: WatchReport) -> str:
    """Sum up a watch in one line."""
    return (
        f"watch: {count_of(report.watched, 'table')}, {count_of(report.looks, 'look')}, "
        f"{count_of(report.rounds, 'round')}, "
        f"{count_of(report.rows, 'row')} merged, worst lag {report.lag_seconds_max:.1f} s, "
        f"in {report.seconds:.1f} s"
    )
