"""`memwal erase resume`: goes on with all erasures of tables that are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.jobs.erase.job.erasing import NAME, Confirm, EraseOptions, run_erase
from memwal.jobs.erase.job.proofs import run_list
from memwal.jobs.erase.report import EraseTableReport
from memwal.jobs.erase.request import EraseRequest, ResumeRequest
from memwal.jobs.garbage.plan import permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.options import narrow
from memwal.report import HELD, JobOnTable, JobReport, TableReport
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.reports import job_report, sum_up_jobs


@dataclass(frozen=True, kw_only=True)
class ResumeOptions(RunOptions):
    """The options of `erase resume`. `confirm` is that of `erase`."""

    confirm: Confirm = lambda name, shards: False
    request: ResumeRequest = ResumeRequest()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.request.execute and not self.dry_run


def run_resume(options: ResumeOptions, progress: Progress) -> JobReport:
    """Go on with every open erasure; without `execute`, only look what holds its keys."""
    for table in options.tables:
        permit(narrow(options.request, GarbageRequest), table.settings)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    listed = run_list(options.for_job(RunOptions, options.tables), progress)
    requests: list[Mapping[str, int]] = [listed.requests]
    reports = [
        _resume(options, table, report, requests, progress)
        if isinstance(report, EraseTableReport)
        else report  # of a table that can't be read
        for table, report in zip(options.tables, listed.tables, strict=True)
    ]
    return job_report(
        NAME,
        reports,
        seconds=clock.monotonic_seconds() - started,
        dry_run=not options.acts,
        requests=requests,
    )


def _resume(
    options: ResumeOptions,
    table: ResolvedTable,
    listed: EraseTableReport,
    requests: list[Mapping[str, int]],
    progress: Progress,
) -> TableReport:
    """Go on with a table's erasures, the oldest first; one that is refused stops no other."""
    jobs: list[JobOnTable] = []
    left = {e.erasure_id: e for e in listed.erasures if e.state == "open"}
    for erasure_id in left:
        progress.say(f"{table.name}: erasure {erasure_id}")
        request = narrow(options.request, EraseRequest, resume=erasure_id)
        one = options.for_job(EraseOptions, [table], request=request, confirm=options.confirm)
        done = run_erase(one, progress)
        requests.append(done.requests)
        (report,) = done.tables
        jobs.append(JobOnTable(job=NAME, report=report))
        if isinstance(report, EraseTableReport) and report.erasure is not None:
            left[erasure_id] = report.erasure
        if report.outcome == HELD:
            break
    told = (text for job in jobs for text in getattr(job.report, "warnings", ()))
    return EraseTableReport(
        table=table.name,
        erasures=tuple(left.values()),
        warnings=tuple(dict.fromkeys(told)),
        **sum_up_jobs(jobs),
    )
