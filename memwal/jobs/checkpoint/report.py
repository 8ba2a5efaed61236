"""What `memwal checkpoint` reports."""

from __future__ import annotations

from memwal.report import CheckpointReport, TableReport


class CheckpointTableReport(TableReport):
    """One table of `checkpoint`: those that were made, found or dropped, or would be."""

    checkpoints: tuple[CheckpointReport, ...] = ()
