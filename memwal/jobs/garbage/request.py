"""What one may ask of a garbage collection."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from memwal.model import GRACE_SECONDS
from memwal.options import Option


@dataclass(frozen=True, kw_only=True)
class Retention:
    """How long versions of the table stay, and what nobody needs any more."""

    retention_seconds: Annotated[
        float | None,
        Option(
            meaning="Expire table versions that are older before anything is deleted. Default: as "
            "configured, else none.",
            metavar="7d",
            form="Retention",
        ),
    ] = None
    grace_seconds: Annotated[
        float,
        Option(meaning="How long to keep unused objects for readers.", metavar="1h", form="Grace"),
    ] = GRACE_SECONDS
    cursor_age_seconds: Annotated[
        float,
        Option(
            meaning="Keep versions for a cursor (memwal changes) that nobody moved for this long.",
            metavar="14d",
        ),
    ] = 14 * 86_400.0
    allow_short_retention: Annotated[
        bool,
        Option(
            meaning="Permit a retention or --ingest-idle under a day, and a grace under ten "
            "minutes."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class DeletingRequest(Retention):
    """What whoever deletes may be asked: a garbage collection, alone or at the end of others."""

    execute: Annotated[
        bool,
        Option(
            meaning="Drop and delete garbage; else, or in a dry run, list it.",
            form="Delete garbage",
        ),
    ] = False
    ingest_idle_seconds: Annotated[
        float,
        Option(
            meaning="How long to keep the staged rows of an unfinished ingest that nobody resumes.",
            metavar="14d",
        ),
    ] = 14 * 86_400.0
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
    as_configured: Annotated[
        bool,
        Option(
            meaning="Delete from the tables for which a retention is configured, by it.",
            form="As configured",
        ),
    ] = False
    full: Annotated[
        bool,
        Option(
            meaning="Look at all shards of a large table, not only those changed since the last "
            "pass."
        ),
    ] = False

    def where_kept(self, configured_seconds: float | None) -> GarbageRequest:
        """What is asked for on a table for which that `retention` is configured, or none.

        It applies where the request has none. Then covered WAL is deleted, too, unless the request
        says otherwise.
        """
        if configured_seconds is None:
            return self
        expiring = self.retention_seconds is None
        return replace(
            self,
            execute=self.execute or self.as_configured,
            retention_seconds=configured_seconds if expiring else self.retention_seconds,
            wal=expiring if self.wal is None else self.wal,
        )
