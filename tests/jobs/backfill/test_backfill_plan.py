"""What a backfill begins with, and how it goes through tables that are numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from memwal.config import ResolvedTable, Settings
from memwal.jobs.backfill.plan import Backlog, sort_largest_first
from memwal.jobs.backfill.report import BackfillReport, TableBackfill
from memwal.jobs.backfill.workers import Backfill, choose_merge_engine
from memwal.jobs.merge.plan import MergeLimits
from memwal.report import EngineReport, JobReport, TableReport
from memwal.run.lease import ChainLeases
from memwal.run.progress import Silent
from memwal.run.workers import cancel
from memwal.testing import ManualClock


def test_bytes_count_before_generations_before_rows() -> None:
    backlogs = [
        Backlog(unindexed_rows=10**6),
        Backlog(generations=1, in_memory_bytes=10),
        Backlog(generations=9, in_memory_bytes=10),
        Backlog(),
        Backlog(generations=1, in_memory_bytes=11),
        Backlog(indexes_behind=1),
        Backlog(),
    ]
    assert sort_largest_first(backlogs) == [4, 2, 1, 0, 5, 3, 6]


def test_a_size_that_is_not_known_may_be_large() -> None:
    unknown = Backlog(generations=1, in_memory_bytes=None)
    assert sort_largest_first([Backlog(generations=9, in_memory_bytes=10**12), unknown]) == [1, 0]
    for bytes_max, engine in ((1_000, "local"), (2**40, "spark")):  # counts as a whole commit
        limits = MergeLimits(bytes_per_commit_max=bytes_max)
        table = begin("t", backlog=unknown, limits=limits)
        assert choose_merge_engine([table], "auto").name == engine


def begin(name: str, **facts: Any) -> TableBackfill:
    where = {"uri": f"/{name}", "settings": Settings(), "storage_options": {}}
    return TableBackfill(resolved=ResolvedTable(name=name, **where), **facts)


def run(
    tables: str,
    job: Callable[[str, str], object],
    *,
    concurrency: int = 1,
    deadline_seconds: float | None = None,
    clock: ManualClock | None = None,
) -> BackfillReport:
    """Run merges and catch-ups on these tables, one letter each."""

    def run_job(name: str, table: TableBackfill) -> JobReport:
        job(name, table.resolved.name)
        done = TableReport(table=table.resolved.name, outcome="done")
        return JobReport(job=name, outcome="done", tables=(done,))

    cancel.begin()
    clock = clock or ManualClock()
    return Backfill(
        tables=[begin(name) for name in tables],
        jobs=("merge", "index-catchup"),
        run_job=run_job,
        forget=lambda table: None,
        leases=ChainLeases("backfill"),
        stop_engines=lambda: None,
        show_report=lambda report: None,
        engine=EngineReport(name="local", reason="asked for"),
        clock=clock,
        started=clock.monotonic_seconds(),
        progress=Silent(),
        dry_run=False,
        concurrency=concurrency,
        deadline_seconds=deadline_seconds,
        requests={},
    ).run()


def outcomes(report: BackfillReport) -> list[list[str]]:
    """Those of each table's jobs."""
    return [[job.report.outcome for job in table.jobs] for table in report.tables]  # type: ignore[attr-defined]


def test_a_deadline_between_two_jobs_of_a_table() -> None:
    """The first table's merge is finished, its indexes have to wait, and so have the others."""
    clock = ManualClock()
    report = run("abc", lambda name, table: clock.advance(2), deadline_seconds=2, clock=clock)
    assert (report.outcome, report.exit_code) == ("partial", 6)
    assert report.error == "2 of 3 tables not begun: 2 s have passed; run again to go on"
    assert outcomes(report) == [["done", "partial"], [], []]


def test_no_more_tables_at_once_than_asked_for() -> None:
    """Two are always at work together, never three: each waits until a second one has come."""
    inside = most = 0
    changed = threading.Condition()

    def job(name: str, table: str) -> None:
        nonlocal inside, most
        with changed:
            inside += 1
            most = max(most, inside)
            changed.notify_all()
            assert changed.wait_for(lambda: most >= 2, timeout=60)
        with changed:
            inside -= 1

    assert run("abcd", job, concurrency=2).outcome == "done"
    assert most == 2


def test_an_error_nobody_expected_stays_with_its_table() -> None:
    class PanicError(BaseException):
        """As pyo3's, which is no Exception."""

    def job(name: str, table: str) -> None:
        if table == "b":
            raise PanicError("index out of bounds")

    report = run("abc", job)
    assert (report.outcome, report.exit_code) == ("partial", 6)
    assert report.tables[1].error == "merge: unexpected PanicError: index out of bounds"
    assert outcomes(report) == [["done", "done"], ["failed"], ["done", "done"]]
