"""`memwal rescue`: the one command that takes a writer's place."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.flags import Job, ReadFlags, command
from memwal.cli.options import DryRun, NoLease, Shards, Tables
from memwal.cli.parse import parse_duration, parse_shards
from memwal.errors import Usage
from memwal.grid import format_size
from memwal.text import count_of, format_age

if TYPE_CHECKING:
    from memwal.jobs.rescue.plan import ShardRescue

Idle = Annotated[
    str,
    typer.Option(
        "--idle", metavar="10m", help="Skip shards with a sign of life younger than this."
    ),
]
DropTorn = Annotated[
    bool,
    typer.Option(
        "--drop-torn",
        help="Put a torn entry aside that is the last in its WAL, so that writers can open the "
        "shard.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Claim without asking.")]


@dataclass(frozen=True, kw_only=True)
class RescueFlags(ReadFlags):
    """The flags that only this command takes."""

    dry_run: DryRun = False
    no_lease: NoLease = False


@command(RescueFlags)
def rescue(
    tables: Tables,
    shard: Shards = None,
    idle: Idle = "10m",
    drop_torn: DropTorn = False,
    yes: Yes = False,
    *,
    flags: RescueFlags,
) -> Job:
    """Flush what a writer that has gone left in the WAL.

    It claims the shard: if the writer is alive after all, it is fenced and has to be opened again.
    No acknowledged row is lost either way. Run `memwal merge` afterwards.
    """
    from memwal.jobs.rescue.job import RescueOptions, run_rescue
    from memwal.jobs.rescue.request import RescueRequest

    if not (yes or flags.dry_run or sys.stdin.isatty()):
        raise Usage("claiming a shard has to be confirmed: off a terminal, pass --yes")
    return flags.job(
        run_rescue,
        RescueOptions,
        tables,
        shards=parse_shards(shard),
        request=RescueRequest(idle_seconds=parse_duration(idle, "--idle"), drop_torn=drop_torn),
        dry_run=flags.dry_run,
        lease=not flags.no_lease,
        confirm=(lambda table, shards: True) if yes else ask,
    )


def ask(table: str, shards: Sequence[ShardRescue]) -> bool:
    """Ask the user whether these shards may be claimed."""
    typer.echo(f"{table}: to be claimed, which fences a writer that is alive after all:", err=True)
    for plan in shards:
        typer.echo(
            f"  shard {plan.shard_id}: {count_of(plan.rows, 'row')} in {plan.entries} WAL entries "
            f"({format_size(plan.size_bytes)}), silent for {format_age(plan.idle_seconds)}",
            err=True,
        )
        for text in plan.warnings:
            typer.echo(f"    warning: {text}", err=True)
    try:
        return typer.confirm("Claim?", default=False, err=True)
    except typer.Abort:
        return False
