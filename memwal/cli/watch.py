"""`memwal watch`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from memwal.cli import streams
from memwal.cli.console import RunProgress, stdout
from memwal.cli.flags import Job, JobFlags, command, list_names, load
from memwal.cli.options import Tables
from memwal.cli.output import Output
from memwal.cli.parse import parse_duration
from memwal.clock import SystemClock
from memwal.config import (
    DEFAULT_FILE,
    Config,
    ResolvedTable,
    Settings,
    WatchSettings,
    find_named_file,
    find_namespaced,
    is_glob,
    make_settings,
    match_listed,
    match_names,
)
from memwal.errors import MemWalError, Usage
from memwal.report import FAILED, JobReport

if TYPE_CHECKING:
    from memwal.jobs.watch.ports import Event
    from memwal.jobs.watch.store.names import StoredNames

Freshness = Annotated[
    str | None,
    typer.Option(
        "--freshness",
        metavar="60s",
        help="How old flushed rows may become before they are merged and indexed.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option("--every", metavar="5s", help="How often to look at a table that changes."),
]
Retention = Annotated[
    str | None,
    typer.Option(
        "--retention",
        metavar="7d",
        help="How long versions stay; what nothing needs is then deleted, also WAL. Of this and "
        "what is configured, the longer holds; without either nothing is deleted.",
    ),
]
For = Annotated[str | None, typer.Option("--for", metavar="10m", help="End after this long.")]
Once = Annotated[bool, typer.Option("--once", help="Bring every table up to date once, and end.")]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Only say of each table what it needs now, what it waits for, and whose turn is "
        "before its own.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        min=0,
        max=65535,
        help="Serve /metrics, /healthz and /readyz on this port; on a free one with 0.",
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host", metavar="ADDRESS", help="Serve on this address, not only on loopback."
    ),
]


Json = Annotated[
    bool, typer.Option("--json", help="One JSON object a line on stdout, for each event.")
]


@dataclass(frozen=True, kw_only=True)
class WatchFlags(JobFlags):
    """The flags that only `watch` takes."""

    as_json: Json = False
    freshness: Freshness = None
    retention: Retention = None
    every: Every = None
    duration: For = None
    once: Once = False
    explain: Explain = False
    metrics_port: MetricsPort = None
    metrics_host: MetricsHost = None

    def check(self) -> None:
        """As for every command, and check the flags that only `watch` takes."""
        super().check()
        if self.metrics_host is not None and self.metrics_port is None:
            raise Usage("--metrics-host says where --metrics-port is served: give that too")
        _ = self.held_to, self.seconds_max, self.own

    @property
    def held_to(self) -> Settings:
        """The settings that override those of the tables. Raises Usage."""
        return make_settings(
            freshness=_parse(self.freshness, "--freshness"),
            retention=_parse(self.retention, "--retention"),
        )

    def hold(self, table: ResolvedTable) -> ResolvedTable:
        """The table with the flags' settings. Its own retention holds if it is longer."""
        held = table.with_settings(self.held_to)
        times = [t.settings.retention for t in (table, held) if t.settings.retention is not None]
        return held.with_settings(make_settings(retention=max(times, default=None)))

    @property
    def own(self) -> Mapping[str, object]:
        """The settings that override those of `[watch]`. Raises Usage."""
        every = _parse(self.every, "--every")
        return {} if every is None else {"every": every}

    @property
    def seconds_max(self) -> float | None:
        """After how many seconds to end; None: never. Raises Usage."""
        return _parse(self.duration, "--for")


def _parse(text: str | None, option: str) -> float | None:
    return None if text is None else parse_duration(text, option)


@command(WatchFlags)
def watch(tables: Tables, *, flags: WatchFlags, results: Output) -> Job:
    """Keep tables fresh: merge and index flushed rows in time.

    Runs until SIGTERM or Ctrl-C, and then finishes the commits in progress. With --json, one
    object a line for each event.
    """
    flags.check()
    # Events are shown as they happen; only --report gets a document at the end.
    events = _EventLines(as_json=results.as_json, explains=flags.explain)
    results.as_json, results.shows = False, False

    def work(progress: RunProgress) -> JobReport:
        from memwal.jobs.watch.job import run_watch
        from memwal.jobs.watch.options import WatchOptions
        from memwal.jobs.watch.probes import serve_probes
        from memwal.jobs.watch.report import describe_end
        from memwal.jobs.watch.store.names import StoredNames

        listed = StoredNames(list_names, SystemClock())
        file = _Configuration(flags=flags, names=tables, warn=progress.warn, listed=listed)
        try:
            settings, watched = file.read()
            options = flags.run_options(
                WatchOptions,
                watched,
                settings=settings,
                events=events,
                read_again=file.read_again,
                find_unlisted=listed.find_problems,
                seconds_max=flags.seconds_max,
                once=flags.once or flags.explain,
                explains=flags.explain,
            )
            if flags.explain:
                options = replace(options, dry_run=True)
            metrics = results.measures.take(shown=flags.metrics_port is not None)
            with serve_probes(
                metrics,
                host=flags.metrics_host,
                port=flags.metrics_port,
                every_seconds=settings.every,
                progress=progress,
            ) as observers:
                options = replace(options, observers=observers, metrics=metrics)
                report = run_watch(options, progress)
        except MemWalError as error:
            events.tell_failure(error)
            raise
        if not events.as_json and not flags.explain:
            events.say(describe_end(report))
        if events.problem is None:
            return report
        text = f"stdout can't take what happens: {events.problem}"
        return report.model_copy(update={"outcome": FAILED, "error": text, "exit_code": 1})

    return work


