"""What people see of `memwal wait`."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, numbers, words
from memwal.jobs.wait.report import WaitTableReport
from memwal.text import count_of


def show_table(report: WaitTableReport) -> list[RenderableType]:
    """Render the shards that have not reached their target, or that all have."""
    if report.reached:
        return [Text(f"  {report.until}: {count_of(len(report.target), 'shard')}", style="green")]
    if not report.missing:
        return []
    columns: tuple[Column[str], ...] = (
        words("shard", lambda shard: shard),
        numbers(report.until, lambda shard: str(report.missing[shard])),
        numbers("wanted", lambda shard: str(report.target.get(shard, 0))),
    )
    return [build_table(report.missing, columns)]
