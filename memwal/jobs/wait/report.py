"""What `memwal wait` reports."""

from __future__ import annotations

from pydantic import Field
from rich.console import RenderableType
from rich.text import Text

from memwal.grid import Column, build_table, numbers, words
from memwal.report import TableReport
from memwal.text import count_of


class WaitTableReport(TableReport):
    """The table of `wait`. `missing` tells how far each shard is that is not at its target."""

    until: str
    reached: bool = False
    target: dict[str, int] = Field(default_factory=dict)
    missing: dict[str, int] = Field(default_factory=dict)


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
