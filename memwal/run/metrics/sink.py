"""Where measures go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from memwal.clock import SystemClock
from memwal.model import TableGauges
from memwal.report import JobReport, TableReport
from memwal.run.metrics.counts import Counts, count_report, count_requests, count_table

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of `Metrics.exposition`."""

Stage = Literal["merged", "indexed"]


class Metrics:
    """Takes what is measured, and keeps none of it."""

    def record_gauges(self, table: str, gauges: TableGauges) -> None:
        """How a table stands now; takes the place of what was recorded of it before."""

    def forget_table(self, table: str) -> None:
        """The table is not looked at any more: its gauges end."""

    def record_freshness(self, stage: Stage, seconds: float) -> None:
        """A generation was merged, or indexed, so long after its flush. Once for each."""

    def record_worker_replaced(self, reason: str) -> None:
        """A worker process took another's place. `reason` is one of a few words."""

    def add(self, counts: Counts) -> None:
        """Raise counters."""

    def record_report(self, report: JobReport) -> None:
        """What a job came to, on all its tables."""
        self.add(count_report(report))
        now = SystemClock().now_nanos()
        for table in report.tables:
            if (gauges := table.gauges(now)) is not None:
                self.record_gauges(table.table, gauges)

    def record_table(self, job: str, report: TableReport, requests: Mapping[str, int]) -> None:
        """What a job came to on one table of a run that goes on."""
        self.add(count_table(job, report) + count_requests(requests))

    def exposition(self, before: str = "") -> bytes:
        """Everything in Prometheus's text format, of `CONTENT_TYPE`.

        Counters go on from where those in the text `before` ended, which earlier runs wrote; they
        begin anew where that is no such text.
        """
        return b""

    def close(self) -> None:
        """Push what is to be pushed, within a few seconds, and end."""


NO_METRICS = Metrics()
