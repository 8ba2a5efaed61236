"""`memwal status`."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from memwal.cli.console import RunProgress
from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Consistency, Tables
from memwal.cli.output import Document
from memwal.cli.parse import parse_duration
from memwal.errors import Usage
from memwal.format.layout import parse_shard
from memwal.read.plan.request import parse_consistency

if TYPE_CHECKING:
    from memwal.jobs.status.until import Until

FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="CONDITION",
        help="Exit with code 3 if this holds for a table, such as 'oldest_pending_seconds > 5m' or "
        "'pending_bytes > 1GiB'; repeatable.",
    ),
]
UntilName = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="merged|indexed|collected",
        help="First wait until that is true of all that is flushed now.",
    ),
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="10m", help="Until when; then exit with code 4.")
]
Generations = Annotated[
    list[str] | None,
    typer.Option(
        "--generation", metavar="SHARD=N", help="With --until, wait only for these; repeatable."
    ),
]
AllShards = Annotated[
    bool, typer.Option("--all-shards", help="List every shard, even if there are many.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="Show all that is known of each table, on wide lines.")
]


@command()
def status(
    tables: Tables,
    *,
    consistency: Consistency = "latest",
    fail_if: FailIf = None,
    until: UntilName = None,
    timeout: Timeout = "10m",
    generation: Generations = None,
    all_shards: AllShards = False,
    verbose: Verbose = False,
    flags: ReadFlags,
    progress: RunProgress,
) -> Document:
    """Show shards, pending generations, merge and index progress."""
    # Imported late, as in every command: importing lance alone takes longer than --help may take.
    from memwal.jobs.status.job import run_status
    from memwal.jobs.status.plan import parse_condition
    from memwal.jobs.status.show import show_table, show_tables, show_verdicts
    from memwal.run.options import RunOptions

    asked = parse_consistency(consistency)
    conditions = [parse_condition(text) for text in fail_if or ()]
    wait = _parse_until(until, timeout, generation or [])
    options = flags.run_options(RunOptions, flags.tables(tables))
    report = run_status(options, progress, consistency=asked, conditions=conditions, until=wait)
    return Document.of(
        report,
        show_table=partial(show_table, all_shards=all_shards, verbose=verbose),
        show_end=show_verdicts,
        show_tables=None if verbose or all_shards or len(report.tables) == 1 else show_tables,
    )


def _parse_until(text: str | None, timeout: str, generations: list[str]) -> Until | None:
    from memwal.jobs.status.until import Step, Until

    seconds = parse_duration(timeout, "--timeout")
    named = _parse_generations(generations)
    if text is None:
        if named:
            raise Usage("--generation says what --until waits for: give that too")
        return None
    try:
        return Until(step=Step(text), timeout_seconds=seconds, generations=named)
    except ValueError:
        names = ", ".join(step.value for step in Step)
        raise Usage(f"--until {text!r}: expected one of {names}") from None


def _parse_generations(texts: list[str]) -> dict[str, int]:
    """Parse `SHARD=N` texts. Raises Usage for another form, and for a shard named twice."""
    found: dict[str, int] = {}
    for text in texts:
        shard, _, number = text.partition("=")
        if not re.fullmatch("[1-9][0-9]{0,18}", number):
            raise Usage(f"--generation {text!r}: expected SHARD=N with a generation from 1 on")
        shard_id = parse_shard(shard)
        if shard_id in found:
            raise Usage(f"--generation names shard {shard_id} twice")
        found[shard_id] = int(number)
    return found
