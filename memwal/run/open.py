"""Runs a job over tables: view and plan here, units on an engine, one report."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from memwal.config import ResolvedTable, Settings
from memwal.errors import MemWalError, Unsupported, Usage
from memwal.model import ShardView, TableView
from memwal.report import NOTHING_TO_DO, EngineReport, JobReport, Part, TableReport, sum_up_tables
from memwal.run.engine import EngineChoice
from memwal.run.engines.local import LocalEngine
from memwal.run.engines.pool import SharedEngines, Started
from memwal.run.lease import HeldLease
from memwal.run.stores import Stores, open_stores
from memwal.store.objects import same_place
from memwal.store.table import lance_version

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Limits = TypeVar("Limits")

# The range of pylance majors that is tested. This is its one place.
TESTED_LANCE_MAJORS = (14,)

# Each of these reads a table's shards in threads of its own (`memwal.store.view`).
TABLE_READERS_MAX = 4
KNOWN_SECONDS_MAX = 60.0


class Progress(Protocol):
    """Told how far a long step is."""

    def start(self, what: str, total: int) -> None:
        """A step with `total` units begins."""
        ...

    def done(self, count: int) -> None:
        """So many of them are done."""
        ...

    def say(self, text: str) -> None:
        """A line for people."""
        ...

    def warn(self, text: str) -> None:
        """A line about trouble: shown of a job inside another job, too."""
        ...

    def trace(self, text: str) -> None:
        """A traceback, shown with `--debug` only."""
        ...


class KnownTables:
    """Views that one job read, for the next job of the same run, where the first changed nothing.

    What such a view shows as done is done; before anything is written, every job reads again.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stores, TableView, float]] = {}

    def keep(self, table: OpenTable) -> None:
        """Remember the view that the table was opened with."""
        if table.view is not None and table.stores is not None:
            self._known[table.resolved.uri] = (table.stores, table.view, table.began_seconds)

    def forget(self, table: ResolvedTable) -> None:
        """The table may have changed."""
        self._known.pop(table.uri, None)

    def give(self, table: OpenTable) -> None:
        """Open a table that is known, and not for too long."""
        known = self._known.get(table.resolved.uri)
        if known is None:
            return
        stores, view, seconds = known
        if stores.clock.monotonic_seconds() - seconds > KNOWN_SECONDS_MAX:
            return
        table.stores, table.view, table.known = stores, view, True
        table.requests_before = stores.objects.counts.as_dict()
        table.begin()


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What every job takes. With `engines`, those are used and left running."""

    tables: Sequence[ResolvedTable]
    engine: str | None = None
    master: str | None = None
    dry_run: bool = False
    lease: bool = True
    untested_lance_allowed: bool = False
    known: KnownTables | None = None
    engines: SharedEngines | None = None


@dataclass(kw_only=True)
class OpenTable:
    """One table on its way through a job. `lease` is None until there is work, or with no lease.

    `parts` collects the reports of the table's parts, `work` the shards that need units,
    `unit_requests` what units asked of the store. `known` is set once it was seen to be a table,
    `worked_on` once a lease was taken for it, which may have been given back since, and `untrusted`
    once its store was found to lack what writing needs. `warn` is told of trouble with the lease.
    """

    resolved: ResolvedTable
    warn: Callable[[str], None] = lambda text: None
    stores: Stores | None = None
    view: TableView | None = None
    lease: HeldLease | None = None
    worked_on: bool = False
    untrusted: bool = False
    error: MemWalError | None = None
    parts: list[Part] = field(default_factory=list)
    work: list[ShardView] = field(default_factory=list)
    unit_requests: list[Mapping[str, int]] = field(default_factory=list)
    known: bool = False
    began_at_nanos: int = 0
    began_seconds: float = 0.0
    requests_before: Mapping[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Work on this table starts now, for its run record."""
        if self.stores is not None:
            self.began_at_nanos = self.stores.clock.now_nanos()
            self.began_seconds = self.stores.clock.monotonic_seconds()

    def requests(self) -> dict[str, int]:
        """What was asked of the store for this table so far."""
        total: dict[str, int] = {}
        own = [] if self.stores is None else [self.stores.objects.counts.as_dict()]
        for counts in (*own, *self.unit_requests):
            for key, value in counts.items():
                total[key] = total.get(key, 0) + value
        return {key: value - self.requests_before.get(key, 0) for key, value in total.items()}

    @property
    def lease_token(self) -> int | None:
        """The fencing token that units carry."""
        return None if self.lease is None else self.lease.token

    def take_lease(self, job: str, options: RunOptions) -> None:
        """Prove the store, and claim the table unless `--no-lease`, before anything is written.

        Called once there is work, so that an idle pass writes nothing; what was planned before has
        to be read again afterwards. Raises LeaseHeld, and what `prove_store` does.
        """
        self.prove_store()
        if options.lease and self.lease is None and self.stores is not None:
            name = self.resolved.name
            self.lease = HeldLease(
                self.stores.leases, job, lambda text: self.warn(f"{name}: {text}")
            )
            self.worked_on = True

    def prove_store(self) -> None:
        """Before the first write: raise Unsupported for a store without put-if-absent."""
        try:
            if self.stores is not None:
                self.stores.prove_store()
        except Unsupported:
            self.untrusted = True
            raise

    def release_lease(self) -> None:
        """Give the lease back, if it was taken. One that stands is told, and ends no job."""
        lease, self.lease = self.lease, None
        if lease is not None:
            try:
                lease.release()
            except MemWalError as error:
                self.warn(str(error))

    def before_commit(self) -> None:
        """Raise LeaseHeld when the table's lease was lost; asked before each writing step."""
        if self.lease is not None:
            self.lease.check()

    def before_repair(self) -> None:
        """As `before_commit`; also when the lease has lapsed since it was taken."""
        if self.lease is not None:
            self.lease.check_unbroken()


