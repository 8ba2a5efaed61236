"""What compaction reports of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from memwal.jobs.index_catchup.report import IndexCatchupReport
from memwal.report import AuditItem, TableReport


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