@dataclass(kw_only=True)
class _Configuration:
    """The tables to watch, from the command line, a file that may change, and namespaces."""

    flags: WatchFlags
    names: Sequence[str]
    warn: Callable[[str], None]
    listed: StoredNames
    _mark: tuple[int, ...] | None = None
    _config: Config = field(default_factory=Config)
    _known: set[str] = field(default_factory=set)

    def read(self) -> tuple[WatchSettings, list[ResolvedTable]]:
        """Read what the watch begins with; flags override `[watch]`. Raises Usage."""
        config, tables = self._read(again=False)
        if not (self.flags.once or self.flags.explain):
            _refuse_unknown(tables)
        values = {**config.watch.model_dump(), **self.flags.own}
        self.listed.every_seconds = config.watch.names_every
        try:
            return WatchSettings.model_validate(values), tables
        except ValidationError as error:
            texts = (f"--{found['loc'][0]}: {found['msg']}" for found in error.errors())
            raise Usage("; ".join(texts)) from None

    def read_again(self) -> list[ResolvedTable] | None:
        """Return the tables if the file or a namespace's names have changed. Raises Usage."""
        changed = self.listed.renew()
        if not changed and _mark(_file(self.flags)) == self._mark:
            return None
        watch = self._config.watch
        config, tables = self._read(again=True)
        named = (find_namespaced(given, config.namespaces) for given in self.names)
        if not tables and not any(named):  # an editor may have emptied it before writing it again
            raise Usage(f"{_file(self.flags)}: none of the tables to watch is in it")
        if config.watch != watch:
            self.warn(f"{_file(self.flags)}: [watch] has changed; the next start takes it")
        return tables

    def _read(self, *, again: bool) -> tuple[Config, list[ResolvedTable]]:
        file = _file(self.flags)
        # Taken before reading the file: what is written meanwhile is then read again.
        before, self._mark = self._mark, _mark(file)
        if before is not None and self._mark is None:
            raise Usage(f"{file}: the configuration file is gone")
        config, _ = load(self.flags.config, self.flags.storage_option, quiet=True)
        if not again:
            found = self.flags.tables(self.names, listed=self.listed.find)
        else:
            named = replace(self.flags, everything=False)
            names = list(self._list_left(config))
            found = named.tables(names, quiet=True, listed=self.listed.find) if names else []
        self._config = config
        self._known |= set(config.tables)
        return config, [self.flags.hold(table) for table in found]

    def _list_left(self, config: Config) -> Iterator[str]:
        """Yield the names to watch from now on.

        A name that has been removed from the file is left out, as it would be taken for a path.
        """
        yield from config.tables if self.flags.everything else ()
        for given in self.names:
            matched = match_names(given, config)
            yield from matched
            spaced = None if matched else find_namespaced(given, config.namespaces)
            if spaced is None:
                left = not is_glob(given) and given not in self._known | set(config.tables)
            else:  # a glob without a match now may have one later
                left = not is_glob(given) or match_listed(spaced, self.listed.find(spaced)) != []
            if left:
                yield given


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


def _file(flags: JobFlags) -> Path:
    return Path(find_named_file(flags.config) or DEFAULT_FILE)


def _mark(file: Path) -> tuple[int, ...] | None:
    """Return a value that changes with the file's content; None if there is no such file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(kw_only=True)
class _EventLines:
    """The Events port over stdout, one line for each event; a reader may close its end."""

    as_json: bool
    explains: bool = False
    problem: str | None = None
    _is_lost: bool = False

    @property
    def is_heard(self) -> bool:
        """Whether anybody still reads stdout; checked even if there is nothing to print."""
        return not self._is_lost and not streams.is_reader_gone()

    def tell(self, event: Event) -> None:
        """Print the event; where a watch explains, no other one of a table."""
        if self.explains and event.table is not None and event.event != "explain":
            return
        from memwal.jobs.watch.report import describe_event, event_document

        if self.as_json:
            self.say(json.dumps(event_document(event)))
        else:
            for line in describe_event(event).splitlines():
                self.say(line)

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
            self.problem = streams.give_up(error)
