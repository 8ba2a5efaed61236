"""`memwal garbage`, and the options of every command that may delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.options import Tables
from memwal.cli.parse import parse_duration

Retention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="7d",
        help="Expire table versions that are older before anything is deleted. Default: as "
        "configured, else none.",
    ),
]
Grace = Annotated[
    str, typer.Option("--grace", metavar="1h", help="How long to keep unused objects for readers.")
]
Wal = Annotated[
    bool | None,
    typer.Option(
        "--wal/--no-wal",
        help="Also delete covered WAL entries. Default: where a retention is configured.",
    ),
]
Execute = Annotated[
    bool,
    typer.Option(
        "--execute", help="Drop and delete garbage; without it, or with --dry-run, list it."
    ),
]
ShortRetention = Annotated[
    bool,
    typer.Option(
        "--allow-short-retention",
        help="Permit a retention or --ingest-idle under a day, and a grace under ten minutes.",
    ),
]
IngestIdle = Annotated[
    str,
    typer.Option(
        "--ingest-idle",
        metavar="14d",
        help="How long to keep the staged rows of an unfinished ingest that nobody resumes.",
    ),
]
AdoptOrphans = Annotated[
    bool,
    typer.Option(
        "--adopt-orphans", help="Also delete the shards of a table whose MemWAL index is gone."
    ),
]


AsConfigured = Annotated[
    bool,
    typer.Option(
        "--as-configured",
        help="Delete from the tables for which a retention is configured, by it.",
    ),
]
Full = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Look at all shards of a large table, not only those changed since the last pass.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class DeletingFlags(JobFlags):
    """The further flags of a command that may delete."""

    retention: Retention = None
    grace: Grace = "1h"
    ingest_idle: IngestIdle = "14d"
    wal: Wal = None
    execute: Execute = False
    allow_short_retention: ShortRetention = False

    def garbage_options(self, **limits: Any) -> dict[str, Any]:
        """Make the garbage job's own options. Raises Usage for an invalid duration."""
        from memwal.jobs.garbage.model import GarbageLimits

        retention = self.retention
        return {
            "execute": self.execute,
            "retention_seconds": (
                None if retention is None else parse_duration(retention, "--retention")
            ),
            "wal_kept": self.wal is False,
            "short_allowed": self.allow_short_retention,
            "limits": GarbageLimits(
                grace_seconds=parse_duration(self.grace, "--grace"),
                ingest_idle_seconds=parse_duration(self.ingest_idle, "--ingest-idle"),
                wal=bool(self.wal),
                **limits,
            ),
        }


@command(DeletingFlags)
def garbage(
    tables: Tables,
    *,
    adopt_orphans: AdoptOrphans = False,
    as_configured: AsConfigured = False,
    full: Full = False,
    flags: DeletingFlags,
) -> Job:
    """List what is provably unused; with --execute, delete it.

    Garbage is generations, their WAL, staged rows, old manifests and claims.
    """
    from memwal.jobs.garbage.job import GarbageOptions, run_garbage

    options = flags.garbage_options(adopt_orphans=adopt_orphans)
    options |= {"as_configured": as_configured, "full": full}
    return flags.job(run_garbage, GarbageOptions, tables, **options)
