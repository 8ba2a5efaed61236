"""Looks at the tables in the background, so that no request ever waits for a store.

A request gets what is known and, if that is old, starts another look without waiting for it. There
are two lanes, each a thread while it has work. One looks at the tables that answered last time,
many with one command. The other looks at those that did not, so that they hold up nobody else:
together where memwal said that their stores are unreachable, else one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from memwal.clock import SystemClock
from memwal_airflow.hooks.query import NoAnswer, ask
from memwal_airflow.hooks.redaction import change_texts
from memwal_airflow.page.answers import (
    Json,
    Look,
    add_error,
    add_runs,
    add_status,
)
from memwal_airflow.page.source import Missing, Order
from memwal_airflow.processes.process import Runner


@dataclass(frozen=True, kw_only=True)
class FeedLimits:
    """Limits: `seconds_max` is for one command, `refresh_seconds` how old data may get."""

    refresh_seconds: float = 30.0
    seconds_max: float = 60.0
    tables_max: int = 500
    # As many as one command reads at a time, so that it takes as long as its slowest table.
    batch_tables_max: int = 16
    runs_max: int = 100
    refresh_pause_seconds: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the feed knows at one moment. `planned_at` is None before the first look."""

    looks: tuple[Look, ...]
    problem: str | None
    planned_at: datetime | None
    tables_left_out: int
    busy: bool
    missing: Missing | None = None


class Feed:
    """Knows the tables as of their last look. Every method returns at once, in any thread."""

    def __init__(
        self, source: Callable[[], Order], runner: Runner, clock: SystemClock, limits: FeedLimits
    ) -> None:
        self._source = source
        self._runner = runner
        self._clock = clock
        self.limits = limits
        self._lock = threading.Lock()
        self._order = Order()
        self._looks: dict[str, Look] = {}
        self._left_out = 0
        self._planned_at: datetime | None = None
        self._running: set[str] = set()
        self._begun: dict[str, float] = {}
        self._asked = float("-inf")
        self._closed = False

    def seen(self) -> Seen:
        """Return what is known now, and start a look if that is old."""
        with self._lock:
            self._start_lanes()
            return Seen(
                looks=tuple(self._looks.values()),
                problem=self._order.problem,
                planned_at=self._planned_at,
                tables_left_out=self._left_out,
                busy=bool(self._running),
                missing=self._order.missing,
            )

    def refresh(self) -> None:
        """Look at all tables, however new the data are; not again right after such a request."""
        with self._lock:
            now = self._clock.monotonic_seconds()
            if now - self._asked >= self.limits.refresh_pause_seconds:
                self._asked = now
                self._begun.clear()
                self._start_lanes()

    def close(self) -> None:
        """End the running commands and start no more."""
        with self._lock:
            self._closed = True
        self._runner.close()

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_nanos() / 1e9, UTC)

    def _start_lanes(self) -> None:
        failing = [look for look in self._looks.values() if look.error is not None]
        self._start("well", lambda: self._look_at_well({look.name for look in failing}))
        if failing:
            self._start("failing", lambda: self._look_at_failing(failing))

    def _start(self, lane: str, work: Callable[[], None]) -> None:
        """Start a lane that is not running and has not for a while. The caller holds the lock."""
        now = self._clock.monotonic_seconds()
        age = now - self._begun.get(lane, float("-inf"))
        if self._closed or lane in self._running or age < self.limits.refresh_seconds:
            return
        self._running.add(lane)
        self._begun[lane] = now
        name = f"memwal-page-{lane}"
        threading.Thread(target=self._work, args=(lane, work), name=name, daemon=True).start()

    def _work(self, lane: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            text = f"the page's look at the tables failed: {type(error).__name__}"
            with self._lock:
                self._order = replace(self._order, problem=text)
        finally:
            with self._lock:
                self._running.discard(lane)

    def _look_at_well(self, failing: Set[str]) -> None:
        order = self._source()
        with self._lock:
            self._take_over(order)
            names = [name for name in self._looks if name not in failing]
        for batch in self._split(names):
            self._look_at(batch)

    def _look_at_failing(self, failing: Sequence[Look]) -> None:
        for batch in self._split([look.name for look in failing if look.unreachable]):
            self._look_at(batch)
        for look in failing:
            if not look.unreachable:
                self._look_at([look.name])

    def _split(self, names: Sequence[str]) -> Iterator[Sequence[str]]:
        size = self.limits.batch_tables_max
        return (names[start : start + size] for start in range(0, len(names), size))

    def _take_over(self, order: Order) -> None:
        """Take over which tables there are; if that can't be read, what is known stays."""
        self._planned_at = self._now()
        if order.jobs is None:
            self._order = replace(self._order, problem=order.problem)
            return
        names = list(order.tables)[: self.limits.tables_max]
        self._left_out = len(order.tables) - len(names)
        before, self._order = self._order.tables, order
        # A name whose address has changed is a different table, of which nothing is known yet.
        known = {name: self._looks.get(name) for name in names}
        self._looks = {
            name: look
            if look is not None and before.get(name) == order.tables[name]
            else Look(name=name, uri=order.tables[name])
            for name, look in known.items()
        }

    def _look_at(self, names: Sequence[str]) -> None:
        """Ask for the status and the runs of these tables, and store the answers."""
        with self._lock:
            order, now = self._order, self._now()
        if self._closed:
            return
        self._change(names, lambda look: replace(look, looking=True))
        try:
            found = self._ask(order, "status", [], names)
            missing: Json = {}
        except NoAnswer as error:
            found, missing = {}, dict.fromkeys(names, str(error))
        there = [name for name in names if name in found and not found[name].get("unreachable")]
        runs: dict[str, Json] = {}
        if there:
            try:
                runs = self._ask(order, "runs", [f"--limit={self.limits.runs_max}"], there)
            except NoAnswer as error:
                text = str(order.redactor.clean(str(error)))
                runs = {name: {"error": text} for name in there}

        def settle(look: Look) -> Look:
            look = replace(look, looking=False)
            if look.name not in found:
                text = missing.get(look.name, "memwal said nothing about this table")
                return add_error(look, str(order.redactor.clean(text)), now)
            look = add_status(look, found[look.name], now)
            return add_runs(look, runs[look.name]) if look.name in runs else look

        self._change(names, settle)

    def _ask(
        self, order: Order, job: str, options: Sequence[str], names: Sequence[str]
    ) -> dict[str, Json]:
        """Run one command, and return its tables without secrets. Raises NoAnswer."""
        if order.jobs is None:
            raise NoAnswer(order.problem or "the tables are not known yet")
        seconds_max = self.limits.seconds_max
        answer = ask(self._runner, order.jobs, job, names, options, seconds_max=seconds_max)

        def clean(text: str) -> str:
            return str(order.redactor.clean(text))

        if answer.document.get("error") and not answer.tables:
            raise NoAnswer(f"memwal {job}: {answer.document['error']}")
        return {str(t.get("table")): change_texts(t, clean) for t in answer.tables}

    def _change(self, names: Sequence[str], change: Callable[[Look], Look]) -> None:
        """Change what is known of the tables, those that are still configured."""
        with self._lock:
            for name in names:
                if name in self._looks:
                    self._looks[name] = change(self._looks[name])
