"""What people see of an index catch-up."""

from __future__ import annotations

from rich.console import RenderableType

from memwal.grid import Column, count_text, numbers, outcome_text, prose, table_of, words
from memwal.jobs.index_catchup.report import IndexCatchupReport, IndexCatchupTableReport

INDEXES: tuple[Column[IndexCatchupReport], ...] = (
    words("index", lambda index: index.name),
    words("outcome", lambda index: outcome_text(index.outcome)),
    words("method", lambda index: index.method),
    numbers("unindexed rows", lambda index: f"{count_text(index.unindexed_rows_before)} -> "
                                            f"{count_text(index.unindexed_rows_after)}"),
    numbers("seconds", lambda index: f"{index.seconds:.2f}"),
    prose("why", lambda index: index.reason or ""),
)  # fmt: skip


def show_table(report: IndexCatchupTableReport) -> list[RenderableType]:
    """A line for each index."""
    return [table_of(report.indexes, INDEXES)] if report.indexes else []
