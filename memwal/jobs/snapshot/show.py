"""What people see of a snapshot refresh."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.snapshot.report import SnapshotTableReport
from memwal.text import count_of


def show_table(report: SnapshotTableReport) -> list[RenderableType]:
    """How many shards the snapshot holds, where it is stored, and what had to be repaired."""
    if report.storage is None:
        return [Text(f"  {report.reason}")] if report.reason else []
    shards, repairs = count_of(report.num_shards or 0, "shard"), count_of(report.repairs, "repair")
    text = f"  {shards}, {report.storage}, {repairs}"
    return [Text(f"{text} ({report.reason})")]
