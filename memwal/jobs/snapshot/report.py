"""What the snapshot job reports of a table."""

from __future__ import annotations

from collections.abc import Mapping

from memwal.report import TableReport


class SnapshotTableReport(TableReport):
    """One table of a snapshot refresh. `storage` is None where there is no snapshot."""

    num_shards: int | None = None
    storage: str | None = None
    repairs: int = 0
    reason: str | None = None
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """How many shards the snapshot holds, and how often progress had to be put right."""
        return {"num_shards": self.num_shards, "repairs": self.repairs}
