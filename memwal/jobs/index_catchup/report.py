"""What index catch-up reports of a table, and of each of its indexes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from rich.console import RenderableType

from memwal.grid import Column, build_table, format_count, numbers, prose, style_outcome, words
from memwal.report import DONE, CompactionAdvice, Part, TableReport


class IndexCatchupReport(Part):
    """One index, of index catch-up or of the catch-up within a compaction.

    `method` none with outcome done: only its progress had to be recorded. `unindexed_rows_after`
    is None when the index was dropped meanwhile. `caught_up` is what the table's own manifest
    records after the run, in a dry run what it would record. `rows` go through the method, in
    `seconds`.
    """

    name: str
    kind: str | None = None
    method: str
    rows: int = 0
    unindexed_rows_before: int
    unindexed_rows_after: int | None
    caught_up_before: dict[str, int] = Field(default_factory=dict)
    caught_up: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0
    reason: str | None = None
    conflicts: int = 0


class IndexCatchupTableReport(TableReport):
    """One table of an index catch-up. `columns` are the types of its columns, by their names.

    `compaction` is what could be compacted afterwards.
    """

    columns: dict[str, str] = {}
    compaction: CompactionAdvice | None = None
    indexes: tuple[IndexCatchupReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """How many indexes caught up, and over how many rows."""
        done = [i for i in self.indexes if i.outcome == DONE]
        known = [i for i in done if i.unindexed_rows_after is not None]
        rows = [max(0, i.unindexed_rows_before - (i.unindexed_rows_after or 0)) for i in known]
        return {"indexes": len(done), "rows_indexed": sum(rows)}


INDEXES: tuple[Column[IndexCatchupReport], ...] = (
    words("index", lambda index: index.name),
    words("outcome", lambda index: style_outcome(index.outcome)),
    words("method", lambda index: index.method),
    numbers("unindexed rows", lambda index: f"{format_count(index.unindexed_rows_before)} -> "
                                            f"{format_count(index.unindexed_rows_after)}"),
    numbers("seconds", lambda index: f"{index.seconds:.2f}"),
    prose("why", lambda index: index.reason or ""),
)  # fmt: skip


def show_table(report: IndexCatchupTableReport) -> list[RenderableType]:
    """Render a line for each index."""
    return [build_table(report.indexes, INDEXES)] if report.indexes else []
