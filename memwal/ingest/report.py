"""What `memwal ingest` reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import MemWalError, Usage
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
from memwal.model import ShardId
from memwal.report import DONE, NOTHING_TO_DO, Part, Section, TableReport, sum_up
from memwal.text import count_of

if TYPE_CHECKING:
    from memwal.ingest.progress.resume import ShardCounts
    from memwal.ingest.track import TrackResult
    from memwal.store.records.ingests import ProgressRecord, SourceFile


_NAMED_MAX = 3

_SUMS = ("rows_deleted", "bytes_written", "entries", "generations")
"""What the report of a table sums up over its shards."""

SOURCES: tuple[Column[IngestSourceReport], ...] = (
    words("source", lambda source: source.uri),
    words("format", lambda source: source.format),
    numbers("size", lambda source: format_size(source.bytes)),
    numbers("rows", lambda source: "-" if source.rows is None else format_count(source.rows)),
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


class IngestSourceReport(Section):
    """One source of an ingest. `rows` is None where reading it is the only way to know."""

    uri: str
    format: str
    bytes: int | None = None
    rows: int | None = None


class IngestFindingReport(Section):
    """Something that can't be written: a value, a row, or a source where `row` is None.

    Rows count from 1, without lines that are empty.
    """

    source: str
    row: int | None = None
    column: str | None = None
    value: Any = None
    reason: str


class IngestShardReport(Part):
    """One shard of an ingest, as this run wrote it; in a dry run, as it would.

    `rows` and `rows_deleted` went into so many `entries` of the WAL, and so many `generations` were
    flushed. `entries_found` of an earlier run were there already, beyond what it had recorded.
    """

    shard_id: str
    is_new: bool
    writer_epoch: int | None = None
    entries: int = 0
    generations: int = 0
    bytes_written: int = 0
    rows: int = 0
    rows_deleted: int = 0
    entries_found: int = 0
    rows_found: int = 0


class IngestTableReport(TableReport):
    """One table of an ingest.

    `rows` are the source's, by all runs together; all else is of this run. It wrote `rows_written`
    (of which `rows_deleted` delete) in `seconds`, at `rows_per_second`, as so many WAL `entries` in
    so many `generations`, and set `rows_rejected` aside. Bytes are those of rows in memory. A check
    has `findings`, and how many more there are.
    """

    ingest_id: str | None = None
    resumed: bool = False
    sources: tuple[IngestSourceReport, ...] = ()
    shards: tuple[IngestShardReport, ...] = ()
    rows: int | None = None
    rows_deleted: int = 0
    rows_rejected: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    entries: int = 0
    generations: int = 0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    merges: int = 0
    warnings: tuple[str, ...] = ()
    findings: tuple[IngestFindingReport, ...] = ()
    findings_left_out: int = 0

    SUMMARISED: ClassVar = (
        "rows_written",
        "rows_deleted",
        "rows_rejected",
        "bytes_read",
        "entries",
        "generations",
        "merges",
    )

    def count_rows(self) -> Mapping[str, int]:
        """What this run wrote, without its deletes, which are a kind of their own."""
        counts = {**super().count_rows(), "written": self.rows_written - self.rows_deleted}
        return {kind: rows for kind, rows in counts.items() if rows}


def describe_sources(
    files: Iterable[SourceFile], rows: Mapping[str, int | None]
) -> tuple[IngestSourceReport, ...]:
    """The sources, with their `rows` where those are known, by address."""
    return tuple(
        IngestSourceReport(
            uri=file.uri,
            format=file.format,
            bytes=file.size_bytes,
            rows=rows.get(file.uri),
        )
        for file in files
    )


def describe_results(
    results: Sequence[TrackResult], there: Collection[ShardId]
) -> dict[str, object]:
    """What tracks wrote, as fields of the table's report; `there` are the shards from before."""
    counts: dict[ShardId, ShardCounts] = {}
    for result in results:
        counts |= result.shards
    return {
        **_describe_counts(counts, there),
        "resumed": any(result.resumed for result in results),
        "rows": sum(result.rows for result in results),
        "rows_rejected": sum(result.rows_rejected for result in results),
        "bytes_read": sum(result.bytes_read for result in results),
    }


