"""`memwal status`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live as Screen
from rich.text import Text

from memwal.cli.console import RunProgress, Terminal
from memwal.cli.flags import ReadFlags, command
from memwal.cli.options import Consistency, Tables
from memwal.cli.output import Document, Output
from memwal.cli.parse import parse_duration
from memwal.clock import SystemClock
from memwal.errors import MemWalError, Usage
from memwal.format.layout import parse_shard
from memwal.read.plan.request import parse_consistency
from memwal.report import DONE, JobReport

if TYPE_CHECKING:
    from memwal.jobs.status.until import Until

_EVERY_SECONDS_MIN = 0.1
_FRAME_LINES = 3  # above the tables, and below them

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
Live = Annotated[
    bool,
    typer.Option("--live", help="Show it live, the worst table first, until Ctrl-C."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="http://HOST:PORT",
        help="Show what the watch sees that serves --metrics-port there, in place of tables.",
    ),
]
Every = Annotated[
    str, typer.Option("--every", metavar="2s", help="With --live, how often to look.")
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
    live: Live = False,
    source: From = None,
    every: Every = "2s",
    all_shards: AllShards = False,
    verbose: Verbose = False,
    flags: ReadFlags,
    progress: RunProgress,
    results: Output,
) -> Document:
    """Show shards, pending generations, merge and index progress.

    With --live, a line for each table; once, where stdout is no terminal.
    """
    # Imported late, as in every command: importing lance alone takes longer than --help may take.
    from memwal.jobs.status.job import run_status
    from memwal.jobs.status.plan import parse_condition
    from memwal.jobs.status.scrape import report_watch
    from memwal.jobs.status.show import show_table, show_tables, show_verdicts
    from memwal.run.options import RunOptions
    from memwal.run.progress import SILENT

    asked = parse_consistency(consistency)
    conditions = [parse_condition(text) for text in fail_if or ()]
    wait = _parse_until(until, timeout, generation or [])
    every_seconds = parse_duration(every, "--every")
    if every_seconds < _EVERY_SECONDS_MIN:
        raise Usage(f"--every {every}: expected {_EVERY_SECONDS_MIN:g}s or more")
    if wait is not None and (live or source is not None):
        raise Usage("--until waits and shows tables once: not with --live or --from")
    look: Callable[[], JobReport]
    if source is not None:
        if tables or flags.everything:
            raise Usage("--from shows the tables of that watch: name none beside it")
        look = partial(report_watch, source, conditions)
    else:
        options = flags.run_options(RunOptions, flags.tables(tables))
        look = partial(
            run_status,
            options,
            SILENT if live else progress,
            consistency=asked,
            conditions=conditions,
            until=wait,
        )
    if live and not flags.as_json and _is_screen():
        results.shows = False
        return Document.of(_show_live(look, every_seconds))
    report = look()
    if live or source is not None:
        return Document.of(report, show_tables=show_tables)
    return Document.of(
        report,
        show_table=partial(show_table, all_shards=all_shards, verbose=verbose),
        show_end=show_verdicts,
        show_tables=None if verbose or all_shards or len(report.tables) == 1 else show_tables,
    )


def _is_screen() -> bool:
    return sys.stdout is not None and sys.stdout.isatty() and not Terminal().is_dumb_terminal


def _show_live(look: Callable[[], JobReport], every_seconds: float) -> JobReport:
    """Show what is found, again and again, until Ctrl-C; returns a report that it went well."""
    from memwal.jobs.status.show import show_tables

    report, problem = look(), Text()
    with (
        suppress(KeyboardInterrupt),
        Screen(console=Terminal(), screen=True, auto_refresh=False) as screen,
    ):
        while True:
            lines = max(1, screen.console.height - _FRAME_LINES)
            screen.update(Group(*show_tables(report.tables, lines), problem), refresh=True)
            SystemClock().sleep(every_seconds)
            try:
                report, problem = look(), Text()
            except MemWalError as error:
                problem = Text(str(error), style="red")
    return JobReport(job="status", outcome=DONE)


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
