"""What the snapshot job reports of a table."""

from __future__ import annotations

from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.report import TableReport
from memwal.text import count_of


class SnapshotTableReport(TableReport):
    """One table of a snapshot refresh. `storage` is None where there is no snapshot.

    `columns` are the types of its columns, by their names.
    """

    columns: dict[str, str] = {}
    num_shards: int | None = None
    storage: str | None = None
    repairs: int = 0
    reason: str | None = None
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("num_shards", "repairs")


def show_table(report: SnapshotTableReport) -> list[RenderableType]:
    """Render how many shards the snapshot has, where it is stored, and the number of repairs."""
    if report.storage is None:
        return [Text(f"  {report.reason}")] if report.reason else []
    shards, repairs = count_of(report.num_shards or 0, "shard"), count_of(report.repairs, "repair")
    text = f"  {shards}, {report.storage}, {repairs}"
    return [Text(f"{text} ({report.reason})")]
