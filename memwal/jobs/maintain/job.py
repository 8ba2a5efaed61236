"""`memwal maintain`: the jobs in the order in which each makes work for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.jobs.compaction.job import CompactionOptions, run_compaction
from memwal.jobs.garbage.job import run_garbage
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.plan import check_limits
from memwal.jobs.garbage.run import GarbageOptions
from memwal.jobs.index_catchup.job import IndexCatchupOptions, run_index_catchup
from memwal.jobs.merge.job import MergeOptions, run_merge
from memwal.jobs.snapshot.job import check_lease, run_snapshot
from memwal.report import (
    NOTHING_TO_DO,
    JobReport,
    MaintainTableReport,
    TableReport,
    sum_up_tables,
)
from memwal.run.chain import stops, summed_fields
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.tables import KnownTables

Options = TypeVar("Options", bound=RunOptions)


@dataclass(frozen=True, kw_only=True)
class MaintainOptions(RunOptions):
    """What `maintain` takes besides: the garbage job's guards, and whether to compact."""

    compaction: bool = False
    execute: bool = False
    retention_seconds: float | None = None
    short_allowed: bool = False
    limits: GarbageLimits = GarbageLimits()


@dataclass(kw_only=True)
class _Table:
    resolved: ResolvedTable
    reports: list[tuple[str, TableReport]] = field(default_factory=list)

    @property
    def stopped(self) -> bool:
        return any(stops(name, report) for name, report in self.reports)


def run_maintain(options: MaintainOptions, progress: Progress) -> JobReport:
    """Run the jobs over the tables, one job after the other; a table stops at its first refusal."""
    # Said before the first job, not after the last but one.
    check_limits(
        options.limits,
        retention_seconds=options.retention_seconds,
        short_allowed=options.short_allowed,
    )
    check_lease(options)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    tables = [_Table(resolved=resolved) for resolved in options.tables]
    requests: dict[str, int] = {}
    known = KnownTables()
    for name, run in _jobs(options, progress, known):
        going = [table for table in tables if not table.stopped]
        if not going:
            break
        progress.say(f"{name}: {len(going)} tables")
        done = run([table.resolved for table in going])
        for table, report in zip(going, done.tables, strict=True):
            table.reports.append((name, report))
            if report.outcome != NOTHING_TO_DO:
                known.forget(table.resolved)
        for key, value in done.requests.items():
            requests[key] = requests.get(key, 0) + value
    reports = tuple(_summed(table) for table in tables)
    outcome, code = sum_up_tables(reports)
    return JobReport(
        job="maintain",
        outcome=outcome,
        exit_code=code,
        seconds=round(clock.monotonic_seconds() - started, 3),
        dry_run=options.dry_run,
        tables=reports,
        requests=requests,
    )


def _jobs(
    options: MaintainOptions, progress: Progress, known: KnownTables
) -> list[tuple[str, Callable[[Sequence[ResolvedTable]], JobReport]]]:
    def common(kind: type[Options], tables: Sequence[ResolvedTable]) -> Options:
        return kind(
            tables=tables,
            engine=options.engine,
            master=options.master,
            dry_run=options.dry_run,
            lease=options.lease,
            untested_lance_allowed=options.untested_lance_allowed,
            known=known,
        )

    def garbage(tables: Sequence[ResolvedTable]) -> JobReport:
        chosen = replace(
            common(GarbageOptions, tables),
            execute=options.execute,
            retention_seconds=options.retention_seconds,
            short_allowed=options.short_allowed,
            limits=options.limits,
        )
        return run_garbage(chosen, progress)

    jobs: list[tuple[str, Callable[[Sequence[ResolvedTable]], JobReport]]] = [
        ("merge", lambda tables: run_merge(common(MergeOptions, tables), progress)),
        (
            "index-catchup",
            lambda tables: run_index_catchup(common(IndexCatchupOptions, tables), progress),
        ),
    ]
    if options.compaction:
        jobs.append(
            (
                "compaction",
                lambda tables: run_compaction(common(CompactionOptions, tables), progress),
            )
        )
    jobs.append(("snapshot", lambda tables: run_snapshot(common(RunOptions, tables), progress)))
    jobs.append(("garbage", garbage))
    return jobs


def _summed(table: _Table) -> MaintainTableReport:
    return MaintainTableReport(table=table.resolved.name, **summed_fields(table.reports))
