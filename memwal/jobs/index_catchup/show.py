"""What people see of an index catch-up."""

from __future__ import annotations

from rich.console import RenderableType

from memwal.grid import Column, build_table, format_count, numbers, prose, style_outcome, words
from memwal.jobs.index_catchup.report import IndexCatchupReport, IndexCatchupTableReport

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
