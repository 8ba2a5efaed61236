"""Keeps looking at tables, or at a watch's metrics, through ports only. Nothing is written."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from memwal.errors import MemWalError, StoreUnavailable
from memwal.jobs.top.plan import (
    Asked,
    Counted,
    Row,
    Sample,
    Seen,
    choose_rows,
    count_merged,
    judge_need,
    make_row,
    press,
    price,
    price_month,
    queue_up,
    read_rows,
    sum_samples,
)
from memwal.jobs.watch.plan import Lag, Look, Need, Waiting, assess
from memwal.jobs.watch.ports import LookEnd, Lookouts, Watched
from memwal.model import LeaseClaim
from memwal.ports import Clock

# As many looks are under way at most, those left out that take longer than this.
_LOOKS_MAX = 16
LOOK_SECONDS_MAX = 15.0
_TURN_SECONDS = 0.5
_WAIT_SECONDS = 0.05


class Source(Protocol):
    """Where rows come from. No method waits."""

    @property
    def requests(self) -> Mapping[str, int]:
        """The requests that were made to stores, by operation."""
        ...

    def turn(self) -> None:
        """Take in what has come, and begin what is due."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether there are rates, as far as there will be any."""
        ...

    def see(self) -> Seen:
        """All that is known."""
        ...


class LeasedLookouts(Lookouts, Protocol):
    """Looks, and the newest claim that each found on its table's lease."""

    @property
    def leases(self) -> Mapping[str, LeaseClaim | None]:
        """By the tables' names."""
        ...


@dataclass(kw_only=True)
class _Table:
    watched: Watched
    due_at: float = -math.inf
    began: float | None = None
    looks: int = 0
    look: Look | None = None
    lag: Lag | None = None
    error: MemWalError | None = None
    rows: Counted = Counted()

    def take(self, end: LookEnd, clock: Clock) -> None:
        self.began, self.error = None, end.error
        if (look := end.look) is None:
            return
        now, name = clock.monotonic_seconds(), end.table.name
        before = None if self.look is None else self.look.view
        self.looks += 1
        self.lag = assess(
            name, look, self.watched.target, self.lag, now=now, now_nanos=clock.now_nanos()
        )
        self.rows = self.rows.grow(now, count_merged(before, look.view))
        self.look = look

    def find_error(self, now: float) -> MemWalError | None:
        """Why it could not be looked at, or for how long already nothing has come."""
        if self.began is not None and now - self.began > LOOK_SECONDS_MAX:
            return StoreUnavailable(f"a look has taken {now - self.began:.0f} s so far")
        return self.error

    def judge(self, now: float, every_seconds: float) -> Need | None:
        """What a watch would do on it."""
        if self.lag is None or self.find_error(now) is not None:
            return None
        return judge_need(self.lag, self.watched.target, now=now, every_seconds=every_seconds)

    def wait(self, need: Need) -> Waiting:
        """Its place among the tables that need a round."""
        return Waiting(
            table=self.watched.resolved.name,
            oldest=need.oldest,
            freshness_seconds=self.watched.target.freshness_seconds,
            since=0.0,
            last_began=-math.inf,
            priority=self.watched.target.priority,
        )


class TableSource:
    """The Source port over tables, each looked at every so often, and none held up by another."""

    def __init__(
        self,
        tables: Sequence[Watched],
        lookouts: LeasedLookouts,
        clock: Clock,
        every_seconds: float,
    ) -> None:
        self.requests: Counter[str] = Counter()
        self._tables = {table.resolved.name: _Table(watched=table) for table in tables}
        self._lookouts = lookouts
        self._clock = clock
        self._every_seconds = every_seconds
        self._counted = Counted()

    def turn(self) -> None:
        """Take in looks that ended, and begin those that are due."""
        for end in self._lookouts.collect():
            self._tables[end.table.name].take(end, self._clock)
            self.requests.update({} if end.look is None else end.look.requests)
        now = self._clock.monotonic_seconds()
        self._counted = self._counted.add(now, self.requests.total())
        looking = [t.began for t in self._tables.values() if t.began is not None]
        room = _LOOKS_MAX - sum(now - began <= LOOK_SECONDS_MAX for began in looking)
        due = [t for t in self._tables.values() if t.began is None and t.due_at <= now]
        for table in sorted(due, key=lambda table: table.due_at)[: max(0, room)]:
            table.began, table.due_at = now, now + self._every_seconds
            self._lookouts.start(table.watched.resolved)

    @property
    def is_complete(self) -> bool:
        """Whether each table was looked at twice, or can't be looked at."""
        now = self._clock.monotonic_seconds()
        return all(t.looks > 1 or t.find_error(now) for t in self._tables.values())

    def see(self) -> Seen:
        """The rows by the last looks; ages go on."""
        now, now_nanos = self._clock.monotonic_seconds(), self._clock.now_nanos()
        rows, waiting = [], []
        for name, table in self._tables.items():
            need = table.judge(now, self._every_seconds)
            if (error := table.find_error(now)) is not None:
                rows.append(Row(table=name, error=str(error), cause=error))
            elif table.lag is None:
                rows.append(Row(table=name))
            else:
                lease, rate = self._lookouts.leases.get(name), table.rows.rate
                row = make_row(
                    table.lag, need, lease, rows_per_second=rate, now=now, now_nanos=now_nanos
                )
                rows.append(row)
            if need is not None:
                waiting.append(table.wait(need))
        rates = [row.rows_per_second for row in rows if row.rows_per_second is not None]
        return Seen(
            rows=queue_up(rows, waiting, now=now),
            rows_per_second=sum(rates) if rates else None,
            requests_per_second=self._counted.rate,
        )


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a watch's metrics were, or why they could not be read."""

    samples: Sequence[Sample] = ()
    error: MemWalError | None = None


