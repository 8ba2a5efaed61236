"""What `memwal runs` reports."""

from __future__ import annotations

from memwal.report import RunRecord, TableReport


class RunsTableReport(TableReport):
    """One table of `runs`, newest first. `unreadable` counts documents that are no record."""

    runs: tuple[RunRecord, ...] = ()
    unreadable: int = 0
