"""`memwal backfill`: merges, index catch-ups or both on many tables, the largest backlog first.

Each table's jobs are the ones that `memwal merge` and `memwal index-catchup` run, on engines that
all tables share. What a killed run had done is done: a rerun finds nothing to do there.
"""

from __future__ import annotations

import importlib.util
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

from memwal.clock import SystemClock
from memwal.config import ResolvedTable, Settings
from memwal.errors import MemWalError, StandDown, Usage
from memwal.format.layout import SYSTEM_INDEXES
from memwal.jobs.backfill.plan import (
    Backlog,
    bytes_for_engine,
    index_backlog,
    largest_first,
    merge_backlog,
)
from memwal.jobs.backfill.report import (
    FINISHED,
    RUNNING,
    WAITING,
    BackfillReport,
    BackfillTableReport,
    State,
    TableBacklogReport,
)
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.plan.shard import MergeLimits, MergeRequest
from memwal.model import ShardId, TableView
from memwal.report import DONE, NOTHING_TO_DO, EngineReport, JobReport, TableReport, sum_up_tables
from memwal.run import cancel
from memwal.run.chain import stops, summed_fields
from memwal.run.engines.choice import EngineChoice, choose_engine
from memwal.run.engines.pool import SharedEngines, start_engine
from memwal.run.options import RunOptions, choose_limits
from memwal.run.progress import Progress, Quiet
from memwal.run.reports import failed_report
from memwal.run.tables import KnownTables, OpenTable, open_tables
from memwal.run.versions import check_lance_version

MERGE = "merge"
INDEX_CATCHUP = "index-catchup"
ORDER = (MERGE, INDEX_CATCHUP)
CONCURRENCY = 4
# The document of a run on very many tables is large: it is not written for each of them.
DOCUMENT_SECONDS_MIN = 1.0

_EXIT_CANCELLED = 130


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(RunOptions):
    """What `backfill` takes besides. `so_far` is told of the run's document as it grows."""

    jobs: Sequence[str] = ORDER
    shards: Sequence[ShardId] = ()
    request: MergeRequest = MergeRequest()
    limits: Settings = Settings()
    concurrency: int = CONCURRENCY
    deadline_seconds: float | None = None
    so_far: Callable[[JobReport], None] = lambda report: None


@dataclass(kw_only=True)
class _Table:
    """One table on its way. `shards` are those that it merges, of the ones that were asked for."""

    resolved: ResolvedTable
    backlog: Backlog | None = None
    limits: MergeLimits = MergeLimits()
    shards: tuple[ShardId, ...] = ()
    state: State = WAITING
    reports: list[tuple[str, TableReport]] = field(default_factory=list)
    seconds: float = 0.0


def run_backfill(options: BackfillOptions, progress: Progress) -> JobReport:
    """Run the jobs on every table that can be read; with `dry_run`, tell order and backlog."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    known = KnownTables()
    progress.say(f"looking at {len(options.tables)} tables")
    with open_tables(
        replace(options, known=known), lambda stores: stores.views.table(pending_sizes=True)
    ) as opened:
        tables = _tables(opened, options)
        requests: dict[str, int] = {}
        for table in opened:
            _add(requests, table.requests())
    with SharedEngines(lambda name: start_engine(name, options)) as engines:
        run = _Run(
            options=options,
            progress=progress,
            clock=clock,
            started=started,
            tables=tables,
            known=known,
            engines=engines,
            choice=_engine(tables, options),
            requests=requests,
        )
        if options.dry_run:
            return run.report(finished=True)
        return run.to_its_end()


def _tables(opened: Sequence[OpenTable], options: BackfillOptions) -> list[_Table]:
    """The tables in the order to begin them; those that can't be read are over, and come last."""
    _check_shards(opened, options.shards)
    there = [t for t in opened if t.view is not None]
    backlogs = [_backlog(table, options) for table in there]
    tables = []
    for position in largest_first(backlogs):
        view = there[position].view
        tables.append(
            _Table(
                resolved=there[position].resolved,
                backlog=backlogs[position],
                limits=choose_limits(MergeLimits, there[position].resolved, options.limits),
                shards=tuple(s for s in options.shards if view and s in _shards_of(view)),
            )
        )
    for table in opened:
        if table.view is None:
            error = table.error or MemWalError("the table was not read")
            failed = failed_report(table.resolved.name, error)
            tables.append(
                _Table(resolved=table.resolved, state=FINISHED, reports=[("look", failed)])
            )
    return tables


