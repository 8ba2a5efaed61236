"""What index catch-up reports of a table."""

from __future__ import annotations

from collections.abc import Mapping

from memwal.report import DONE, IndexCatchupReport, TableReport


class IndexCatchupTableReport(TableReport):
    """One table of an index catch-up."""

    indexes: tuple[IndexCatchupReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """How many indexes caught up, and over how many rows."""
        done = [i for i in self.indexes if i.outcome == DONE]
        known = [i for i in done if i.unindexed_rows_after is not None]
        rows = [max(0, i.unindexed_rows_before - (i.unindexed_rows_after or 0)) for i in known]
        return {"indexes": len(done), "rows_indexed": sum(rows)}
