"""`memwal watch`: keeps tables fresh until it is stopped."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.clock import SystemClock
from memwal.config import ResolvedTable, WatchSettings
from memwal.errors import MemWalError
from memwal.jobs.garbage.plan import permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.maintain.job import MaintainOptions
from memwal.jobs.snapshot.job import check_lease
from memwal.jobs.status.plan import DueLimits
from memwal.jobs.watch.apply import Watch
from memwal.jobs.watch.metrics import WatchMetrics, serve_probes
from memwal.jobs.watch.plan import COMPACTION, GARBAGE, SNAPSHOT, Target, WatchLimits
from memwal.jobs.watch.ports import Events, Watched
from memwal.jobs.watch.report import WatchReport
from memwal.jobs.watch.request import WatchRequest
from memwal.jobs.watch.store import StoredLooks
from memwal.jobs.watch.workers import ProcessWorkers
from memwal.model import FRESHNESS_SECONDS
from memwal.ports import Clock
from memwal.report import DONE
from memwal.run.engines.choice import choose_engine
from memwal.run.metrics.sink import NO_METRICS, Metrics
from memwal.run.options import RunOptions, choose_limits
from memwal.run.process.signals import end_on_signals
from memwal.run.progress import Progress
from memwal.run.reports import job_report
from memwal.run.stores import check_lance_version
from memwal.run.workers.pool import WorkerLimits
from memwal.store.objects.pace import find_rate, split_rate

_WORKERS_MAX = 4


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RunOptions):
    """The options of `watch`.

    `read_again` gives the tables when what namespaces list has changed since the last time, else
    None; it may raise Usage. `find_unlisted` tells which globs in namespaces can't be listed now.
    """

    request: WatchRequest = WatchRequest()
    settings: WatchSettings
    events: Events
    read_again: Callable[[], Sequence[ResolvedTable] | None] = lambda: None
    find_unlisted: Callable[[], Mapping[str, MemWalError]] = dict
    metrics: Metrics = NO_METRICS

    def choose_target(self, table: ResolvedTable) -> Watched:
        """The table with its target."""
        # Of this table alone: the engine that another one asks for is not asked for here.
        asked = replace(self, tables=[table]).asked_engine
        target = Target(
            freshness_seconds=table.settings.freshness or FRESHNESS_SECONDS,
            due=choose_limits(DueLimits, table),
            is_large=partial(_is_large, asked),
            at_once=self.request.once,
            priority=table.priority,
            compacts=table.settings.compaction != "never",
            collects=permit(GarbageRequest(), table.settings).deletes,
        )
        if find_rate(table.storage_options) is not None:
            # The processes: this one, those for small rounds, and the one for large rounds.
            processes = choose_watch_limits(self.settings, self.tables).rounds_max + 2
            options = split_rate(table.storage_options, processes)
            table = table.model_copy(update={"storage_options": options})
        return Watched(resolved=table, target=target)

    def read_targets(self) -> Sequence[Watched] | None:
        """The tables with their targets, as `read_again`."""
        tables = self.read_again()
        return None if tables is None else [self.choose_target(table) for table in tables]


def _is_large(asked: str, units: int, in_memory_bytes: int) -> bool:
    """Whether a round is one for Spark, or would be if Spark were there and wanted."""
    choice = choose_engine(
        "spark" if asked == "spark" else "auto",
        units=units,
        in_memory_bytes=in_memory_bytes,
        find_obstacle=lambda: None,
    )
    return choice.name == "spark"


def choose_watch_limits(settings: WatchSettings, tables: Sequence[ResolvedTable]) -> WatchLimits:
    """The watch's bounds; upkeep in the order in which one round does it.

    On an object store a round waits most of the time, so there are more at once.
    """
    rounds_a_processor = 2 if any(table.is_remote for table in tables) else 1
    every = {
        COMPACTION: settings.compaction_every,
        SNAPSHOT: settings.snapshot_every,
        GARBAGE: settings.garbage_every,
    }
    return WatchLimits(
        every_seconds=settings.every,
        rounds_max=settings.workers
        or min(_WORKERS_MAX, rounds_a_processor * (os.cpu_count() or 1)),
        looks_max=settings.looks_in_flight_max,
        backoff_seconds_max=settings.backoff_seconds_max,
        stop_seconds_max=settings.stop_seconds_max,
        upkeep_seconds={job: seconds for job, seconds in every.items() if seconds is not None},
    )


def run_watch(options: WatchOptions, progress: Progress) -> WatchReport:
    """Keep the tables fresh until a signal comes, or until a bound of the watch is reached.

    Raises, before the first look, what the jobs raise for options that they don't accept.
    """
    check_lance_version(options.untested_lance_allowed)
    check_lease(options)
    clock = SystemClock()
    began = clock.monotonic_seconds()
    asked = options.request
    deadline = began + (math.inf if asked.for_seconds is None else asked.for_seconds)
    with serve_probes(asked, options.metrics, options.settings.every, progress) as pulse:
        watch = _make_watch(options, clock, progress)
        with end_on_signals(watch.end):
            try:
                while not watch.is_over and clock.monotonic_seconds() < deadline:
                    pulse.turn()
                    watch.turn()
                watch.finish()
            except KeyboardInterrupt:  # by a second signal
                watch.finish(0)
            except BaseException:
                watch.workers.stop(0)
                raise
    return _sum_up(watch, options, clock.monotonic_seconds() - began)


def _make_watch(options: WatchOptions, clock: Clock, progress: Progress) -> Watch:
    observers: list[WatchMetrics] = []
    if options.metrics is not NO_METRICS:
        observers.append(WatchMetrics(metrics=options.metrics, clock=clock))
    limits = choose_watch_limits(options.settings, options.tables)
    watch = Watch(
        lookouts=StoredLooks(clock),
        workers=ProcessWorkers(
            options=options.for_job(MaintainOptions, ()),
            progress=progress,
            clock=clock,
            workers_max=limits.rounds_max,
            limits=WorkerLimits(
                memory_bytes_max=options.settings.worker_memory_bytes_max,
                idle_seconds_max=options.settings.worker_idle_seconds_max,
            ),
            on_replaced=options.metrics.record_worker_replaced,
        ),
        clock=clock,
        events=options.events,
        read_again=options.read_targets,
        find_unlisted=options.find_unlisted,
        limits=limits,
        observers=observers,
        acts=options.acts,
        once=options.request.once,
    )
    watch.watch([options.choose_target(table) for table in options.tables])
    return watch


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
