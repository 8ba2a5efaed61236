"""What one may ask of a garbage collection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from memwal.options import Option

# Versions that a cursor needs go once nobody moved it for this long.
CURSOR_AGE_SECONDS = 14 * 86_400.0


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long versions of the table stay, and what nobody needs any more."""

    retention_seconds: Annotated[
        float | None,
        Option(
            meaning="Expire versions that are older first. Default: as configured, else none. One "
            "shorter than configured takes --allow-short-retention.",
            metavar="7d",
            form="Retention",
        ),
    ] = None
    grace_seconds: Annotated[
        float | None,
        Option(
            meaning="How long to keep unused objects for readers. Default: as configured, else 1h.",
            metavar="1h",
            form="Grace",
        ),
    ] = None
    allow_short_retention: Annotated[
        bool,
        Option(
            meaning="Permit a retention and a grace that are shorter than configured, or than a "
            "day and ten minutes."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class DeletingRequest(Retention):
    """What whoever deletes may be asked: a garbage collection, alone or at the end of others."""

    execute: Annotated[
        bool,
        Option(
            meaning="Delete garbage. Not needed where a retention is configured and no option "
            "asks for less; else garbage is listed.",
            form="Delete garbage",
        ),
    ] = False
    wal: Annotated[
        bool | None,
        Option(
            meaning="Also delete covered WAL entries. Default: where a retention is configured.",
            form="WAL entries",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class GarbageRequest(DeletingRequest):
    """A garbage collection, and where it may look."""

    adopt_orphans: Annotated[
        bool,
        Option(meaning="Also delete the shards of a table whose MemWAL index is gone."),
    ] = False
    full: Annotated[
        bool,
        Option(
            meaning="Look at all shards of a large table, not only those changed since the last "
            "pass."
        ),
    ] = False
