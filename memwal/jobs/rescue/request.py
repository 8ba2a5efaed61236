"""What one may ask of a rescue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option, Shards

Idle = Annotated[
    float,
    Option(
        meaning="Skip shards with a sign of life younger than this.", metavar="10m", form="Idle"
    ),
]
Yes = Annotated[
    bool,
    Option(
        meaning="Claim the shards without asking. A writer that is alive after all is fenced, and "
        "has to be opened again.",
        form="Claim",
    ),
]
IDLE_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class RescueRequest:
    """Which shards to claim, and how long they must have been silent."""

    shards: Shards = ()
    idle_seconds: Idle = IDLE_SECONDS
    drop_torn: Annotated[
        bool,
        Option(
            meaning="Put a torn entry aside that is the last in its WAL, so that writers can open "
            "the shard.",
            form="Drop torn entries",
        ),
    ] = False
    yes: Yes = False
