"""Works through the tables of a backfill in threads, and reports how far it is."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from memwal.errors import EXIT_CANCELLED, MemWalError, PartlyFailed, StandDown
from memwal.jobs.backfill.report import (
    FINISHED,
    RUNNING,
    WAITING,
    BackfillReport,
    BackfillTableReport,
)
from memwal.jobs.maintain.job import explain_error
from memwal.ports import Clock, Steps
from memwal.report import JobReport, describe_error
from memwal.run.progress import Progress
from memwal.run.reports import job_report
from memwal.run.workers import cancel
from memwal.text import count_of
from memwal.threads import in_threads

# A report on very many tables is large, so it is not written after each of them.
DOCUMENT_SECONDS_MIN = 1.0
_LEFT = StandDown("running when this was written; run again to go on")

Chain = Callable[[Steps], JobReport]
"""Runs the jobs of one table, and calls the steps with each job's name before it."""


@dataclass(kw_only=True)
class Backfill:
    """One run over tables, in the order of their `chains`; the others could not be read.

    `requests` begins with those of opening the tables. `cut_off` is set once the deadline has kept
    a job from beginning.
    """

    chains: Sequence[tuple[str, Chain]]
    unread: Sequence[BackfillTableReport]
    stop_engines: Callable[[], None]
    show_report: Callable[[BackfillReport], None]
    clock: Clock
    started: float
    progress: Progress
    concurrency: int
    deadline_seconds: float | None
    dry_run: bool
    requests: list[Mapping[str, int]]
    cut_off: str | None = None
    tables: list[BackfillTableReport] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> BackfillReport:
        """Run every table's jobs; a run that is cancelled still reports what was done."""
        waiting = {**describe_error(_LEFT), "error": None, "stage": WAITING}
        begun = (BackfillTableReport(table=name, **waiting) for name, _ in self.chains)
        self.tables = [*begun, *self.unread]
        self.show_report(self.report(finished=False))
        self.progress.start("tables", len(self.chains))
        going = in_threads(
            self._run_table, range(len(self.chains)), self.concurrency, stop=self.stop_engines
        )
        try:
            with going as futures:
                self._watch(futures)
        except KeyboardInterrupt:
            text = "cancelled; what was committed stays, run again to go on"
            told = {"error": text, "exit_code": EXIT_CANCELLED}
            return self.report(finished=True).model_copy(update=told)
        report = self.report(finished=True)
        if self.cut_off is None:
            return report
        waiting_count = sum(table.stage == WAITING for table in self.tables)
        told = describe_error(PartlyFailed(self.cut_off))
        of = count_of(len(self.tables), "table")
        told["error"] = f"{waiting_count} of {of} {self.cut_off}" if waiting_count else None
        return report.model_copy(update=told)

    def report(self, *, finished: bool) -> BackfillReport:
        """The report as it stands; `finished` means that nothing more will come."""
        with self.lock:
            requests = list(self.requests)
        total = job_report(
            "backfill",
            list(self.tables),
            seconds=self.clock.monotonic_seconds() - self.started,
            requests=requests,
            dry_run=self.dry_run,
        )
        return BackfillReport(**dict(total), finished=finished)

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

    def _run_table(self, place: int) -> None:
        """Run one table's jobs, in a thread; its errors affect no other table."""
        name, chain = self.chains[place]
        began = self.clock.monotonic_seconds()
        try:
            self._check_time()
        except MemWalError:
            return
        running = {"stage": RUNNING, "error": str(_LEFT)}
        self.tables[place] = self.tables[place].model_copy(update=running)
        try:
            done = chain(self._step)
            with self.lock:
                self.requests.append(done.requests)
            found = dict(done.tables[0])
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            self.progress.trace(traceback.format_exc())
            found = {"table": name, **describe_error(explain_error(error))}
        seconds = round(self.clock.monotonic_seconds() - began, 3)
        found |= {"stage": FINISHED, "seconds": seconds}
        self.tables[place] = table = BackfillTableReport(**found)
        words = ", ".join(f"{job.job} {job.report.outcome}" for job in table.jobs)
        self.progress.say(f"{name}: {words or table.outcome} in {seconds:.1f} s")

    def _step(self, step: str) -> None:
        """Raise StandDown when cancelled, and PartlyFailed before a job past the deadline."""
        cancel.check()
        if step in ("merge", "index-catchup"):
            self._check_time()

    def _check_time(self) -> None:
        cancel.check()
        limit = self.deadline_seconds
        if limit is not None and self.clock.monotonic_seconds() - self.started >= limit:
            self.cut_off = f"not begun: {limit:g} s have passed; run again to go on"
            raise PartlyFailed(self.cut_off)
