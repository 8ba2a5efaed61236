"""`memwal watch`: keeps tables fresh until it is stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from memwal.clock import SystemClock
from memwal.config import ResolvedTable, WatchSettings
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.garbage.plan import check_limits
from memwal.jobs.maintain.job import MaintainOptions
from memwal.jobs.snapshot.job import check_lease
from memwal.jobs.status.plan import DueLimits
from memwal.jobs.watch.apply import Watch
from memwal.jobs.watch.lookouts import ThreadLookouts
from memwal.jobs.watch.plan import COMPACTION, GARBAGE, SNAPSHOT, Target, WatchLimits
from memwal.jobs.watch.ports import Events, Observer, Watched
from memwal.jobs.watch.report import WatchReport
from memwal.jobs.watch.store import StoredLooks
from memwal.jobs.watch.workers import ThreadWorkers
from memwal.report import DONE
from memwal.run.engines.choice import choose_engine
from memwal.run.engines.pool import has_spark
from memwal.run.options import RunOptions, choose_limits
from memwal.run.progress import Progress
from memwal.run.reports import job_report
from memwal.run.signals import end_on_signals
from memwal.run.versions import check_lance_version

FRESHNESS_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RunOptions):
    """What `watch` takes besides. `seconds_max` bounds it; `once` serves every table once.

    `read_again` gives the tables when the configuration has changed since it was read last.
    """

    settings: WatchSettings
    events: Events
    read_again: Callable[[], Sequence[ResolvedTable] | None] = lambda: None
    seconds_max: float | None = None
    once: bool = False
    observers: Sequence[Observer] = ()


@dataclass(frozen=True, slots=True)
class Targets:
    """What tables are held to, by their configuration and the watch's options."""

    options: WatchOptions

    def watch(self, table: ResolvedTable) -> Watched:
        """The table with its target."""
        asked = self.options.engine or table.settings.engine or self.options.asked_engine
        target = Target(
            freshness_seconds=table.settings.freshness or FRESHNESS_SECONDS,
            due=choose_limits(DueLimits, table),
            is_large=partial(_is_large, asked),
            at_once=self.options.once,
        )
        return Watched(resolved=table, target=target)


def _is_large(asked: str, units: int, in_memory_bytes: int) -> bool:
    choice = choose_engine(
        asked, units=units, in_memory_bytes=in_memory_bytes, spark_installed=has_spark()
    )
    return choice.name == "spark"


def run_watch(options: WatchOptions, progress: Progress) -> WatchReport:
    """Keep the tables fresh until a signal comes, or what bounds the watch.

    Raises what the jobs raise of options that they don't take, before the first look.
    """
    check_lance_version(options.untested_lance_allowed)
    check_lease(options)
    rounds = _choose_round_options(options)
    check_limits(rounds.limits, retention_seconds=rounds.retention_seconds, short_allowed=False)
    clock, targets = SystemClock(), Targets(options)
    began = clock.monotonic_seconds()
    limits = choose_watch_limits(options.settings)
    watch = Watch(
        lookouts=ThreadLookouts(StoredLooks()),
        workers=ThreadWorkers(rounds, progress, rounds_max=limits.rounds_max),
        clock=clock,
        events=options.events,
        configuration=Reread(options, targets),
        limits=limits,
        observers=options.observers,
        acts=options.acts,
        once=options.once,
    )
    watch.watch([targets.watch(table) for table in options.tables])
    deadline = began + (math.inf if options.seconds_max is None else options.seconds_max)
    with end_on_signals(watch.end):
        try:
            while not watch.is_over and clock.monotonic_seconds() < deadline:
                watch.step()
            watch.finish()
        except KeyboardInterrupt:  # by a second signal
            watch.finish(0)
    return _sum_up(watch, options, clock.monotonic_seconds() - began)


@dataclass(frozen=True, slots=True)
class Reread:
    """The Configuration port over what the options read."""

    options: WatchOptions
    targets: Targets

    def read(self) -> Sequence[Watched] | None:
        """The tables that the configuration names now, if it changed."""
        tables = self.options.read_again()
        return None if tables is None else [self.targets.watch(table) for table in tables]


def choose_watch_limits(settings: WatchSettings) -> WatchLimits:
    """The watch's bounds; upkeep in the order in which one round does it."""
    every = {
        COMPACTION: settings.compaction_every,
        SNAPSHOT: settings.snapshot_every,
        GARBAGE: settings.garbage_every if settings.garbage_execute else None,
    }
    return WatchLimits(
        every_seconds=settings.every,
        rounds_max=settings.workers,
        looks_max=settings.looks_in_flight_max,
        backoff_seconds_max=settings.backoff_seconds_max,
        stop_seconds_max=settings.stop_seconds_max,
        upkeep_seconds={job: seconds for job, seconds in every.items() if seconds is not None},
    )


def _choose_round_options(options: WatchOptions) -> MaintainOptions:
    settings = options.settings
    return options.for_job(
        MaintainOptions,
        (),
        execute=settings.garbage_execute,
        retention_seconds=settings.retention,
        limits=GarbageLimits(grace_seconds=settings.grace, wal=settings.garbage_wal),
    )


def _sum_up(watch: Watch, options: WatchOptions, seconds: float) -> WatchReport:
    reports = [state.report for state in watch.tables.values() if state.report is not None]
    found = job_report("watch", reports, seconds=seconds, dry_run=options.dry_run, otherwise=DONE)
    return WatchReport(
        **dict(found),
        watched=len(watch.tables),
        rounds=watch.rounds,
        looks=watch.looks,
        rows=watch.rows,
        lag_seconds_max=round(watch.lag_seconds_max, 3),
    )
