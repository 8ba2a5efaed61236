"""`memwal quiesce`: flush, merge, catch up, drop, and tell whether the write spec may be changed.

Each step is a job of its own, so a run that was killed can simply be run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.jobs.garbage.plan import permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.maintain.request import MaintainRequest
from memwal.jobs.quiesce.plan import Obstacle, Stillness, find_obstacles
from memwal.jobs.quiesce.report import find_claimed, find_kept, report_quiesce
from memwal.jobs.quiesce.request import QuiesceRequest
from memwal.jobs.rescue.job import Confirm, RescueOptions, run_rescue
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import StoredShardWal
from memwal.model import ShardId, TableView
from memwal.options import narrow
from memwal.report import JobOnTable, JobReport, TableReport
from memwal.run.fanout import Fanout
from memwal.run.former_merges import record_merged
from memwal.run.lease import ChainLeases
from memwal.run.metrics.spans import span
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.reports import job_report, must_stop
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.run.trail import finish, make_trail
from memwal.text import count_of
from memwal.threads import side_by_side

_JOBS = ("merge", "index-catchup", "garbage")
_READERS_MAX = 16


@dataclass(frozen=True, kw_only=True)
class QuiesceOptions(RunOptions):
    """The options of `quiesce`, which are those of `rescue` and the garbage job."""

    confirm: Confirm
    request: QuiesceRequest = QuiesceRequest()


def run_quiesce(options: QuiesceOptions, progress: Progress) -> JobReport:
    """Bring each table to rest; a table at which a job stopped is judged as well."""
    for table in options.tables:
        permit(narrow(options.request, GarbageRequest), table.settings)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    with (
        span("memwal quiesce", run_id=options.run_id, dry_run=options.dry_run),
        ChainLeases("quiesce", warn=progress.warn) as own,
    ):
        options = replace(options, leases=options.leases or own)
        jobs, requests = _run_jobs(options, progress)
        found = _look(options, jobs)
    return job_report(
        "quiesce",
        found.tables,
        seconds=clock.monotonic_seconds() - started,
        dry_run=options.dry_run,
        requests=[*requests, found.requests],
    )


def _run_jobs(
    options: QuiesceOptions, progress: Progress
) -> tuple[dict[str, list[JobOnTable]], list[Mapping[str, int]]]:
    """Run the jobs; returns their reports by table, and the requests that they made."""
    progress.say(f"rescue: {count_of(len(options.tables), 'table')}")
    rescue = options.for_job(
        RescueOptions,
        options.tables,
        confirm=options.confirm,
        request=narrow(options.request, RescueRequest),
    )
    rescued = run_rescue(rescue, progress)
    jobs = {t.table: [JobOnTable(job="rescue", report=t)] for t in rescued.tables}
    going: Sequence[ResolvedTable] = [t for t in options.tables if not must_stop(jobs[t.name])]
    if not going:
        return jobs, [rescued.requests]
    maintain = options.for_job(
        MaintainOptions,
        going,
        jobs=_JOBS,
        request=_make_maintain(options),
    )
    maintained = run_maintain(maintain, progress)
    for table in maintained.tables:
        if isinstance(table, MaintainTableReport):
            jobs[table.table] += table.jobs
    return jobs, [rescued.requests, maintained.requests]


def _make_maintain(options: QuiesceOptions) -> MaintainRequest:
    return narrow(options.request, MaintainRequest, execute=not options.dry_run)


def _look(options: QuiesceOptions, jobs: Mapping[str, list[JobOnTable]]) -> JobReport:
    """Read each table again, and report what is in the way."""

    def look(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        done = jobs[table.resolved.name]
        wal = StoredShardWal(stores.objects)
        claimed = find_claimed(done)

        def read(shard_id: ShardId) -> Stillness:
            try:
                return Stillness(evidence=wal.read(shard_id), claimed_by_us=claimed.get(shard_id))
            except MemWalError as error:
                return Stillness(error=error)

        ids = [shard.shard_id for shard in view.shards]
        found = dict(zip(ids, side_by_side(read, ids, _READERS_MAX), strict=True))
        now = stores.clock.now_nanos()
        obstacles = find_obstacles(
            view, found, find_kept(done), narrow(options.request, RescueRequest), now
        )
        if not obstacles and options.acts:
            obstacles = _record(stores, view)
        report = report_quiesce(table.resolved.name, done, obstacles, dry_run=options.dry_run)
        asked = (options.run_id, options.request)
        trail = make_trail(table.resolved, stores, "quiesce", *asked) if options.acts else None
        return finish(trail, report)

    runner = JobRunner(name="quiesce", looks_only=True)
    return runner.run_each(options.for_job(RunOptions, options.tables), look, SILENT)


def _record(stores: Stores, view: TableView) -> list[Obstacle]:
    """Record that everything is merged; returns an obstacle if that fails."""
    try:
        record_merged(stores, view)
    except MemWalError as error:
        text = f"what is merged could not be recorded: {error}"
        return [Obstacle(kind="record", detail=text, stays=False, exit_code=error.exit_code)]
    return []
