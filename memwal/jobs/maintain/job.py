"""Chains of jobs on tables, in the order in which each makes work for the next.

`memwal maintain` runs all of them; `backfill`, `quiesce` and a watch's rounds are chains with
other limits.
"""

from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from memwal.clock import SystemClock
from memwal.config import CompactionMode, ResolvedTable
from memwal.errors import MemWalError, PartlyFailed, StandDown, Usage, unexpected
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.garbage.job import GarbageOptions, run_garbage
from memwal.jobs.garbage.plan import permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.maintain.request import BackfillRequest, MaintainRequest
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.rescue.job import Confirm, RescueOptions, run_rescue
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.snapshot.job import check_lease, run_snapshot
from memwal.options import convert_request
from memwal.ports import Steps, no_steps
from memwal.report import NOTHING_TO_DO, JobOnTable, JobReport, failed_report
from memwal.run.fanout import share_engines
from memwal.run.lease import ChainLeases
from memwal.run.options import RunOptions, share_memory
from memwal.run.progress import Progress, Quiet
from memwal.run.reports import had_no_room, job_report, must_stop, sum_up_jobs
from memwal.run.stores import OpenedBefore
from memwal.run.workers import cancel
from memwal.text import count_of
from memwal.threads import in_threads

Run = Callable[[Sequence[ResolvedTable]], JobReport]

# Those that a deadline keeps from beginning; the others end soon.
_LONG = ("merge", "index-catchup")


def claim_nothing(table: str, shards: object) -> bool:
    """Confirm no claim of a shard."""
    return False


@dataclass(frozen=True, kw_only=True)
class MaintainOptions(RunOptions):
    """A chain of jobs on tables, and its limits.

    `jobs` are those to run; None: what `maintain` runs. Without `tables_at_once`, each job works on
    all tables before the next one begins; with it, each table has a chain of its own, and so many
    of them run side by side. After `deadline_seconds`, no merge or index catch-up begins.

    `merge` and `rescue` are what these jobs are asked. `steps` is called with each job's name
    before it, and with steps within; if it raises, the job does not run. `name` stands in the
    report, and in the lease that the jobs share.
    """

    name: str = "maintain"
    request: MaintainRequest = MaintainRequest()
    jobs: Collection[str] | None = None
    merge: MergeRequest = MergeRequest()
    rescue: RescueRequest = RescueRequest()
    confirm: Confirm = claim_nothing
    tables_at_once: int | None = None
    deadline_seconds: float | None = None
    steps: Steps = no_steps


@dataclass(frozen=True, kw_only=True)
class BackfillOptions(RunOptions):
    """The options of `backfill`."""

    request: BackfillRequest = BackfillRequest()


def run_backfill(options: BackfillOptions, progress: Progress) -> JobReport:
    """Merge and catch indexes up on many tables, each in a chain of its own."""
    asked = options.request
    if asked.shards and len(options.tables) > 1:
        raise Usage("--shard is of one table: name that one alone")
    chain = options.for_job(
        MaintainOptions,
        options.tables,
        name="backfill",
        jobs=asked.jobs,
        merge=convert_request(asked, MergeRequest),
        tables_at_once=asked.concurrency,
        deadline_seconds=asked.deadline_seconds,
    )
    return run_maintain(chain, progress)


def run_maintain(options: MaintainOptions, progress: Progress) -> JobReport:
    """Run the jobs over the tables, one job after the other; a table stops at its first refusal.

    Tables of a higher priority come first. A table whose store had no room left still gets garbage
    collected, which makes room. The table's lease is given back when its chain ends.
    """
    for table in options.tables:  # so that bad limits are refused before the first job
        permit(convert_request(options.request, GarbageRequest), table.settings)
    if options.jobs is None or "snapshot" in options.jobs:
        check_lease(options)
    clock = SystemClock()
    started = clock.monotonic_seconds()

    def begin(step: str) -> None:
        options.steps(step)
        cancel.check()
        limit = options.deadline_seconds
        if step in _LONG and limit is not None and clock.monotonic_seconds() - started >= limit:
            raise PartlyFailed(f"not begun: {limit:g} s have passed; run again to go on")

    before = options.opened_before or OpenedBefore()
    with (
        nullcontext(options.leases)
        if options.leases
        else ChainLeases(options.name, warn=progress.warn) as leases,
        nullcontext(options.engines) if options.engines else share_engines(options) as engines,
    ):
        inside = replace(options, engines=engines, leases=leases, opened_before=before, steps=begin)
        chain = _Chain(options=inside, leases=leases, before=before, progress=progress)
        tables = sorted(options.tables, key=lambda table: -table.priority)
        if options.tables_at_once is None:
            chain.run(tables)
        else:
            _run_side_by_side(chain, tables, options.tables_at_once, engines.cancel)
    return job_report(
        options.name,
        [
            MaintainTableReport(table=table.name, **sum_up_jobs(chain.done[table.uri]))
            for table in options.tables
        ],
        seconds=clock.monotonic_seconds() - started,
        dry_run=options.dry_run,
        requests=chain.requests,
    )


