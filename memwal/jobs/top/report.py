"""What `memwal top --json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from memwal.jobs.top.plan import Row, Seen
from memwal.report import DONE, JobReport, TableReport, sum_up_tables


class TopTableReport(TableReport):
    """How a table stands. What is not known is null.

    `needs` are the jobs that a watch would run now, `queue` the table's place among those that need
    some and that nobody works on. `running` is the job that holds the lease. `rows_per_second` are
    merged. An `error` beside the outcome done keeps the table from being merged.
    """

    version: int | None = None
    pending_generations: int | None = None
    pending_bytes: int | None = None
    oldest_pending_seconds: float | None = None
    oldest_unindexed_seconds: float | None = None
    freshness_seconds: float | None = None
    index_lag_generations: int | None = None
    reclaimable_bytes: int | None = None
    rows_per_second: float | None = None
    needs: tuple[str, ...] = ()
    queue: int | None = None
    running: str | None = None
    holder: str | None = None
    running_seconds: float | None = None


class TopReport(JobReport):
    """How all tables stand.

    Where `source` is the address of a watch's metrics, `requests_per_second` are that watch's,
    without Lance's own, and cost `dollars_per_month`. Where it is null, they are of these looks.
    """

    source: str | None = None
    rows_per_second: float | None = None
    requests_per_second: float | None = None
    dollars_per_month: float | None = None


def report_top(seen: Seen, *, seconds: float, requests: Mapping[str, int]) -> TopReport:
    """The report of what was seen."""
    tables = tuple(map(_report_row, seen.rows))
    outcome, code = sum_up_tables(tables, DONE)
    return TopReport(
        job="top",
        outcome=outcome,
        exit_code=code,
        seconds=round(seconds, 3),
        tables=tables,
        requests=dict(requests),
        source=seen.source,
        rows_per_second=_round(seen.rows_per_second),
        requests_per_second=_round(seen.requests_per_second),
        dollars_per_month=_round(seen.dollars),
    )


def _report_row(row: Row) -> TopTableReport:
    facts: dict[str, Any] = {field.name: getattr(row, field.name) for field in fields(row)}
    facts |= {name: _round(fact) for name, fact in facts.items() if isinstance(fact, float)}
    if (cause := row.cause) is not None:
        facts |= {"exit_code": cause.exit_code}
    return TopTableReport(outcome=DONE if cause is None else cause.outcome, **facts)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
