"""What compaction reports of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from memwal.jobs.index_catchup.report import IndexCatchupReport
from memwal.report import AuditItem, TableReport


class CompactionTableReport(TableReport):
    """One table of a compaction, with the index catch-up that followed it.

    `columns` are the types of its columns, by their names.
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
        """The fragments that were rewritten; their files stay until the versions before expire."""
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
