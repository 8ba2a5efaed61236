"""What a watch is asked for, and what follows from it: targets, bounds, what rounds are given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from memwal.config import ResolvedTable, WatchSettings
from memwal.errors import MemWalError
from memwal.jobs.garbage.plan import permit
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.status.plan import DueLimits
from memwal.jobs.watch.plan import COMPACTION, GARBAGE, SNAPSHOT, Target, WatchLimits
from memwal.jobs.watch.ports import Events, Observer, Watched
from memwal.run.engines.choice import choose_engine
from memwal.run.metrics.sink import NO_METRICS, Metrics
from memwal.run.options import RunOptions, choose_limits
from memwal.store.objects.pace import find_rate, split_rate

FRESHNESS_SECONDS = 60.0
_WORKERS_MAX = 4


@dataclass(frozen=True, kw_only=True)
class WatchOptions(RunOptions):
    """What `watch` takes besides. `seconds_max` bounds it; `once` serves every table once.

    With `once` and `dry_run` it looks at every table once; if it `explains`, it tells then what
    each waits for.

    `read_again` gives the tables when the configuration, or what namespaces list, has changed since
    the last time, and raises Usage, once, for a configuration that can't be used. `find_unlisted`
    tells which globs in namespaces can't be listed now.
    """

    settings: WatchSettings
    events: Events
    read_again: Callable[[], Sequence[ResolvedTable] | None] = lambda: None
    find_unlisted: Callable[[], Mapping[str, MemWalError]] = dict
    seconds_max: float | None = None
    once: bool = False
    explains: bool = False
    observers: Sequence[Observer] = ()
    metrics: Metrics = NO_METRICS

    def choose_target(self, table: ResolvedTable) -> Watched:
        """The table with its target."""
        # Of this table alone: the engine that another one asks for is not asked for here.
        asked = replace(self, tables=[table]).asked_engine
        target = Target(
            freshness_seconds=table.settings.freshness or FRESHNESS_SECONDS,
            due=choose_limits(DueLimits, table),
            is_large=partial(_is_large, asked),
            at_once=self.once and not self.explains,
            priority=table.priority,
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
        spark_installed=True,
    )
    return choice.name == "spark"


def choose_watch_limits(settings: WatchSettings, tables: Sequence[ResolvedTable]) -> WatchLimits:
    """The watch's bounds; upkeep in the order in which one round does it.

    On an object store a round waits most of the time, so there are more at once.
    """
    is_remote = any("://" in t.uri and not t.uri.startswith("file:") for t in tables)
    rounds_a_processor = 2 if is_remote else 1
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
