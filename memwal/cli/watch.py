"""`memwal watch`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from memwal.cli import process
from memwal.cli.console import RunProgress, stdout
from memwal.cli.flags import Job, JobFlags, Tables, command, load, make_lister
from memwal.cli.output import Output
from memwal.clock import SystemClock
from memwal.config import (
    ResolvedTable,
    WatchSettings,
    find_glob,
    make_settings,
)
from memwal.errors import MemWalError, Usage
from memwal.jobs.watch.request import WatchRequest
from memwal.options import list_settings
from memwal.report import FAILED, JobReport

if TYPE_CHECKING:
    from memwal.jobs.watch.ports import Event


@command(JobFlags)
def watch(tables: Tables, *, request: WatchRequest, flags: JobFlags, results: Output) -> Job:
    """Keep tables fresh: merge and index flushed rows in time.

    Runs until SIGTERM or Ctrl-C, and then finishes the commits in progress. With --json, one
    object a line for each event.
    """
    if request.metrics_host is not None and request.metrics_port is None:
        raise Usage("--metrics-host says where --metrics-port is served: give that too")
    # Events are shown as they happen; only --report gets a document at the end.
    events = _EventLines(as_json=results.as_json)
    results.as_json, results.shows = False, False

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.watch.job import WatchOptions, run_watch
        from memwal.jobs.watch.report import describe_end
        from memwal.jobs.watch.store import StoredNames

        try:
            config, options = load(flags.config, flags.storage_option, quiet=True)
            settings = _read_settings(config.watch, request)
            lister = make_lister(config, options)
            listed = StoredNames(lister, SystemClock(), every_seconds=settings.names_every)

            def read_again() -> list[ResolvedTable] | None:
                """The tables, if a namespace or a folder lists others now."""
                if not listed.renew():
                    return None
                names = []
                for name in tables:
                    glob = find_glob(name, config)
                    if glob is None or glob.match(listed.find(glob)):
                        names.append(name)
                found = flags.tables(names, quiet=True, listed=listed.find) if names else []
                return [hold(table, request) for table in found]

            found = [hold(table, request) for table in flags.tables(tables, listed=listed.find)]
            if not request.once:
                _refuse_unknown(found)
            watch_options = flags.run_options(
                WatchOptions,
                found,
                request=request,
                settings=settings,
                events=events,
                read_again=read_again,
                find_unlisted=listed.find_problems,
                metrics=results.take_metrics(shown=request.metrics_port is not None),
            )
            report = run_watch(watch_options, progress)
        except MemWalError as error:
            events.tell_failure(error)
            raise
        if not events.as_json:
            events.say(describe_end(report))
        if events.problem is None:
            return report
        text = f"stdout can't take what happens: {events.problem}"
        return report.model_copy(update={"outcome": FAILED, "error": text, "exit_code": 1})

    return work


def _read_settings(configured: WatchSettings, request: WatchRequest) -> WatchSettings:
    asked = {} if request.every_seconds is None else {"every": request.every_seconds}
    try:
        return WatchSettings.model_validate({**configured.model_dump(), **asked})
    except ValidationError as error:
        texts = (f"--{found['loc'][0]}: {found['msg']}" for found in error.errors())
        raise Usage("; ".join(texts)) from None


def hold(table: ResolvedTable, request: WatchRequest) -> ResolvedTable:
    """The table with what the request overrides. Its own retention holds if it is longer."""
    held = table.with_settings(make_settings(**list_settings(request)))
    times = [t.settings.retention for t in (table, held) if t.settings.retention is not None]
    return held.with_settings(make_settings(retention=max(times, default=None)))


def _refuse_unknown(tables: Sequence[ResolvedTable]) -> None:
    """Raise Usage if no name leads anywhere; if some do, the others may still come to exist."""
    wrong = None
    for table in tables:
        try:
            table.find_uri()
        except Usage as error:
            wrong = wrong or error
        else:
            return
    if wrong is not None:
        raise wrong


@dataclass(kw_only=True)
class _EventLines:
    """The Events port over stdout, one line for each event; a reader may close its end."""

    as_json: bool
    problem: str | None = None
    _is_lost: bool = False

    @property
    def is_heard(self) -> bool:
        """Whether anybody still reads stdout; checked even if there is nothing to print."""
        return not self._is_lost and not process.is_reader_gone()

    def tell(self, event: Event) -> None:
        """Print the event."""
        from memwal.jobs.watch.report import describe_event, event_document

        if self.as_json:
            self.say(json.dumps(event_document(event)))
        else:
            self.say(describe_event(event))

    def tell_failure(self, error: MemWalError) -> None:
        """Print the error that ended the watch with --json; people see it as from any command."""
        from memwal.jobs.watch.ports import Event
        from memwal.jobs.watch.report import describe_error

        if self.as_json:
            at = SystemClock().now_nanos()
            self.tell(Event(at_nanos=at, table=None, event="error", details=describe_error(error)))

    def say(self, line: str) -> None:
        """Print a line and flush it."""
        if sys.stdout is None or self._is_lost:
            return
        try:
            # `Terminal` escapes control characters, which names and errors may contain.
            sys.stdout.write(line + "\n") if self.as_json else stdout().print(line)
            sys.stdout.flush()
        except OSError as error:
            self._is_lost = True
            self.problem = process.give_up(error)
