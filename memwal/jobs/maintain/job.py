"""`memwal maintain`: the jobs in the order in which each makes work for the next."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError, PartlyFailed, StandDown, unexpected
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.plan import permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.snapshot.job import check_lease, run_snapshot
from memwal.options import narrow
from memwal.ports import Steps, no_steps
from memwal.report import NOTHING_TO_DO, JobOnTable, JobReport, failed_report
from memwal.run.lease import ChainLeases
from memwal.run.metrics.spans import span
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.reports import had_no_room, job_report, must_stop, sum_up_jobs
from memwal.run.stores import OpenedBefore
from memwal.run.workers import cancel
from memwal.text import count_of

Run = Callable[[Sequence[ResolvedTable]], JobReport]


@dataclass(frozen=True, kw_only=True)
class MaintainOptions(RunOptions):
    """The options of `maintain`. If `jobs` are given, only these run; `merge` bounds the merges.

    `steps` is called with each job's name before it, and with steps within; if it raises StandDown
    or PartlyFailed, the job does not run.
    """

    request: MaintainRequest = MaintainRequest()
    jobs: Collection[str] | None = None
    merge: MergeRequest = MergeRequest()
    steps: Steps = no_steps


def run_maintain(options: MaintainOptions, progress: Progress) -> JobReport:
    """Run the jobs over the tables, one job after the other; a table stops at its first refusal.

    Within a job the tables of a higher priority come first. A table whose store had no room left
    still gets garbage collected, which makes room.
    """
    for table in options.tables:  # so that bad limits are refused before the first job
        permit(narrow(options.request, GarbageRequest), table.settings)
    if options.jobs is None or "snapshot" in options.jobs:
        check_lease(options)
    with (
        span("memwal maintain", run_id=options.run_id, dry_run=options.dry_run),
        ChainLeases("maintain", warn=progress.warn) as own,
    ):
        leases = options.leases or own
        return _run_jobs(replace(options, leases=leases), leases, progress)


def _run_jobs(options: MaintainOptions, leases: ChainLeases, progress: Progress) -> JobReport:
    clock = SystemClock()
    started = clock.monotonic_seconds()
    done: list[list[JobOnTable]] = [[] for _ in options.tables]
    requests: list[Mapping[str, int]] = []
    before = options.opened_before or OpenedBefore()
    for name, run in _jobs(replace(options, opened_before=before), progress):
        if options.jobs is not None and name not in options.jobs:
            continue
        going = [
            (table, jobs)
            for table, jobs in zip(options.tables, done, strict=True)
            if not must_stop(jobs) or (name == "garbage" and had_no_room(jobs))
        ]
        if name == "compaction" and options.jobs is None:
            going = [(table, jobs) for table, jobs in going if _is_to_compact(table, jobs, options)]
        if not going:
            continue
        going.sort(key=lambda pair: -pair[0].priority)
        progress.say(f"{name}: {count_of(len(going), 'table')}")
        found = _run_job(name, run, [table for table, _ in going], options.steps, progress)
        requests.append(found.requests)
        for (table, jobs), report in zip(going, found.tables, strict=True):
            jobs.append(JobOnTable(job=name, report=report))
            if report.outcome != NOTHING_TO_DO:
                before.forget(table.uri)
            if must_stop(jobs):
                leases.give_back(table.uri)
    return job_report(
        "maintain",
        (
            MaintainTableReport(table=table.name, **sum_up_jobs(jobs))
            for table, jobs in zip(options.tables, done, strict=True)
        ),
        seconds=clock.monotonic_seconds() - started,
        dry_run=options.dry_run,
        requests=requests,
    )


def _is_to_compact(
    table: ResolvedTable, jobs: Sequence[JobOnTable], options: MaintainOptions
) -> bool:
    """Whether to compact the table; mode `auto` follows the advice of the jobs before."""
    mode = options.request.compaction_mode or table.settings.compaction or "never"
    advised = any((a := getattr(job.report, "compaction", None)) and a.reason for job in jobs)
    return mode == "always" or (mode == "auto" and advised)


def _run_job(
    name: str, run: Run, tables: Sequence[ResolvedTable], steps: Steps, progress: Progress
) -> JobReport:
    try:
        steps(name)
        return run(tables)
    except (StandDown, PartlyFailed) as error:  # what was done before is in other jobs' reports
        return job_report(name, [failed_report(table.name, error) for table in tables])
    except (MemWalError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        progress.trace(traceback.format_exc())
        why = explain_error(error)
        return job_report(name, [failed_report(table.name, why) for table in tables])


def explain_error(error: BaseException) -> MemWalError:
    """An unexpected error as a MemWalError; StandDown if cancelled, which causes such errors."""
    if isinstance(error, MemWalError):
        return error
    try:
        cancel.check()
    except StandDown as cancelled:
        return cancelled
    return unexpected(error)


def _jobs(options: MaintainOptions, progress: Progress) -> Iterator[tuple[str, Run]]:
    def run(job: Callable[..., JobReport], kind: Callable[..., RunOptions], **more: Any) -> Run:
        return lambda tables: job(options.for_job(kind, tables, **more), progress)

    yield "merge", run(run_merge, MergeOptions, request=options.merge)
    yield "index-catchup", run(run_index_catchup, IndexCatchupOptions, steps=options.steps)
    yield "compaction", run(run_compaction, CompactionOptions, steps=options.steps)
    yield "snapshot", run(run_snapshot, RunOptions)
    garbage = narrow(options.request, GarbageRequest)
    yield "garbage", run(run_garbage, GarbageOptions, request=garbage)
