"""Works through the tables of a backfill in threads, and reports how far it is."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from memwal.errors import EXIT_CANCELLED, MemWalError, PartlyFailed, StandDown
from memwal.jobs.backfill.plan import estimate_bytes
from memwal.jobs.backfill.report import (
    FINISHED,
    RUNNING,
    WAITING,
    BackfillReport,
    TableBackfill,
)
from memwal.ports import Clock
from memwal.report import (
    NOTHING_TO_DO,
    PARTIAL,
    EngineReport,
    JobOnTable,
    JobReport,
    failed_report,
    sum_up_tables,
)
from memwal.run.engines.choice import choose_engine
from memwal.run.engines.pool import has_spark
from memwal.run.lease import ChainLeases
from memwal.run.progress import Progress
from memwal.run.reports import add_counts, must_stop
from memwal.run.workers import cancel
from memwal.text import count_of

# A report on very many tables is large, so it is not written after each of them.
DOCUMENT_SECONDS_MIN = 1.0


@dataclass(kw_only=True)
class Backfill:
    """One run. `requests` begins with those of opening the tables; each job's are added.

    `forget` is called when a table may have changed. `cut_off` is set once the deadline has kept a
    job from beginning.
    """

    tables: Sequence[TableBackfill]
    jobs: Sequence[str]
    run_job: Callable[[str, TableBackfill], JobReport]
    forget: Callable[[TableBackfill], None]
    leases: ChainLeases
    stop_engines: Callable[[], None]
    show_report: Callable[[BackfillReport], None]
    engine: EngineReport
    clock: Clock
    started: float
    progress: Progress
    dry_run: bool
    concurrency: int
    deadline_seconds: float | None
    requests: Mapping[str, int]
    cut_off: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> BackfillReport:
        """Run every table's jobs; a run that is cancelled still reports what was done."""
        waiting = [table for table in self.tables if table.state == WAITING]
        if self.engine.name != "none":
            self.progress.say(f"engine for merges: {self.engine.name} ({self.engine.reason})")
        self.show_report(self.report(finished=False))
        self.progress.start("tables", len(waiting))
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="memwal-backfill")
        try:
            self._watch([pool.submit(self._run_table, table) for table in waiting])
        except KeyboardInterrupt:
            self.stop_engines()
            pool.shutdown(cancel_futures=True)
            return self.report(finished=True).model_copy(
                update={
                    "error": "cancelled; what was committed stays, run again to go on",
                    "exit_code": EXIT_CANCELLED,
                }
            )
        finally:
            pool.shutdown(cancel_futures=True)
        return self.report(finished=True)

    def report(self, *, finished: bool) -> BackfillReport:
        """The report as it stands; `finished` means that nothing more will come."""
        tables = tuple(table.report(dry_run=self.dry_run) for table in self.tables)
        outcome, code = sum_up_tables(tables)
        if finished and self.cut_off is not None:
            outcome, code = PARTIAL, PartlyFailed.exit_code
        with self.lock:
            requests = dict(self.requests)
        return BackfillReport(
            job="backfill",
            outcome=outcome,
            exit_code=code,
            seconds=round(self.clock.monotonic_seconds() - self.started, 3),
            dry_run=self.dry_run,
            engine=self.engine,
            tables=tables,
            requests=requests,
            finished=finished,
            error=self._count_cut_off() if finished and self.cut_off else None,
        )

    def _count_cut_off(self) -> str | None:
        """Say in one line how many tables the deadline cut off; None for none."""
        waiting = sum(table.state == WAITING for table in self.tables)
        return (
            f"{waiting} of {count_of(len(self.tables), 'table')} {self.cut_off}"
            if waiting
            else None
        )

    def _watch(self, futures: Sequence[Future[None]]) -> None:
        """Wait for the tables; report now and then, so that a killed run leaves a report."""
        left = set(futures)
        shown, news = self.clock.monotonic_seconds(), False
        while left:
            pause = shown + DOCUMENT_SECONDS_MIN - self.clock.monotonic_seconds()
            if news and pause <= 0:
                self.show_report(self.report(finished=False))
                shown, news = self.clock.monotonic_seconds(), False
            done, left = wait(left, max(pause, 0) if news else None, FIRST_COMPLETED)
            news = news or bool(done)
            self.progress.done(len(futures) - len(left))
            for future in done:
                future.result()

    def _run_table(self, table: TableBackfill) -> None:
        """Run one table's jobs, in a thread; its errors affect no other table."""
        began = self.clock.monotonic_seconds()
        for name in self.jobs:
            if (why := self._find_stop()) is not None:
                if table.state == WAITING:
                    return
                report = failed_report(table.resolved.name, why)
                table.jobs.append(JobOnTable(job=name, report=report))
                break
            table.state = RUNNING
            table.jobs.append(self._run_job(name, table))
            if table.jobs[-1].report.outcome != NOTHING_TO_DO:
                self.forget(table)
            if must_stop(table.jobs):
                break
        self.leases.give_back(table.resolved.uri)
        self.forget(table)
        table.seconds = self.clock.monotonic_seconds() - began
        table.state = FINISHED
        words = ", ".join(f"{job.job} {job.report.outcome}" for job in table.jobs)
        self.progress.say(f"{table.resolved.name}: {words} in {table.seconds:.1f} s")

    def _run_job(self, name: str, table: TableBackfill) -> JobOnTable:
        try:
            done = self.run_job(name, table)
            with self.lock:
                self.requests = add_counts((self.requests, done.requests))
            report = done.tables[0]
        except MemWalError as error:
            report = failed_report(table.resolved.name, error)
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            self.progress.trace(traceback.format_exc())
            report = failed_report(table.resolved.name, _explain(error))
        return JobOnTable(job=name, report=report)

    def _find_stop(self) -> MemWalError | None:
        """Why no more jobs may begin (cancelled, or past the deadline); None if they may."""
        try:
            cancel.check()
        except StandDown as cancelled:
            return cancelled
        limit = self.deadline_seconds
        if limit is None or self.clock.monotonic_seconds() - self.started < limit:
            return None
        self.cut_off = f"not begun: {limit:g} s have passed; run again to go on"
        return PartlyFailed(self.cut_off)


def _explain(error: BaseException) -> MemWalError:
    """An unexpected error as a MemWalError; StandDown if cancelled, which causes such errors."""
    try:
        cancel.check()
    except StandDown as cancelled:
        return cancelled
    return MemWalError(f"unexpected {type(error).__name__}: {error}")


def choose_merge_engine(tables: Sequence[TableBackfill], asked: str) -> EngineReport:
    """Choose where merges run; many small ones together may be worth a JVM that none is alone."""
    known = [(table.backlog, table.limits) for table in tables if table.backlog is not None]
    choice = choose_engine(
        asked,
        units=sum(backlog.generations for backlog, _ in known),
        in_memory_bytes=sum(estimate_bytes(backlog, limits) for backlog, limits in known),
        spark_installed=has_spark(),
    )
    return EngineReport(name=choice.name, reason=choice.reason)
