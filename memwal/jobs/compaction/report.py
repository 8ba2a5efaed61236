"""What compaction reports of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import build_table, format_size, numbers, words
from memwal.jobs.index_catchup.report import INDEXES, IndexCatchupReport
from memwal.report import AuditItem, TableReport
from memwal.text import count_of


class CompactionTableReport(TableReport):
    """One table of a compaction, with the index catch-up that followed it.

    `columns` are the types of its columns, by their names. `expired_rows` are rows of the base that
    are older than `expired_before`; null where rows do not expire. `purged_rows` of them were
    deleted, or in a dry run would be.
    """

    columns: dict[str, str] = {}
    fragments_before: int | None = None
    fragments_after: int | None = None
    files_before: int | None = None
    files_after: int | None = None
    rows_before: int | None = None
    rows_after: int | None = None
    deleted_rows_before: int | None = None
    deleted_rows_after: int | None = None
    expired_before: str | None = None
    expired_rows: int | None = None
    purged_rows: int = 0
    fragments_rewritten: tuple[int, ...] = ()
    tasks: int = 0
    tasks_failed: int = 0
    tasks_left: int = 0
    commits: int = 0
    conflicts: int = 0
    bytes_rewritten: int = 0
    seconds: float = 0.0
    reason: str | None = None
    indexes: tuple[IndexCatchupReport, ...] = ()
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("fragments_before", "fragments_after", "bytes_rewritten")

    def audited(self) -> Iterable[AuditItem]:
        """Rows that were purged, and fragments that were rewritten.

        Their files stay until the versions before expire.
        """
        if self.purged_rows:
            yield AuditItem(
                action="delete",
                kind="expired_rows",
                path="data",
                version=self.version_after,
                reason=f"{self.purged_rows} rows were older than {self.expired_before}",
                done=True,
            )
        if self.commits:
            yield AuditItem(
                action="rewrite",
                kind="fragment",
                path="data",
                bytes=self.bytes_rewritten,
                fragments=self.fragments_rewritten,
                version=self.version_after,
                reason=self.reason,
                done=True,
            )


COUNTED = ("fragments", "files", "rows", "deleted_rows")


def show_table(report: CompactionTableReport) -> list[RenderableType]:
    """Render what was rewritten, the counts before and after, and the indexes caught up."""
    if report.fragments_before is None:
        return []
    size = format_size(report.bytes_rewritten)
    counts = build_table(
        COUNTED,
        (
            words("", lambda name: name.replace("_", " ")),
            numbers("before", lambda name: getattr(report, f"{name}_before")),
            numbers("after", lambda name: getattr(report, f"{name}_after")),
        ),
    )
    indexes = [build_table(report.indexes, INDEXES)] if report.indexes else []
    done = f"{count_of(report.tasks, 'task')}, {size}, {count_of(report.commits, 'commit')}"
    text = f"  {done}: {report.reason}"
    aged = []
    if report.expired_rows is not None:
        rows = count_of(report.expired_rows, "row")
        aged = [Text(f"  {rows} older than {report.expired_before}; {report.purged_rows} purged")]
    return [Text(text), *aged, counts, *indexes]
