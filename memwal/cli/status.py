"""`memwal status`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from rich.console import Group
from rich.live import Live as Screen
from rich.text import Text

from memwal.cli.console import RunProgress, Terminal
from memwal.cli.flags import ReadFlags, Tables, command
from memwal.cli.output import Document, Output
from memwal.clock import SystemClock
from memwal.errors import MemWalError, Usage
from memwal.jobs.status.request import StatusRequest
from memwal.report import DONE, JobReport

_FRAME_LINES = 3  # above the tables, and below them


@command()
def status(
    tables: Tables,
    *,
    request: StatusRequest,
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
    from memwal.jobs.status.show import show_tables, show_verdicts
    from memwal.jobs.status.until import choose_until
    from memwal.run.options import RunOptions
    from memwal.run.progress import SILENT

    conditions = [parse_condition(text) for text in request.fail_if]
    wait = choose_until(request)
    if wait is not None and (request.live or request.source is not None):
        raise Usage("--until waits and shows tables once: not with --live or --from")
    look: Callable[[], JobReport]
    if request.source is not None:
        if tables or flags.everything:
            raise Usage("--from shows the tables of that watch: name none beside it")
        look = partial(report_watch, request.source, conditions)
    else:
        options = flags.run_options(RunOptions, flags.tables(tables))
        look = partial(
            run_status,
            options,
            SILENT if request.live else progress,
            consistency=request.consistency,
            conditions=conditions,
            until=wait,
        )
    if request.live and not flags.as_json and _is_screen():
        results.shows = False
        return Document.of(_show_live(look, request.every_seconds))
    report = look()
    if request.live or request.source is not None:
        return Document.of(report, show_tables=show_tables)
    several = None if len(report.tables) == 1 else show_tables
    return Document.of(report, show_end=show_verdicts, show_tables=several)


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
