"""How an ingest's report is displayed."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import (
    Column,
    build_table,
    format_count,
    format_size,
    numbers,
    prose,
    style_outcome,
    words,
)
from memwal.ingest.report import (
    IngestFindingReport,
    IngestShardReport,
    IngestSourceReport,
    IngestTableReport,
)
from memwal.report import NOTHING_TO_DO
from memwal.text import count_of

SOURCES: tuple[Column[IngestSourceReport], ...] = (
    words("source", lambda source: source.uri),
    words("format", lambda source: source.format),
    numbers("size", lambda source: format_size(source.bytes)),
    numbers("rows", lambda source: "-" if source.rows is None else format_count(source.rows)),
)
FINDINGS: tuple[Column[IngestFindingReport], ...] = (
    words("source", lambda found: found.source),
    words("at", lambda found: _show_place(found)),
    words("column", lambda found: found.column or ""),
    words("value", lambda found: "" if found.value is None else str(found.value)),
    prose("what is wrong", lambda found: found.reason),
)
SHARDS: tuple[Column[IngestShardReport], ...] = (
    words("shard", lambda shard: f"{shard.shard_id}{' (new)' if shard.is_new else ''}"),
    words("outcome", lambda shard: style_outcome(shard.outcome)),
    numbers("rows", lambda shard: shard.rows),
    numbers("deletes", lambda shard: shard.rows_deleted),
    numbers("entries", lambda shard: shard.entries),
    numbers("generations", lambda shard: shard.generations),
)
FOUND: Column[IngestShardReport] = numbers("found in the WAL", lambda shard: shard.entries_found)


def show_table(report: IngestTableReport) -> list[RenderableType]:
    """A table's sources, shards, findings and speed."""
    parts: list[RenderableType] = []
    if report.outcome == NOTHING_TO_DO:
        parts.append(Text("  all of it was ingested before; --again ingests it once more"))
    if report.sources:
        parts.append(build_table(report.sources, SOURCES))
    if report.shards:
        found = any(shard.entries_found for shard in report.shards)
        parts.append(build_table(report.shards, (*SHARDS, FOUND) if found else SHARDS))
    if report.findings:
        parts.append(build_table(report.findings, FINDINGS))
        if report.findings_left_out:
            parts.append(Text(f"  and {report.findings_left_out:,} more"))
    if report.rows_rejected:
        parts.append(Text(f"  rows set aside: {report.rows_rejected:,}"))
    if report.rows_written:
        again = " (went on with an earlier run)" if report.resumed else ""
        rows = count_of(report.rows_written, "row")
        entries = f"{report.entries:,} WAL {'entry' if report.entries == 1 else 'entries'}"
        parts.append(
            Text(
                f"  {rows} at {report.rows_per_second:,.0f} rows/s: "
                f"{format_size(report.bytes_written)} in {entries}, "
                f"{count_of(report.generations, 'generation')}{again}"
            )
        )
    return parts


def _show_place(found: IngestFindingReport) -> str:
    if found.line is not None:
        return f"line {found.line}"
    if found.row is None:
        return ""
    group = "" if found.row_group is None else f" (row group {found.row_group})"
    return f"row {found.row}{group}"
