"""What one may ask of a repair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class RepairRequest:
    """Whether to mend, and by what."""

    execute: Annotated[
        bool,
        Option(meaning="Mend what can be mended; else, or in a dry run, list it."),
    ] = False
    idle_seconds: Annotated[
        float,
        Option(
            meaning="Leave the WAL of a shard alone that has a sign of life younger than this.",
            metavar="10m",
        ),
    ] = 600.0
    from_backup: Annotated[
        str | None,
        Option(
            meaning="A place of backups: what nothing in the table brings back is copied from the "
            "newest backup there that has it.",
            flag="from",
            metavar="BACKUP",
        ),
    ] = None
    accept_loss: Annotated[
        bool,
        Option(
            meaning="Mend also where that gives up rows that nothing in the table has. Try --from "
            "first: a backup may have them.",
        ),
    ] = False
    yes: Annotated[
        bool,
        Option(
            meaning="Claim shards without asking, where mending takes that. A writer that is alive "
            "is fenced, and has to be opened again.",
        ),
    ] = False
