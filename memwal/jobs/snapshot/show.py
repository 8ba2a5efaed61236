"""What people see of a snapshot refresh."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.jobs.snapshot.report import SnapshotTableReport


def show_table(report: SnapshotTableReport) -> list[RenderableType]:
    """How many shards the snapshot holds, where it is stored, and what had to be repaired."""
    if report.storage is None:
        return [Text(f"  {report.reason}")] if report.reason else []
    text = f"  {report.num_shards} shards, {report.storage}, {report.repairs} repairs"
    return [Text(f"{text} ({report.reason})")]
