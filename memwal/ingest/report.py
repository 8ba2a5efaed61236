"""What `memwal ingest` reports."""

from __future__ import annotations

from collections.abc import Mapping

from memwal.report import Part, Section, TableReport


class IngestSourceReport(Section):
    """One source of an ingest. `rows` is None where reading it is the only way to know."""

    uri: str
    format: str
    bytes: int | None = None
    rows: int | None = None


class IngestShardReport(Part):
    """One shard of an ingest, as this run wrote it; in a dry run, as it would.

    `entries_found` of an earlier run were in the WAL already, beyond what it had recorded.
    """

    shard_id: str
    is_new: bool
    writer_epoch: int | None = None
    entries: int = 0
    rows: int = 0
    rows_deleted: int = 0
    entries_found: int = 0
    rows_found: int = 0


class IngestTableReport(TableReport):
    """One table of an ingest.

    `rows` and `rows_deleted` are the source's (the rows that delete are among `rows`), by all runs
    together; `rows_written` is what this run wrote, in `seconds`, at `rows_per_second`.
    """

    ingest_id: str | None = None
    resumed: bool = False
    sources: tuple[IngestSourceReport, ...] = ()
    shards: tuple[IngestShardReport, ...] = ()
    rows: int | None = None
    rows_deleted: int = 0
    rows_written: int = 0
    seconds: float = 0.0
    rows_per_second: float = 0.0
    merges: int = 0
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """What this run wrote."""
        return {
            "rows_written": self.rows_written,
            "rows_deleted": self.rows_deleted,
            "merges": self.merges,
        }