def _shards_of(view: TableView) -> set[str]:
    return {s.shard_id for s in view.shards} | {b.shard_id for b in view.broken}


def _check_shards(opened: Sequence[OpenTable], asked: Sequence[ShardId]) -> None:
    """A shard that no table has is a wrong request; unless it may be in one that wasn't read."""
    if any(table.view is None for table in opened):
        return
    known = {shard for table in opened if table.view for shard in _shards_of(table.view)}
    for shard in asked:
        if shard not in known:
            raise Usage(f"none of the tables has a shard {shard}")


def _backlog(table: OpenTable, options: BackfillOptions) -> Backlog:
    view, stores = table.view, table.stores
    if view is None or stores is None:
        return Backlog()
    found = Backlog()
    if MERGE in options.jobs:
        found = merge_backlog(view, set(options.shards), options.request)
    if INDEX_CATCHUP in options.jobs:
        names = {entry.name for entry in view.manifest.indexes} - SYSTEM_INDEXES
        rows = {name: stores.tables.unindexed_rows(view.version, name) for name in names}
        indexes = index_backlog(view, rows)
        found = replace(
            found,
            unindexed_rows=indexes.unindexed_rows,
            indexes_behind=indexes.indexes_behind,
        )
    return found


def _engine(tables: Sequence[_Table], options: BackfillOptions) -> EngineChoice:
    """Where merges run: many small ones together are worth a JVM that none is worth alone."""
    known = [(t.backlog, t.limits) for t in tables if t.backlog is not None]
    return choose_engine(
        options.asked_engine,
        units=sum(backlog.generations for backlog, _ in known),
        in_memory_bytes=sum(bytes_for_engine(backlog, limits) for backlog, limits in known),
        spark_installed=importlib.util.find_spec("pyspark") is not None,
    )


