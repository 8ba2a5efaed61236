"""What a watch tells others of its tables: metrics, and the answers to probes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memwal.errors import MemWalError
from memwal.indexes import covering_indexes
from memwal.jobs.watch.plan import Generation, Lag, Look
from memwal.jobs.watch.ports import RoundEnd
from memwal.jobs.watch.report import count_rows
from memwal.model import ShardId, TableState
from memwal.ports import Clock
from memwal.report import HELD, failed_report
from memwal.run.metrics.sink import Metrics, Stage, count_requests, name_failure

WATCH = "watch"

Marks = Mapping[ShardId, int]
Failures = tuple[int, str | None]
"""How many failures there were in a row, and the reason of the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """How far a table had got at a look, and when its unfinished generations were flushed."""

    merged: Marks
    indexed: Marks
    flushed_at_nanos: Mapping[Generation, int]


def find_fresh(before: Reached | None, look: Look) -> tuple[list[tuple[Stage, float]], Reached]:
    """The stage and seconds since its flush of each generation that completed a stage since.

    Returns them with the new `Reached`. Each completion is reported once, timed by the commit of
    the version in which a look first finds it, which is no earlier than the completion itself. What
    was complete at the first look is not reported: nobody saw when it happened.
    """
    view, state = look.view, look.view.mem_wal
    names = covering_indexes(view.manifest, state)
    now: dict[Stage, dict[ShardId, int]] = {
        "merged": dict(state.merged),
        "indexed": {shard: state.caught_up_to(shard, names) for shard in state.merged},
    }
    flushed = dict(look.flushed_at_nanos)
    told: list[tuple[Stage, float]] = []
    if before is not None:
        flushed = {**before.flushed_at_nanos, **flushed}
        then: dict[Stage, Marks] = {"merged": before.merged, "indexed": before.indexed}
        for stage, marks in now.items():
            told += [
                (stage, (view.manifest.timestamp_nanos - at) / 1e9)
                for (shard, generation), at in flushed.items()
                if then[stage].get(shard, 0) < generation <= marks.get(shard, 0)
            ]
            for shard, mark in then[stage].items():  # an older version may have been restored
                marks[shard] = max(mark, marks.get(shard, 0))
    return told, Reached(
        merged=now["merged"],
        indexed=now["indexed"],
        flushed_at_nanos=dict(_find_unfinished(look, now["merged"], now["indexed"], flushed)),
    )


def _find_unfinished(
    look: Look, merged: Marks, indexed: Marks, flushed: Mapping[Generation, int]
) -> Iterator[tuple[Generation, int]]:
    # A generation that garbage collected had been merged; any other that is gone no longer counts.
    for key, at in flushed.items():
        shard, generation = key
        is_there = key in look.flushed_at_nanos or generation <= merged.get(shard, 0)
        if is_there and generation > indexed.get(shard, 0):
            yield key, at


@dataclass(kw_only=True, slots=True)
class _Table:
    state: TableState = TableState()
    progress: Reached | None = None
    looks: Failures = (0, None)
    rounds: Failures = (0, None)


@dataclass(kw_only=True)
class WatchMetrics:
    """The Observer port: records what a watch sees.

    A table that can't be looked at keeps its last state: ages keep growing, and `looked_at_nanos`
    shows how old they are.
    """

    metrics: Metrics
    clock: Clock
    _tables: dict[str, _Table] = field(default_factory=dict)

    def turn(self, tables: Sequence[str], waiting: Sequence[str] = ()) -> None:
        """Show each table's place in the queue, and those not looked at yet as never seen."""
        places = {name: place for place, name in enumerate(waiting, start=1)}
        for name in tables:
            found, place = self._tables.get(name), places.get(name)
            if found is None or found.state.queue_place != place:
                self._show(name, queue_place=place)

    def looked(self, look: Look, lag: Lag) -> None:
        """Record a look that succeeded."""
        self.metrics.add(count_requests(look.requests))
        table, before = self._find(lag.table), self._find(lag.table).state
        fresh, table.progress = find_fresh(table.progress, look)
        for stage, seconds in fresh:
            self.metrics.record_freshness(stage, seconds)
        # A table that makes progress is worked on by whoever holds the lease: watches may share it.
        stays = lag.state.version == before.version
        table.looks, table.state = (0, None), lag.state
        self._show(
            lag.table,
            lease_held_at_nanos=before.lease_held_at_nanos if stays else None,
            queue_place=before.queue_place,
            merged_rows=before.merged_rows or 0,
        )

    def failed(self, table: str, error: MemWalError) -> None:
        """Record a look that failed."""
        found = self._find(table)
        found.looks = (found.looks[0] + 1, type(error).__name__)
        self._show(table)

    def ended(self, end: RoundEnd) -> None:
        """Record the end of a round; a lease that another run holds is no failure."""
        name = end.work.table
        error = end.error or MemWalError("no report")
        report = end.report or failed_report(name, error)
        self.metrics.record_table(WATCH, report, end.requests)
        table = self._find(name)
        merged_rows = (table.state.merged_rows or 0) + count_rows(end)
        table.state = replace(table.state, merged_rows=merged_rows)
        if report.outcome == HELD or any(
            job.report.outcome == HELD for job in getattr(report, "jobs", ())
        ):
            since = table.state.lease_held_at_nanos or self.clock.now_nanos()
            self._show(name, lease_held_at_nanos=since)
            return
        reason = name_failure(report)
        table.rounds = (0, None) if reason is None else (table.rounds[0] + 1, reason)
        self._show(name, lease_held_at_nanos=None)

    def forgot(self, table: str) -> None:
        """Forget a table that is no longer watched."""
        self._tables.pop(table, None)
        self.metrics.forget_table(table)

    def _find(self, table: str) -> _Table:
        return self._tables.setdefault(table, _Table())

    def _show(self, table: str, **changes: Any) -> None:
        found = self._find(table)
        failures, reason = found.looks if found.looks[0] else found.rounds
        found.state = replace(found.state, failures=failures, reason=reason, **changes)
        self.metrics.record_state(table, found.state)
