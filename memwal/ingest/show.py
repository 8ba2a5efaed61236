"""What people see of an ingest."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import STYLE, count_text, grid_of, size_text
from memwal.ingest.report import IngestTableReport


def ingest_parts(report: IngestTableReport) -> list[RenderableType]:
    """Sources, shards and speed."""
    parts: list[RenderableType] = []
    if report.sources:
        grid = grid_of("source", "format", "size", "rows")
        for source in report.sources:
            rows = "-" if source.rows is None else count_text(source.rows)
            grid.add_row(source.uri, source.format, size_text(source.bytes), rows)
        parts.append(grid)
    if report.shards:
        grid = grid_of("shard", "outcome", "rows", "deletes", "entries", "found in the WAL")
        for shard in report.shards:
            grid.add_row(
                f"{shard.shard_id}{' (new)' if shard.is_new else ''}",
                Text(shard.outcome, style=STYLE.get(shard.outcome, "red")),
                count_text(shard.rows),
                count_text(shard.rows_deleted),
                count_text(shard.entries),
                count_text(shard.entries_found),
            )
        parts.append(grid)
    if report.rows_written:
        again = " (went on with an earlier run)" if report.resumed else ""
        parts.append(
            Text(f"  {report.rows_written:,} rows at {report.rows_per_second:,.0f} rows/s{again}")
        )
    return parts
