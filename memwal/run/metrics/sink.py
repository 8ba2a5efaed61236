"""Every metric, the sink for them, and what reports add to its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from memwal.errors import MemWalError, error_of
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport

if TYPE_CHECKING:
    from memwal.model import TableState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Metrics.exposition`."""


class Metric(NamedTuple):
    """A metric as it is registered, and as the reference has it. `unit` is UCUM; empty: a count."""

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    labels: tuple[str, ...]
    unit: str
    text: str


METRICS = (
    Metric("gauge", "memwal_pending_generations", ("table",), "",
           "Flushed generations that the base table lacks."),
    Metric("gauge", "memwal_pending_bytes", ("table",), "By",
           "In-memory bytes of flushed generations that the base table lacks."),
    Metric("gauge", "memwal_oldest_pending_seconds", ("table",), "s",
           "Age of the oldest generation that the base table lacks; 0 where there is none."),
    Metric("gauge", "memwal_oldest_unindexed_seconds", ("table",), "s",
           "Age of the oldest merged generation that an index lacks; 0 where there is none."),
    Metric("gauge", "memwal_unflushed_seconds", ("table",), "s",
           "Age of the oldest acknowledged row that is in no generation; 0 where there is none."),
    Metric("gauge", "memwal_index_lag_generations", ("table", "index"), "",
           "How many generations the index is behind the merges, at its worst shard."),
    Metric("gauge", "memwal_reclaimable_bytes", ("table",), "By",
           "In-memory bytes of generations that are merged and covered by every index."),
    Metric("gauge", "memwal_freshness_target_seconds", ("table",), "s",
           "The lag that watch keeps the table under."),
    Metric("gauge", "memwal_abandoned_shards", ("table",), "",
           "Shards with unflushed rows whose writer is silent."),
    Metric("gauge", "memwal_lease_held_seconds", ("table",), "s",
           "For how long others have held the lease, and committed nothing; absent if none does."),
    Metric("gauge", "memwal_last_backup_timestamp_seconds", ("table",), "s",
           "The moment that the newest backup has, in seconds since 1970; 0: none is known."),
    Metric("gauge", "memwal_cursor_lag_versions", ("table", "cursor"), "",
           "Versions of the table after that of the cursor, by which changes are followed."),
    Metric("gauge", "memwal_cursor_age_seconds", ("table", "cursor"), "s",
           "Since when its consumer has not moved the cursor."),
    Metric("gauge", "memwal_consecutive_failures", ("table", "reason"), "",
           "Rounds or looks that failed in a row; absent where the last one did not."),
    Metric("gauge", "memwal_last_look_timestamp_seconds", ("table",), "s",
           "When a look at the table last succeeded, in seconds since 1970; 0: never."),
    Metric("histogram", "memwal_freshness_seconds", ("stage",), "s",
           "From a generation's flush until it was merged, or indexed."),
    Metric("counter", "memwal_runs_total", ("job", "outcome"), "",
           "Runs of a job on a table, dry runs too."),
    Metric("counter", "memwal_rows_total", ("job", "kind"), "",
           "Rows that runs committed."),
    Metric("counter", "memwal_requests_total", ("operation",), "",
           "Requests to object stores, without Lance's own."),
    Metric("counter", "memwal_retries_total", (), "",
           "Requests to object stores that had to be repeated."),
    Metric("counter", "memwal_conflicts_total", ("job",), "",
           "Commits that lost a race and were planned again."),
    Metric("counter", "memwal_worker_replacements_total", ("reason",), "",
           "Worker processes of watch that were replaced."),
)  # fmt: skip
"""Every metric, as it stands in Prometheus's text too: nothing adds a unit or `_total` to it."""

FRESHNESS_BUCKETS_SECONDS = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
    3600.0, 14400.0, 86400.0,
)  # fmt: skip

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

    def exposition(self) -> bytes:
        """All metrics in Prometheus's text format, of `CONTENT_TYPE`."""
        return b""

    def close(self) -> None:
        """Push what is to be pushed, within a few seconds, and end."""


NO_METRICS = Metrics()