def _run_side_by_side(
    chain: _Chain, tables: Sequence[ResolvedTable], at_once: int, stop: Callable[[], None]
) -> None:
    """Run a chain for each table, so many at a time; a run that is cancelled stops them all."""
    progress = chain.progress
    inside = replace(chain, progress=Quiet(progress))
    shared = [share_memory(table, min(at_once, len(tables))) for table in tables]
    progress.start("tables", len(tables))
    with in_threads(inside.run_alone, shared, at_once, stop=stop) as going:
        for count, end in enumerate(as_completed(going), start=1):
            progress.say(end.result())
            progress.done(count)


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """The jobs of a chain, and their reports by the addresses of their tables."""

    options: MaintainOptions
    leases: ChainLeases
    before: OpenedBefore
    progress: Progress
    done: defaultdict[str, list[JobOnTable]] = field(default_factory=lambda: defaultdict(list))
    requests: list[Mapping[str, int]] = field(default_factory=list)

    def run_alone(self, table: ResolvedTable) -> str:
        """Run the jobs on one table, and give its lease back; returns what came of it."""
        try:
            self.run([table])
        finally:
            self.leases.give_back(table.uri)
        told = (f"{job.job} {job.report.outcome}" for job in self.done[table.uri])
        return f"{table.name}: {', '.join(told)}"

    def run(self, tables: Sequence[ResolvedTable]) -> None:
        """Run the jobs, one after the other, on those tables that none of them stops."""
        for name, run in self._list_jobs():
            going = [table for table in tables if self._goes_on(name, table)]
            if not going:
                continue
            self.progress.say(f"{name}: {count_of(len(going), 'table')}")
            found = self._run_job(name, run, going)
            self.requests.append(found.requests)
            for table, report in zip(going, found.tables, strict=True):
                self.done[table.uri].append(JobOnTable(job=name, report=report))
                if report.outcome != NOTHING_TO_DO:
                    self.before.forget(table.uri)
                if must_stop(self.done[table.uri]):
                    self.leases.give_back(table.uri)

    def _goes_on(self, job: str, table: ResolvedTable) -> bool:
        jobs = self.done[table.uri]
        if must_stop(jobs) and not (job == "garbage" and had_no_room(jobs)):
            return False
        return job != "compaction" or self._choose_mode(table) != "never"

    def _choose_mode(self, table: ResolvedTable) -> CompactionMode:
        """Whether to compact; a chain whose jobs were named does so where it is advised."""
        otherwise: CompactionMode = "never" if self.options.jobs is None else "auto"
        return self.options.request.compaction or table.settings.compaction or otherwise

    def _run_job(self, name: str, run: Run, tables: Sequence[ResolvedTable]) -> JobReport:
        """Run one job. Its error is that of its tables: what others did is in their reports."""
        try:
            self.options.steps(name)
            return run(tables)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in Lance's Rust code is no Exception
            why = error if isinstance(error, MemWalError) else self._explain(error)
            return job_report(name, [failed_report(table.name, why) for table in tables])

    def _explain(self, error: BaseException) -> MemWalError:
        """An unexpected error; StandDown if cancelled, which causes such errors."""
        self.progress.trace(traceback.format_exc())
        try:
            cancel.check()
        except StandDown as cancelled:
            return cancelled
        return unexpected(error)

    def _list_jobs(self) -> Iterator[tuple[str, Run]]:
        """Yield the chain's jobs in order."""
        asked = self.options

        def run(job: Callable[..., JobReport], kind: Callable[..., RunOptions], **more: Any) -> Run:
            return lambda tables: job(asked.for_job(kind, tables, **more), self.progress)

        garbage = convert_request(asked.request, GarbageRequest)
        jobs = {
            "rescue": run(run_rescue, RescueOptions, request=asked.rescue, confirm=asked.confirm),
            "merge": run(run_merge, MergeOptions, request=asked.merge),
            # It catches indexes up, too, but before there are more rows to remap.
            "compaction": run(
                run_compaction, CompactionOptions, steps=asked.steps, choose_mode=self._choose_mode
            ),
            "index-catchup": run(run_index_catchup, IndexCatchupOptions, steps=asked.steps),
            "snapshot": run(run_snapshot, RunOptions),
            "garbage": run(run_garbage, GarbageOptions, request=garbage),
        }
        chosen = jobs.keys() - {"rescue"} if asked.jobs is None else asked.jobs
        yield from ((name, job) for name, job in jobs.items() if name in chosen)
