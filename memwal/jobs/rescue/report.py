"""What `memwal rescue` reports (a module of its own: `memwal/report.py` is full)."""

from __future__ import annotations

from collections.abc import Mapping

from memwal.report import Part, TableReport


class RescueShardReport(Part):
    """One shard. `action` is rescue, nothing or refuse; of a dry run, what would be done.

    `entries`, `rows` and `bytes` are what was in the WAL only; `rows` counts versions of rows.
    `generations` are the numbers that hold them now. The epochs differ by one for each claim.
    """

    shard_id: str
    action: str
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    idle_seconds: float | None = None
    last_sign: str | None = None
    generations: tuple[int, ...] = ()
    writer_epoch_before: int | None = None
    writer_epoch_after: int | None = None


class RescueTableReport(TableReport):
    """One table of a rescue."""

    shards: tuple[RescueShardReport, ...] = ()
    warnings: tuple[str, ...] = ()

    def summary(self) -> Mapping[str, int | None]:
        """What was rescued."""
        return {"generations": self.generations, "rows": self.rows}

    @property
    def generations(self) -> int:
        """How many generations the run left to be merged."""
        return sum(len(shard.generations) for shard in self.shards)

    @property
    def rows(self) -> int:
        """Rows in them, all versions counted."""
        return sum(shard.rows for shard in self.shards if shard.generations)
