"""`memwal top`: how all tables stand, live or once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.jobs.status.plan import DueLimits
from memwal.jobs.top.apply import MetricsSource, Screen, Source, TableSource, look_once, show_live
from memwal.jobs.top.plan import Asked, Seen, choose_rows
from memwal.jobs.top.report import TopReport, report_top
from memwal.jobs.top.store import LeasedLooks, MetricsReader
from memwal.jobs.watch.options import FRESHNESS_SECONDS
from memwal.jobs.watch.plan import Target
from memwal.jobs.watch.ports import Watched
from memwal.ports import Clock
from memwal.run.options import RunOptions, choose_limits
from memwal.run.stores import check_lance_version


@dataclass(frozen=True, kw_only=True)
class TopOptions(RunOptions):
    """What `top` takes besides. `source` is a watch's metrics address, in place of tables.

    `open_screen` is there if the screen is to stay and be kept up to date until somebody quits.
    """

    every_seconds: float
    source: str | None = None
    open_screen: Callable[[], AbstractContextManager[Screen]] | None = None


def run_top(options: TopOptions) -> tuple[TopReport, Seen]:
    """Look at tables, or at a watch's metrics, once; returns what is seen too, its rows in order.

    With `open_screen`, show it until somebody quits; the report then has no tables. Raises what
    metrics could not be read for, unless a screen shows that.
    """
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    began = clock.monotonic_seconds()
    source = _open_source(options, clock)
    asked, seen = Asked(), Seen()
    if options.open_screen is None:
        seen = look_once(source, clock)
        if seen.problem is not None:
            raise seen.problem
        seen = replace(seen, rows=choose_rows(seen.rows, asked))
    else:
        with options.open_screen() as screen:
            show_live(source, screen, asked)
    seconds = clock.monotonic_seconds() - began
    return report_top(seen, seconds=seconds, requests=source.requests), seen


def _open_source(options: TopOptions, clock: Clock) -> Source:
    every_seconds = options.every_seconds
    if options.source is not None:
        reader = MetricsReader(options.source)
        return MetricsSource(scraper=reader, clock=clock, every_seconds=every_seconds)
    tables = [_choose_target(table) for table in options.tables]
    return TableSource(tables, LeasedLooks(clock), clock, every_seconds)


def _choose_target(table: ResolvedTable) -> Watched:
    target = Target(
        freshness_seconds=table.settings.freshness or FRESHNESS_SECONDS,
        due=choose_limits(DueLimits, table),
        priority=table.priority,
    )
    return Watched(resolved=table, target=target)
