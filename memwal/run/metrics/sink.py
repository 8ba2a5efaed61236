"""The sink for metrics, and what reports add to its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal

from memwal.errors import MemWalError, error_of
from memwal.model import TableState
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Metrics.exposition`."""

Stage = Literal["merged", "indexed"]

Labels = tuple[tuple[str, str], ...]
Counts = Counter[tuple[str, Labels]]
"""Increments of counters, keyed by the counter's name and its sorted labels."""


def count_report(report: JobReport) -> Counts:
    """What a report adds to the counters; a run that has no tables still counts as one run."""
    total = count_requests(report.requests)
    if not report.tables:
        total[_key("memwal_runs_total", job=report.job, outcome=report.outcome)] += 1
    for table in report.tables:
        total.update(count_table(report.job, table, acted=not report.dry_run))
    return total


def count_table(job: str, report: TableReport, *, acted: bool = True) -> Counts:
    """What a table's report adds to the counters, including the jobs that it chains."""
    counts: Counts = Counter()
    counts[_key("memwal_runs_total", job=job, outcome=report.outcome)] += 1
    for inner in getattr(report, "jobs", ()):
        counts.update(count_table(inner.job, inner.report, acted=acted))
    if acted:
        for kind, rows in report.count_rows().items():
            counts[_key("memwal_rows_total", job=job, kind=kind)] += rows
        if conflicts := sum(_find_conflicts(report)):
            counts[_key("memwal_conflicts_total", job=job)] += conflicts
    return counts


def _find_conflicts(report: TableReport) -> Iterator[int]:
    parts = (report, *getattr(report, "shards", ()), *getattr(report, "indexes", ()))
    return (getattr(part, "conflicts", 0) for part in parts)


def count_requests(requests: Mapping[str, int]) -> Counts:
    """What a report's `requests` add to the counters."""
    counts: Counts = Counter()
    for operation in ("list", "get", "put", "delete"):
        counts[_key("memwal_requests_total", operation=operation)] += requests.get(operation, 0)
    counts[_key("memwal_retries_total")] += requests.get("retries", 0)
    return +counts


def name_failure(report: TableReport) -> str | None:
    """The error class of a failed run on a table, for a label; None when it did not fail."""
    if report.outcome in (DONE, NOTHING_TO_DO):
        return None
    error = report.cause
    if not isinstance(error, MemWalError):
        error = error_of(report.exit_code, report.outcome, "")
    return type(error).__name__


def _key(name: str, **labels: str) -> tuple[str, Labels]:
    return name, tuple(sorted(labels.items()))


class Metrics:
    """Takes metrics and discards them; `Telemetry` keeps them."""

    def record_state(self, table: str, state: TableState) -> None:
        """Record how the table stands now, in place of what was known."""

    def forget_table(self, table: str) -> None:
        """Drop what is known of a table that is not looked at any more."""

    def record_freshness(self, stage: Stage, seconds: float) -> None:
        """Record how long after its flush a generation was merged or indexed, once for each."""

    def record_worker_replaced(self, reason: str) -> None:
        """Count a replaced worker process; `reason` is one of a few words."""

    def add(self, counts: Counts) -> None:
        """Raise counters."""

    def record_report(self, report: JobReport) -> None:
        """Record the outcome of a job on all its tables."""
        self.add(count_report(report))
        for table in report.tables:
            if table.state is not None:
                self.record_state(table.table, table.state)

    def record_table(self, job: str, report: TableReport, requests: Mapping[str, int]) -> None:
        """Record the outcome of a job on one table while the run goes on."""
        self.add(count_table(job, report) + count_requests(requests))

    def exposition(self, before: str = "") -> bytes:
        """All metrics in Prometheus's text format, of `CONTENT_TYPE`.

        `before` is a text that an earlier run wrote: counters continue from its values. They start
        from zero when it is not in that format.
        """
        return b""

    def close(self) -> None:
        """Push what is to be pushed, within a few seconds, and end."""


NO_METRICS = Metrics()
