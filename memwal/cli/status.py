"""`memwal status`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Consistency, Tables
from memwal.cli.output import Document
from memwal.read.plan.request import parse_consistency

FailIf = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-if",
        metavar="CONDITION",
        help="Exit with code 3 if this holds for a table, such as 'oldest_pending_seconds > 5m' or "
        "'pending_bytes > 1GiB'; repeatable.",
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
    all_shards: AllShards = False,
    verbose: Verbose = False,
    flags: ReadFlags,
) -> Document:
    """Show shards, pending generations, merge and index progress."""
    # Imported late, as in every command: importing lance alone takes longer than --help may take.
    from memwal.jobs.status.job import run_status
    from memwal.jobs.status.plan import parse_condition
    from memwal.jobs.status.show import show_table, show_tables, show_verdicts
    from memwal.run.options import RunOptions

    asked = parse_consistency(consistency)
    conditions = [parse_condition(text) for text in fail_if or ()]
    options = flags.run_options(RunOptions, flags.tables(tables))
    report = run_status(options, consistency=asked, conditions=conditions)
    return Document.of(
        report,
        show_table=partial(show_table, all_shards=all_shards, verbose=verbose),
        show_end=show_verdicts,
        show_tables=None if verbose or all_shards or len(report.tables) == 1 else show_tables,
    )
