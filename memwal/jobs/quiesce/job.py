"""`memwal quiesce`: flush, merge, catch up, drop, and tell whether the write spec may be changed.

Each step is a job of its own, so a run that was killed can simply be run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import RenderableType
from rich.text import Text

from memwal.clock import SystemClock
from memwal.errors import EXIT_HELD, EXIT_PARTIAL, EXIT_REFUSED, MemWalError, Refused
from memwal.format import layout
from memwal.jobs.garbage.report import GarbageTableReport
from memwal.jobs.maintain.job import MaintainOptions, run_maintain
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.maintain.report import show_table as show_jobs
from memwal.jobs.maintain.request import MaintainRequest, QuiesceRequest
from memwal.jobs.quiesce.plan import Obstacle, Stillness, find_obstacles
from memwal.jobs.rescue.job import Confirm
from memwal.jobs.rescue.plan import RescueTableReport
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import StoredShardWal
from memwal.model import ShardId, TableView
from memwal.options import convert_request
from memwal.report import (
    DONE,
    HELD,
    NOTHING_TO_DO,
    REFUSED,
    AuditItem,
    JobOnTable,
    JobReport,
    Part,
    TableReport,
    sum_up,
)
from memwal.run.fanout import Fanout
from memwal.run.former_merges import record_merged
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions
from memwal.run.progress import SILENT, Progress
from memwal.run.reports import job_report, sum_up_jobs
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.run.trail import finish, make_trail
from memwal.store.tables.manifests import require_mem_wal
from memwal.text import name_some
from memwal.threads import side_by_side

_JOBS = ("rescue", "merge", "index-catchup", "garbage")
_READERS_MAX = 16
_NAMED_MAX = 3
_SHOWN_MAX = 20


@dataclass(frozen=True, kw_only=True)
class QuiesceOptions(RunOptions):
    """The options of `quiesce`, which are those of `rescue` and the garbage job."""

    confirm: Confirm
    request: QuiesceRequest = QuiesceRequest()


def run_quiesce(options: QuiesceOptions, progress: Progress) -> JobReport:
    """Bring each table to rest; a table at which a job stopped is judged as well."""
    clock = SystemClock()
    started = clock.monotonic_seconds()
    with ChainLeases("quiesce", warn=progress.warn) as leases:
        options = replace(options, leases=leases)
        chain = options.for_job(
            MaintainOptions,
            options.tables,
            name="quiesce",
            jobs=_JOBS,
            request=convert_request(options.request, MaintainRequest, execute=not options.dry_run),
            rescue=convert_request(options.request, RescueRequest),
            confirm=options.confirm,
        )
        done = run_maintain(chain, progress)
        jobs = {t.table: t.jobs for t in done.tables if isinstance(t, MaintainTableReport)}
        found = _look(options, jobs)
    return job_report(
        "quiesce",
        found.tables,
        seconds=clock.monotonic_seconds() - started,
        dry_run=options.dry_run,
        requests=[done.requests, found.requests],
    )


def _look(options: QuiesceOptions, jobs: Mapping[str, Sequence[JobOnTable]]) -> JobReport:
    """Read each table again, and report what is in the way."""

    def look(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        require_mem_wal(stores.uri, view.manifest)
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
            view, found, find_kept(done), convert_request(options.request, RescueRequest), now
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


class QuiesceTableReport(MaintainTableReport):
    """One table. `safe`: nothing is `in_the_way` of another write spec, when it was last looked at.

    Of a dry run both say how the table stands now, and the jobs what they would do.
    """

    safe: bool = False
    in_the_way: tuple[Obstacle, ...] = ()
    warnings: tuple[str, ...] = ()

    def audited(self) -> Iterable[AuditItem]:
        """The judgement: what was in the way of another write spec."""
        kinds = sorted({f"{o.kind} {o.shard_id or o.index or ''}".strip() for o in self.in_the_way})
        yield AuditItem(
            action="quiesce",
            kind="table",
            path=layout.MEM_WAL,
            version=self.version_after,
            reason="nothing is in the way" if self.safe else ", ".join(kinds),
            done=self.safe,
        )


def report_quiesce(
    table: str, jobs: Sequence[JobOnTable], obstacles: Sequence[Obstacle], *, dry_run: bool
) -> QuiesceTableReport:
    """What the jobs came to, and what is left; a dry run fails only for what no run would move."""
    found = sum_up_jobs(jobs)
    left = [obstacle for obstacle in obstacles if obstacle.stays or not dry_run]
    if left:
        # Where a job failed otherwise than by a refusal, that is the reason.
        known = (DONE, NOTHING_TO_DO)
        wrong: list[Part] = [j.report for j in jobs if j.report.outcome not in known]
        parts = [p for p in wrong if p.exit_code not in (EXIT_REFUSED, EXIT_PARTIAL)]
        refused = [
            Part(outcome=HELD if o.exit_code == EXIT_HELD else REFUSED, exit_code=o.exit_code)
            for o in left
        ]
        texts = name_some([o.detail for o in left], _NAMED_MAX, "reasons (in_the_way)")
        found["outcome"], found["exit_code"] = sum_up(parts or refused)
        errors = [f"{j.job}: {j.report.error}" for j in jobs if j.report in parts]
        text = f"not safe to change the write spec: {'; '.join((*errors, *texts))}"
        refused_here = found["exit_code"] == EXIT_REFUSED
        found["error"] = str(Refused("MW-V03", text)) if refused_here else text
    return QuiesceTableReport(
        table=table,
        safe=not obstacles,
        in_the_way=tuple(obstacles),
        **found,
    )


def find_claimed(jobs: Sequence[JobOnTable]) -> dict[str, int | None]:
    """The epochs that this run took, by shard."""
    return {
        shard.shard_id: shard.writer_epoch_after
        for job in jobs
        if isinstance(job.report, RescueTableReport)
        for shard in job.report.shards
        if shard.has_claimed
    }


def find_kept(jobs: Sequence[JobOnTable]) -> dict[str, str]:
    """Why garbage kept what it kept, by path."""
    return {
        item.path: item.reason
        for job in jobs
        if isinstance(job.report, GarbageTableReport)
        for item in job.report.items
        if item.action == "keep"
    }


def show_table(report: QuiesceTableReport) -> list[RenderableType]:
    """Render a line for each job, and whether the write spec may be changed.

    Obstacles that stay are in the report's error instead.
    """
    parts = show_jobs(report)
    if report.safe:
        return [*parts, Text("  safe to change the write spec", style="green")]
    if report.error is None:
        lines = name_some([o.detail for o in report.in_the_way], _SHOWN_MAX, "reasons")
        parts.append(Text("  not safe to change the write spec:", style="yellow"))
        parts += [Text(f"    {line}") for line in lines]
    if any(o.kind == "listed" and o.stays for o in report.in_the_way):
        parts.append(
            Text(
                "  a generation is dropped once every retained version has it merged; a tag or "
                "checkpoint keeps its own. --retention 1d expires versions that are older; within "
                "a day of the merge, with writers stopped, --retention 0s --allow-short-retention",
                style="dim",
            )
        )
    return parts
