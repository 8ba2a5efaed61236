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
    from_backup: Annotated[
        str | None,
        Option(
            meaning="A place of backups: what nothing in the table brings back is copied from the "
            "newest backup there that has it.",
            flag="from",
            metavar="BACKUP",
        ),
    ] = None
    yes: Annotated[
        bool,
        Option(
            meaning="Fence the writers of shards without asking, where mending takes that. A "
            "writer that is alive has to be opened again.",
        ),
    ] = False