@dataclass(kw_only=True)
class _Run:
    """The work of one run: a thread a table, and this one, which tells how far it is."""

    options: BackfillOptions
    progress: Progress
    clock: SystemClock
    started: float
    tables: list[_Table]
    known: KnownTables
    engines: SharedEngines
    choice: EngineChoice
    requests: dict[str, int]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def to_its_end(self) -> BackfillReport:
        """Run every table's jobs; a run that is cancelled still reports what was done."""
        waiting = [table for table in self.tables if table.state == WAITING]
        if self.choice.name != "none":
            self.progress.say(f"engine for merges: {self.choice.name} ({self.choice.reason})")
        self.options.so_far(self.report(finished=False))
        self.progress.start("tables", len(waiting))
        pool = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="memwal-backfill")
        try:
            self._watch([pool.submit(self._table, table) for table in waiting])
        except KeyboardInterrupt:
            self.engines.cancel()
            pool.shutdown(cancel_futures=True)
            return self.report(finished=True).model_copy(
                update={
                    "error": "cancelled; what was committed stays, run again to go on",
                    "exit_code": _EXIT_CANCELLED,
                }
            )
        finally:
            pool.shutdown(cancel_futures=True)
        return self.report(finished=True)

    def _watch(self, futures: Sequence[Future[None]]) -> None:
        """Wait for the tables; at times tell what is done, so that a kill leaves it behind."""
        left = set(futures)
        told, news = self.clock.monotonic_seconds(), False
        while left:
            pause = told + DOCUMENT_SECONDS_MIN - self.clock.monotonic_seconds()
            if news and pause <= 0:
                self.options.so_far(self.report(finished=False))
                told, news = self.clock.monotonic_seconds(), False
            done, left = wait(left, max(pause, 0) if news else None, FIRST_COMPLETED)
            news = news or bool(done)
            self.progress.done(len(futures) - len(left))
            for future in done:
                future.result()

    def _table(self, table: _Table) -> None:
        """One table's jobs, in a thread of its own; its trouble stays its own."""
        began = self.clock.monotonic_seconds()
        for name in (job for job in ORDER if job in self.options.jobs):
            report = self._job(name, table)
            table.reports.append((name, report))
            if report.outcome != NOTHING_TO_DO:
                self.known.forget(table.resolved)
            if stops(name, report):
                break
        self.known.forget(table.resolved)
        table.seconds = self.clock.monotonic_seconds() - began
        if table.state == RUNNING:
            table.state = FINISHED
        words = ", ".join(f"{name} {report.outcome}" for name, report in table.reports)
        self.progress.say(f"{table.resolved.name}: {words} in {table.seconds:.1f} s")

    def _check_may_begin(self) -> None:
        """Raise StandDown when no job may begin any more."""
        cancel.check()
        limit = self.options.deadline_seconds
        if limit is not None and self.clock.monotonic_seconds() - self.started >= limit:
            raise StandDown(f"not begun: {limit:g} s have passed; run again to go on")

    def _job(self, name: str, table: _Table) -> TableReport:
        try:
            self._check_may_begin()
            table.state = RUNNING
            done = self._merge(table) if name == MERGE else self._index_catchup(table)
        except MemWalError as error:
            return failed_report(table.resolved.name, error)
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            self.progress.trace(traceback.format_exc())
            return failed_report(table.resolved.name, _explained(error))
        with self.lock:
            _add(self.requests, done.requests)
        return done.tables[0]

    def _merge(self, table: _Table) -> JobReport:
        options = self.options
        if options.shards and not table.shards:
            nothing = TableReport(table=table.resolved.name, outcome=NOTHING_TO_DO)
            return JobReport(job=MERGE, outcome=NOTHING_TO_DO, tables=(nothing,))
        own = table.resolved.settings.engine
        chosen = None if self.choice.name == "none" else self.choice.name
        return run_merge(
            MergeOptions(
                tables=[table.resolved],
                engine=options.engine or (chosen if own in (None, "auto") else None),
                master=options.master,
                lease=options.lease,
                untested_lance_allowed=options.untested_lance_allowed,
                known=self.known,
                engines=self.engines,
                shards=table.shards,
                request=options.request,
                limits=options.limits,
            ),
            Quiet(self.progress),
        )

    def _index_catchup(self, table: _Table) -> JobReport:
        options = self.options
        return run_index_catchup(
            IndexCatchupOptions(
                tables=[table.resolved],
                engine=options.engine,
                master=options.master,
                lease=options.lease,
                untested_lance_allowed=options.untested_lance_allowed,
                known=self.known,
                engines=self.engines,
                steps=lambda step: cancel.check(),
            ),
            Quiet(self.progress),
        )

    def report(self, *, finished: bool) -> BackfillReport:
        """The document as it stands; `finished` when nothing comes any more."""
        tables = tuple(self._table_report(table) for table in self.tables)
        outcome, code = sum_up_tables(tables)
        with self.lock:
            requests = dict(self.requests)
        return BackfillReport(
            job="backfill",
            outcome=outcome,
            exit_code=code,
            seconds=round(self.clock.monotonic_seconds() - self.started, 3),
            dry_run=self.options.dry_run,
            engine=EngineReport(name=self.choice.name, reason=self.choice.reason),
            tables=tables,
            requests=requests,
            finished=finished,
        )

    def _table_report(self, table: _Table) -> BackfillTableReport:
        # The thread that works on the table may change it meanwhile: the state is looked at first.
        state, backlog, reports = table.state, table.backlog, list(table.reports)
        fields = summed_fields(reports)
        if self.options.dry_run and backlog is not None:
            fields["outcome"] = NOTHING_TO_DO if backlog.is_empty else DONE
        elif state == RUNNING or (state == WAITING and not reports):
            left = StandDown(f"{state} when this was written; run again to go on")
            fields |= {"outcome": left.outcome, "exit_code": left.exit_code, "error": str(left)}
        return BackfillTableReport(
            table=table.resolved.name,
            state=state,
            backlog=None if backlog is None else _backlog_report(backlog),
            seconds=round(table.seconds, 3),
            **fields,
        )


def _backlog_report(backlog: Backlog) -> TableBacklogReport:
    return TableBacklogReport(
        generations=backlog.generations,
        bytes=backlog.in_memory_bytes,
        unindexed_rows=backlog.unindexed_rows,
        indexes_behind=backlog.indexes_behind,
    )


def _explained(error: BaseException) -> MemWalError:
    """An error that nobody expected; a cancelled run's Spark jobs end in some, too."""
    try:
        cancel.check()
    except StandDown as cancelled:
        return cancelled
    return MemWalError(f"unexpected {type(error).__name__}: {error}")


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for key, value in more.items():
        total[key] = total.get(key, 0) + value
