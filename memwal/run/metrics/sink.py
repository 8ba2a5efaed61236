"""Where measures go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from memwal.model import Standing
from memwal.report import JobReport, TableReport
from memwal.run.metrics.counts import Counts, count_report, count_requests, count_table

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of `Metrics.exposition`."""

Stage = Literal["merged", "indexed"]


class Metrics:
    """Takes what is measured, and keeps none of it."""

    def record_standing(self, table: str, standing: Standing) -> None:
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
        for table in report.tables:
            if (standing := table.standing()) is not None:
                self.record_standing(table.table, standing)

    def record_table(self, job: str, report: TableReport, requests: Mapping[str, int]) -> None:
        """What a job came to on one table of a run that goes on."""
        self.add(count_table(job, report) + count_requests(requests))

    def exposition(self) -> bytes:
        """Everything in Prometheus's text format, of `CONTENT_TYPE`."""
        return b""

    def close(self) -> None:
        """Push what is to be pushed, within a few seconds, and end."""


NO_METRICS = Metrics()