def check_lance_version(allowed: bool) -> None:
    """Raise Unsupported when the installed pylance was never tested with this build."""
    version = lance_version()
    if int(version.split(".")[0]) not in TESTED_LANCE_MAJORS and not allowed:
        tested = ", ".join(f"{major}.x" for major in TESTED_LANCE_MAJORS)
        raise Unsupported(
            f"pylance {version} is installed; tested are {tested}. Install one of those, or pass "
            "--allow-untested-lance"
        )


@contextmanager
def open_tables(
    options: RunOptions,
    read: Callable[[Stores], TableView],
    failed: Callable[[OpenTable, BaseException], None] = lambda table, error: None,
    *,
    warn: Callable[[str], None] = lambda text: None,
    readers_max: int = TABLE_READERS_MAX,
) -> Iterator[list[OpenTable]]:
    """Open the tables, several side by side; at the end, give up the leases taken for them.

    A table that can't be opened carries its error; the others go on. `failed` is told of each table
    when the job as a whole ends in an error, `warn` of trouble with a lease. `read` is called in
    threads, unless `readers_max` is 1.
    """
    tables = [OpenTable(resolved=resolved, warn=warn) for resolved in options.tables]
    ended: BaseException | None = None
    try:
        _open_stores(tables)
        there = [t for t in tables if t.stores is not None]
        if options.known is not None:
            for table in there:
                options.known.give(table)
        unread = [table for table in there if table.view is None]
        side_by_side(lambda table: _read(table, read), unread, readers_max)
        if options.known is not None:
            for table in unread:
                options.known.keep(table)
        yield tables
    except BaseException as error:
        ended = error
        raise
    finally:
        for table in tables:
            table.release_lease()
        # Last: a run that is being cancelled may not have the time for it.
        if ended is not None:
            for table in tables:
                failed(table, ended)


