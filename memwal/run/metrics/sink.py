"""The sink for metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from memwal.clock import SystemClock
from memwal.model import TableGauges
from memwal.report import JobReport, TableReport
from memwal.run.metrics.counts import Counts, count_report, count_requests, count_table

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Metrics.exposition`."""

Stage = Literal["merged", "indexed"]


class Metrics:
    """Takes metrics and discards them; `Telemetry` keeps them."""

    def record_gauges(self, table: str, gauges: TableGauges) -> None:
        """Record the table's current gauges, replacing the previous ones."""

    def forget_table(self, table: str) -> None:
        """Drop the gauges of a table that is not looked at any more."""

    def record_freshness(self, stage: Stage, seconds: float) -> None:
        """Record how long after its flush a generation was merged or indexed, once for each."""

    def record_worker_replaced(self, reason: str) -> None:
        """Count a replaced worker process; `reason` is one of a few words."""

    def add(self, counts: Counts) -> None:
        """Raise counters."""

    def record_report(self, report: JobReport) -> None:
        """Record the outcome of a job on all its tables."""
        self.add(count_report(report))
        now = SystemClock().now_nanos()
        for table in report.tables:
            if (gauges := table.gauges(now)) is not None:
                self.record_gauges(table.table, gauges)

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
