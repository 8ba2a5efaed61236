"""What `memwal ingest` reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, ClassVar

from memwal.errors import MemWalError
from memwal.model import ShardId
from memwal.report import DONE, Part, Section, TableReport, sum_up

if TYPE_CHECKING:
    from memwal.ingest.resume import ShardCounts
    from memwal.ingest.track import TrackResult
    from memwal.store.ingest_records import SourceFile

_SUMS = ("bytes_written", "entries", "generations")
"""What the report of a table sums up over its shards."""


class IngestSourceReport(Section):
    """One source of an ingest. `rows` is None where reading it is the only way to know."""

    uri: str
    format: str
    bytes: int | None = None
    rows: int | None = None


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

    `rows` and `rows_deleted` are the source's (the rows that delete are among `rows`), by all runs
    together; `rows_written` is what this run wrote, in `seconds`, at `rows_per_second`: deletes
    too, as so many WAL `entries` in so many `generations`. Bytes are those of rows in memory.
    """

    ingest_id: str | None = None
    resumed: bool = False
    sources: tuple[IngestSourceReport, ...] = ()
    shards: tuple[IngestShardReport, ...] = ()
    rows: int | None = None
    rows_deleted: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    entries: int = 0
    generations: int = 0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    merges: int = 0
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = (
        "rows_written",
        "rows_deleted",
        "bytes_read",
        "entries",
        "generations",
        "merges",
    )

    def count_rows(self) -> Mapping[str, int]:
        """What this run wrote: the other counts are of all runs together."""
        deleted = sum(shard.rows_deleted for shard in self.shards)
        counts = {"written": self.rows_written - deleted, "deleted": deleted}
        return {kind: rows for kind, rows in counts.items() if rows}


def describe_sources(
    files: Iterable[SourceFile], rows: Mapping[str, int | None]
) -> tuple[IngestSourceReport, ...]:
    """The sources, with their `rows` where those are known, by address."""
    return tuple(
        IngestSourceReport(
            uri=file.uri,
            format=file.format.value,
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
        "resumed": any(result.resumed for result in results),
        "shards": tuple(
            IngestShardReport(shard_id=s, outcome=DONE, is_new=s not in there, **asdict(counts[s]))
            for s in sorted(counts)
        ),
        "rows": sum(result.rows for result in results),
        "rows_deleted": sum(result.rows_deleted for result in results),
        "rows_written": sum(c.rows + c.rows_deleted for c in counts.values()),
        "bytes_read": sum(result.bytes_read for result in results),
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