def _open_stores(tables: Sequence[OpenTable]) -> None:
    seen: set[object] = set()
    for table in tables:
        try:
            resolved = table.resolved
            stores = open_stores(resolved.uri, resolved.storage_options)
            _ = stores.objects.counts  # bad store options show here, as this table's error
            places = {stores.uri, same_place(stores.uri, stores.storage_options)}
            if places & seen:
                raise Usage(f"{resolved.name}: the same table was named before: {stores.uri}")
            seen |= places
            table.stores = stores
        except MemWalError as error:
            table.error = error


def _read(table: OpenTable, read: Callable[[Stores], TableView]) -> None:
    if table.stores is None:
        return
    table.begin()
    try:
        table.view = read(table.stores)
        table.known = True
    except MemWalError as error:
        table.error = error


def side_by_side(work: Callable[[Unit], None], things: Sequence[Unit], threads_max: int) -> None:
    """Call `work` on each, in threads; what is not begun is left when the run is cancelled.

    Raises what the first of them raised, in their order.
    """
    if threads_max == 1 or len(things) < 2:
        for thing in things:
            work(thing)
        return
    pool = ThreadPoolExecutor(min(threads_max, len(things)))
    try:
        for _ in pool.map(work, things):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def failed_report(name: str, error: MemWalError) -> TableReport:
    """The report of a table that its job could not work on."""
    return TableReport(
        table=name, outcome=error.outcome, error=str(error), exit_code=error.exit_code
    )


def job_report(
    name: str,
    tables: Iterable[TableReport],
    seconds: float,
    *,
    opened: Iterable[OpenTable] = (),
    engine: EngineChoice | None = None,
    dry_run: bool = False,
    otherwise: str = NOTHING_TO_DO,
) -> JobReport:
    """Sum up the tables' reports and the requests that were made for them."""
    reports = tuple(tables)
    outcome, code = sum_up_tables(reports, otherwise)
    requests: dict[str, int] = {}
    for table in opened:
        for key, value in table.requests().items():
            requests[key] = requests.get(key, 0) + value
    return JobReport(
        job=name,
        outcome=outcome,
        exit_code=code,
        seconds=round(seconds, 3),
        dry_run=dry_run,
        engine=None if engine is None else EngineReport(name=engine.name, reason=engine.reason),
        tables=reports,
        requests=requests,
    )


def chosen_limits(kind: type[Limits], table: OpenTable, given: Settings | None = None) -> Limits:
    """Limits of a kind: flags over the configuration over the defaults."""
    chosen: dict[str, Any] = {
        name: value
        for settings in (table.resolved.settings, given)
        for name in kind.__dataclass_fields__  # type: ignore[attr-defined]
        if (value := getattr(settings, name, None)) is not None
    }
    return kind(**chosen)


def error_of(table: OpenTable) -> MemWalError:
    """What kept the table from being read."""
    return table.error or MemWalError("the table was not read")


def asked_engine(options: RunOptions) -> str:
    """Under spark-submit always Spark, unless the command line says otherwise."""
    if options.engine:
        return options.engine
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return "spark"
    named = {t.settings.engine for t in options.tables if t.settings.engine}
    return named.pop() if len(named) == 1 else "auto"


def start_engine(choice: EngineChoice, options: RunOptions) -> Started:
    """The chosen engine, started, and what ends it. Raises Unsupported, Refused."""
    if options.engines is not None:
        return options.engines.get(choice.name), lambda: None
    return begin_engine(choice.name, options)


def begin_engine(name: str, options: RunOptions) -> Started:
    """The engine of that name, started, and what ends it. Raises Unsupported, Refused."""
    if name == "local":
        return LocalEngine(), lambda: None
    if importlib.util.find_spec("pyspark") is None:
        raise Unsupported("pyspark is not installed: pip install 'lance-memwal[spark]'")
    # Imported when it is needed only: it brings a JVM, and most runs have nothing to do.
    from memwal.run.engines.spark import SparkEngine

    masters = {t.settings.master for t in options.tables if t.settings.master}
    master = options.master or (masters.pop() if len(masters) == 1 else None)
    engine = SparkEngine(master=master)
    return engine, engine.stop