def _describe_counts(
    counts: Mapping[ShardId, ShardCounts], there: Collection[ShardId]
) -> dict[str, object]:
    return {
        "shards": tuple(
            IngestShardReport(shard_id=s, outcome=DONE, is_new=s not in there, **asdict(counts[s]))
            for s in sorted(counts)
        ),
        "rows_written": sum(c.rows + c.rows_deleted for c in counts.values()),
        **{name: sum(getattr(c, name) for c in counts.values()) for name in _SUMS},
    }


def report_failures(
    report: IngestTableReport, failed: Mapping[str, MemWalError]
) -> IngestTableReport:
    """The report of what was written, with the shards that failed summed up in it."""
    parts = [
        Part(outcome=error.outcome, error=str(error), exit_code=error.exit_code)
        for error in failed.values()
    ]
    outcome, code = sum_up([*report.shards, *parts])
    text = "; ".join(f"{shard}: {error}" for shard, error in failed.items())
    return report.model_copy(update={"outcome": outcome, "exit_code": code, "error": text})


def report_findings(report: IngestTableReport, *, all_counted: bool) -> IngestTableReport:
    """The report of a check that found something, or more than it counts."""
    first, count = report.findings[0], len(report.findings) + report.findings_left_out
    at = f" row {first.row}:" if first.row else ""
    column = "" if first.column is None else f"column {first.column!r} "
    things = f"{count:,} {'thing' if count == 1 else 'things'}" + " or more" * (not all_counted)
    text = f"{things} can't be written; the first: {first.source}:{at} {column}{first.reason}"
    return report.model_copy(
        update={"outcome": Usage.outcome, "exit_code": Usage.exit_code, "error": text}
    )


def report_stop(
    report: IngestTableReport,
    began: ProgressRecord,
    ended: ProgressRecord,
    counts: Mapping[ShardId, ShardCounts],
    there: Collection[ShardId],
    error: MemWalError,
) -> IngestTableReport:
    """The report of an ingest that a source stopped, between two looks at its progress.

    `counts` are of the shards that were written to, of which `there` are from before.

    Its text says how many rows of which files are in, and how to go on.
    """
    files = [source.uri for source in report.sources]
    return report.model_copy(
        update={
            **_describe_counts(counts, there),
            "outcome": error.outcome,
            "exit_code": error.exit_code,
            "error": f"{error}. {_tell_rows_in(files, ended)}",
            "rows": ended.rows,
            "rows_rejected": ended.rows_rejected - began.rows_rejected,
            "resumed": began.number > 0 or any(c.entries_found for c in counts.values()),
        }
    )


def _tell_rows_in(files: Sequence[str], ended: ProgressRecord) -> str:
    if not ended.rows:
        return "No row is in: mend it, and run the same command with --again"
    whole = [*files[: ended.split]]
    told = [f"all of {', '.join(whole) if len(whole) <= _NAMED_MAX else f'{len(whole)} files'}"]
    told = told if whole else []
    if ended.row:
        told.append(f"the first {count_of(ended.row, 'row')} of {files[ended.split]}")
    rows = count_of(ended.rows, "row")
    return (
        f"Already in: {rows}, {' and '.join(told)}. With --bad-rows FILE the same command goes on "
        "there, and sets such rows aside"
    )


def add_rejected(report: IngestTableReport, rows: int) -> IngestTableReport:
    """The report with rows that were set aside before the others were staged."""
    update = {"rows": (report.rows or 0) + rows, "rows_rejected": 0 if report.resumed else rows}
    return report.model_copy(update=update)


def warn_of_rejects(report: IngestTableReport, rows: int) -> IngestTableReport:
    """The report of a run that nobody told where to list what all runs together set aside."""
    text = f"{count_of(rows, 'row')} set aside: the same command with --bad-rows FILE lists what"
    return report.model_copy(update={"warnings": (*report.warnings, text)})


def warn_of_others(passed_over: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Of folders that hold more than is read."""
    return tuple(
        f"{folder}: passed over, for their names tell no format: "
        + ", ".join([*names[:_NAMED_MAX], *(["..."] if len(names) > _NAMED_MAX else [])])
        for folder, names in passed_over.items()
    )


FINDINGS: tuple[Column[IngestFindingReport], ...] = (
    words("source", lambda found: found.source),
    words("at", lambda found: "" if found.row is None else f"row {found.row}"),
    words("column", lambda found: found.column or ""),
    words("value", lambda found: "" if found.value is None else str(found.value)),
    prose("what is wrong", lambda found: found.reason),
)


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
