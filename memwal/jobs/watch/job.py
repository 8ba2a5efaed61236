"""`memwal watch`: keeps tables fresh until it is stopped."""

from __future__ import annotations

import math

from memwal.clock import SystemClock
from memwal.jobs.maintain.job import MaintainOptions
from memwal.jobs.snapshot.job import check_lease
from memwal.jobs.watch.apply import Watch
from memwal.jobs.watch.metrics import WatchMetrics
from memwal.jobs.watch.options import WatchOptions, choose_watch_limits
from memwal.jobs.watch.report import WatchReport
from memwal.jobs.watch.store import StoredLooks
from memwal.jobs.watch.workers import ProcessWorkers
from memwal.report import DONE
from memwal.run.metrics.sink import NO_METRICS
from memwal.run.process.signals import end_on_signals
from memwal.run.progress import Progress
from memwal.run.reports import job_report
from memwal.run.stores import check_lance_version
from memwal.run.workers.pool import WorkerLimits


def run_watch(options: WatchOptions, progress: Progress) -> WatchReport:
    """Keep the tables fresh until a signal comes, or until a bound of the watch is reached.

    Raises, before the first look, what the jobs raise for options that they don't accept.
    """
    check_lance_version(options.untested_lance_allowed)
    check_lease(options)
    clock = SystemClock()
    began = clock.monotonic_seconds()
    limits = choose_watch_limits(options.settings, options.tables)
    observers = [*options.observers]
    if options.metrics is not NO_METRICS:
        observers.append(WatchMetrics(metrics=options.metrics, clock=clock))
    lookouts = StoredLooks(clock)
    watch = Watch(
        lookouts=lookouts,
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
        once=options.once,
    )
    watch.watch([options.choose_target(table) for table in options.tables])
    deadline = began + (math.inf if options.seconds_max is None else options.seconds_max)
    with end_on_signals(watch.end):
        try:
            while not watch.is_over and clock.monotonic_seconds() < deadline:
                watch.turn()
            watch.finish()
            if options.explains:
                watch.explain(lambda watched: lookouts.read_holder(watched.resolved))
        except KeyboardInterrupt:  # by a second signal
            watch.finish(0)
        except BaseException:
            watch.workers.stop(0)
            raise
    return _sum_up(watch, options, clock.monotonic_seconds() - began)


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
