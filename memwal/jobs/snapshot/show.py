"""What people see of a snapshot refresh."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.snapshot.report import SnapshotTableReport
from memwal.text import count_of


def show_table(report: SnapshotTableReport) -> list[RenderableType]:
    """Render how many shards the snapshot has, where it is stored, and the number of repairs."""
    if report.storage is None:
        return [Text(f"  {report.reason}")] if report.reason else []
    shards, repairs = count_of(report.num_shards or 0, "shard"), count_of(report.repairs, "repair")
    text = f"  {shards}, {report.storage}, {repairs}"
    return [Text(f"{text} ({report.reason})")]
