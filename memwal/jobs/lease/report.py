"""What `memwal lease break` reports."""

from __future__ import annotations

from memwal.report import LeaseReport, TableReport


class LeaseTableReport(TableReport):
    """One table of `lease break`."""

    lease: LeaseReport | None = None
