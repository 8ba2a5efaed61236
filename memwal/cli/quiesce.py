"""`memwal quiesce`: a table at rest, before its write spec changes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memwal.cli.flags import Job, JobFlags, command
from memwal.cli.garbage import Grace, Retention, ShortRetention
from memwal.cli.options import Tables
from memwal.cli.parse import parse_duration
from memwal.cli.rescue import Idle, Yes, ask
from memwal.errors import Usage

if TYPE_CHECKING:
    from memwal.jobs.rescue.plan import ShardRescue


@dataclass(frozen=True, kw_only=True)
class QuiesceFlags(JobFlags):
    """The flags that only this command takes."""

    retention: Retention = None
    grace: Grace = "1h"
    allow_short_retention: ShortRetention = False


@command(QuiesceFlags)
def quiesce(
    tables: Tables,
    idle: Idle = "10m",
    yes: Yes = False,
    *,
    flags: QuiesceFlags,
) -> Job:
    """Bring a table to rest, to change its write spec or indexes.

    It flushes what writers that have gone left in the WAL (asking first), merges, catches indexes
    up and drops what is merged. Then it says whether the write spec may be changed, or what is in
    the way. A generation is dropped once it is merged at every retained version: --retention
    expires older versions.
    """
    from memwal.jobs.garbage.model import GarbageLimits
    from memwal.jobs.quiesce.job import QuiesceOptions, run_quiesce
    from memwal.jobs.rescue.request import RescueRequest

    kept = flags.retention
    return flags.job(
        run_quiesce,
        QuiesceOptions,
        tables,
        confirm=(lambda table, shards: True) if yes else _confirm,
        idle=RescueRequest(idle_seconds=parse_duration(idle, "--idle")),
        retention_seconds=None if kept is None else parse_duration(kept, "--retention"),
        short_allowed=flags.allow_short_retention,
        limits=GarbageLimits(grace_seconds=parse_duration(flags.grace, "--grace")),
    )


def _confirm(table: str, shards: Sequence[ShardRescue]) -> bool:
    if not sys.stdin.isatty():
        raise Usage("claiming a shard has to be confirmed: off a terminal, pass --yes")
    return ask(table, shards)
