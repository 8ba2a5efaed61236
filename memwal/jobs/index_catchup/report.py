"""What index catch-up reports of a table, and of each of its indexes."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from memwal.report import DONE, CompactionAdvice, Part, TableReport


class IndexCatchupReport(Part):
    """One index, of index catch-up or of the catch-up within a compaction.

    `method` none with outcome done: only its progress had to be recorded. `unindexed_rows_after`
    is None when the index was dropped meanwhile. `caught_up` is what the table's own manifest
    records after the run, in a dry run what it would record. `rows` go through the method, for
    which one process was expected to take `expected_seconds`; the run took `seconds`.
    """

    name: str
    kind: str | None = None
    method: str
    rows: int = 0
    expected_seconds: float = 0.0
    unindexed_rows_before: int
    unindexed_rows_after: int | None
    caught_up_before: dict[str, int] = Field(default_factory=dict)
    caught_up: dict[str, int] = Field(default_factory=dict)
    seconds: float = 0.0
    reason: str | None = None
    conflicts: int = 0


class IndexCatchupTableReport(TableReport):
    """One table of an index catch-up. `columns` are the types of its columns, by their names.

    `compaction` is what could be compacted afterwards.
    """

    columns: dict[str, str] = {}
    compaction: CompactionAdvice | None = None
    indexes: tuple[IndexCatchupReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """How many indexes caught up, and over how many rows."""
        done = [i for i in self.indexes if i.outcome == DONE]
        known = [i for i in done if i.unindexed_rows_after is not None]
        rows = [max(0, i.unindexed_rows_before - (i.unindexed_rows_after or 0)) for i in known]
        return {"indexes": len(done), "rows_indexed": sum(rows)}
