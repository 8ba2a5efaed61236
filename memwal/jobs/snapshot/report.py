"""What the snapshot job reports of a table."""

from __future__ import annotations

from typing import ClassVar

from memwal.report import TableReport


class SnapshotTableReport(TableReport):
    """One table of a snapshot refresh. `storage` is None where there is no snapshot.

    `columns` are the types of its columns, by their names.
    """

    columns: dict[str, str] = {}
    num_shards: int | None = None
    storage: str | None = None
    repairs: int = 0
    reason: str | None = None
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("num_shards", "repairs")