class Scraper(Protocol):
    """Reads a watch's metrics."""

    @property
    def place(self) -> str:
        """From where, as it may be shown."""
        ...

    def start(self) -> None:
        """Begin to read them; returns at once."""
        ...

    def collect(self) -> Sequence[Scrape]:
        """What has been read since the last call, without waiting."""
        ...


@dataclass(kw_only=True)
class MetricsSource:
    """The Source port over a watch's metrics. What was read last stays while nothing comes."""

    scraper: Scraper
    clock: Clock
    every_seconds: float
    requests: Mapping[str, int] = field(default_factory=dict)
    _due_at: float = -math.inf
    _under_way: bool = False
    _rows: Sequence[Row] = ()
    _tables: Mapping[str, Counted] = field(default_factory=dict)
    _merged: Counted = Counted()
    _requests: Counted = Counted()
    _dollars: Counted = Counted()
    _problem: MemWalError | None = None
    _scrapes: int = 0

    def turn(self) -> None:
        """Take in what was read, and read again where that is due."""
        now = self.clock.monotonic_seconds()
        for scrape in self.scraper.collect():
            self._under_way, self._problem = False, scrape.error
            if scrape.error is None:
                self._take(scrape.samples, now)
        if not self._under_way and now >= self._due_at:
            self._under_way, self._due_at = True, now + self.every_seconds
            self.scraper.start()

    def _take(self, samples: Sequence[Sample], now: float) -> None:
        self._scrapes += 1
        self._tables = {
            sample.labels["table"]: self._tables.get(sample.labels["table"], Counted()).add(
                now, sample.value
            )
            for sample in samples
            if sample.name == "memwal_merged_rows" and "table" in sample.labels
        }
        self._rows = [
            replace(row, rows_per_second=self._tables.get(row.table, Counted()).rate)
            for row in read_rows(samples)
        ]
        merged = sum_samples(samples, "memwal_rows_total", job="merge")
        requests = sum_samples(samples, "memwal_requests_total")
        self._merged = self._merged.add(now, sum(merged.values()))
        self._requests = self._requests.add(now, sum(requests.values()))
        self._dollars = self._dollars.add(now, price(requests))

    @property
    def is_complete(self) -> bool:
        """Whether it was read twice, or can't be read."""
        return self._scrapes > 1 or self._problem is not None

    def see(self) -> Seen:
        """The rows as they were read last."""
        return Seen(
            source=self.scraper.place,
            rows=self._rows,
            rows_per_second=self._merged.rate,
            requests_per_second=self._requests.rate,
            dollars=price_month(self._dollars.rate),
            problem=self._problem,
        )


class Screen(Protocol):
    """A terminal."""

    @property
    def lines(self) -> int:
        """How many rows it has room for."""
        ...

    def draw(self, rows: Sequence[Row], seen: Seen, asked: Asked) -> None:
        """Show these rows, of all that was seen."""
        ...

    def read_keys(self, seconds: float) -> Sequence[str]:
        """The keys that were pressed; waits so long at most. "q" once nobody can press any."""
        ...


def look_once(source: Source, clock: Clock) -> Seen:
    """Look until there are rates."""
    source.turn()
    while not source.is_complete:
        clock.sleep(_WAIT_SECONDS)
        source.turn()
    return source.see()


def show_live(source: Source, screen: Screen, asked: Asked) -> None:
    """Show what is seen until somebody quits."""
    while True:
        source.turn()
        seen = source.see()
        rows = choose_rows(seen.rows, asked)
        screen.draw(rows, seen, asked)
        for key in screen.read_keys(_TURN_SECONDS):
            pressed = press(asked, key, rows=len(rows), lines=screen.lines)
            if pressed is None:
                return
            asked = pressed
