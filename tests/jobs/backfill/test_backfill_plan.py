"""How a backfill goes through tables that are numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable

from memwal.errors import PartlyFailed
from memwal.jobs.backfill.plan import weigh
from memwal.jobs.backfill.report import BackfillReport
from memwal.jobs.backfill.workers import Backfill, Chain
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.merge.request import MergeRequest
from memwal.model import ShardId
from memwal.ports import Steps
from memwal.report import JobOnTable, JobReport, TableReport, failed_report
from memwal.run.progress import Silent
from memwal.run.reports import job_report, sum_up_jobs
from memwal.run.workers import cancel
from memwal.testing import ManualClock
from tests.support.views import make_generation, make_shard, make_view

SHARD = ShardId("0" * 32)


def test_a_size_that_is_not_known_may_be_large() -> None:
    known, unknown = (
        make_view(make_shard(SHARD, [make_generation(n, size) for n in (1, 2)]))
        for size in (10**12, None)
    )
    weights = [weigh(view, (), MergeRequest()) for view in (known, unknown)]
    assert weights == [(2 * 10**12, 2), (float("inf"), 2)]


def run(
    tables: str,
    job: Callable[[str, str], object],
    *,
    concurrency: int = 1,
    deadline_seconds: float | None = None,
    clock: ManualClock | None = None,
) -> BackfillReport:
    """Run merges and catch-ups on these tables, one letter each."""

    def chain(table: str) -> Chain:
        def run(steps: Steps) -> JobReport:
            jobs = []
            for name in ("merge", "index-catchup"):
                report = TableReport(table=table, outcome="done")
                try:
                    steps(name)
                    job(name, table)
                except PartlyFailed as error:
                    report = failed_report(table, error)
                jobs.append(JobOnTable(job=name, report=report))
            return job_report("maintain", [MaintainTableReport(table=table, **sum_up_jobs(jobs))])

        return run

    cancel.begin()
    clock = clock or ManualClock()
    return Backfill(
        chains=[(name, chain(name)) for name in tables],
        unread=[],
        stop_engines=lambda: None,
        show_report=lambda report: None,
        clock=clock,
        started=clock.monotonic_seconds(),
        progress=Silent(),
        dry_run=False,
        concurrency=concurrency,
        deadline_seconds=deadline_seconds,
        requests=[],
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
    assert report.tables[1].error == "unexpected PanicError: index out of bounds"
    assert outcomes(report) == [["done", "done"], [], ["done", "done"]]
