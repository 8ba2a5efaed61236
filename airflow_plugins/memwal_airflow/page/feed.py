"""Looks at the tables in the background, so that no request ever waits for a store.

A request gets what the feed knows and, if that is old, starts another look without waiting for it.
Threads start when somebody looks and end when nothing is left to do. Healthy tables are looked at
in batches, since starting memwal costs more than reading a small table. From then on, a table that
made its batch fail is looked at alone, and tables whose store does not answer are looked at
together: less and less often, and never by more than one thread, so that the others are not held
up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from memwal.errors import Usage
from memwal_airflow.page.answers import (
    Look,
    Unclear,
    add_error,
    add_runs,
    add_status,
    add_unreachable,
    read_answer,
)
from memwal_airflow.page.source import Missing, Order
from memwal_airflow.processes.process import Output, Runner


@dataclass(frozen=True, kw_only=True)
class FeedLimits:
    """Limits: `seconds_max` is for one command, `refresh_seconds` how old data may get."""

    refresh_seconds: float = 30.0
    seconds_max: float = 60.0
    tables_max: int = 500
    batch_tables_max: int = 8
    threads_max: int = 2
    stdout_bytes_max: int = 32 << 20
    runs_max: int = 100
    refresh_pause_seconds_min: float = 5.0
    backoff_seconds_max: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The time of day (UTC), and seconds that never go back."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the feed knows at one moment. `planned_at` is None before the first look."""

    looks: tuple[Look, ...]
    problem: str | None
    planned_at: datetime | None
    tables_left_out: int
    busy: bool
    missing: Missing | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _History:
    """When a table was last looked at, and how many looks in a row have failed.

    `spoils`: memwal gave no answer at all, and would not for other tables in the same batch either.
    """

    queried: float = float("-inf")
    failures: int = 0
    spoils: bool = False


_NEVER = _History()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    names: tuple[str, ...]
    apart: bool


class Feed:
    """Knows the tables as of their last look.

    Every method returns at once, and may be called from any thread.
    """

    def __init__(
        self, source: Callable[[], Order], runner: Runner, clock: Clock, limits: FeedLimits
    ) -> None:
        self._source = source
        self._runner = runner
        self._clock = clock
        self.limits = limits
        self._lock = threading.RLock()
        self._order = Order()
        self._looks: dict[str, Look] = {}
        self._history: dict[str, _History] = {}
        self._left_out = 0
        self._planned: float | None = None
        self._planned_at: datetime | None = None
        self._plan_waits = False
        self._planning = False
        self._requested: float | None = None
        self._batches: deque[_Batch] = deque()
        self._apart_runs = False
        self._threads = 0
        self._closed = False

    def seen(self) -> Seen:
        """Return what is known now, and start a look if that is old."""
        with self._lock:
            self._wake_if_old()
            return Seen(
                looks=tuple(self._looks.values()),
                problem=self._order.problem,
                planned_at=self._planned_at,
                tables_left_out=self._left_out,
                busy=self._threads > 0,
                missing=self._order.missing,
            )

    def look(self, name: str) -> Look | None:
        """Return one table, None if it is not configured; starts a look if needed."""
        with self._lock:
            self._wake_if_old()
            return self._looks.get(name)

    def ask_refresh(self, name: str | None = None) -> float:
        """Look at one table or all, however new the data are.

        Returns 0, or how many seconds to wait if there was a request just before.
        """
        now = self._clock.monotonic()
        with self._lock:
            if self._requested is not None:
                wait = self._requested + self.limits.refresh_pause_seconds_min - now
                if wait > 0:
                    return wait
            self._requested = now
            for known in [name] if name is not None else list(self._history):
                history = self._history.get(known, _NEVER)
                self._history[known] = replace(history, queried=_NEVER.queried)
            self._plan_waits = True
            self._wake()
            return 0.0

    def close(self) -> None:
        """End running commands and start no more."""
        with self._lock:
            self._closed = True
            self._batches.clear()
            self._plan_waits = False
        self._runner.close()

    def _wake_if_old(self) -> None:
        now = self._clock.monotonic()
        old = self._planned is None or now - self._planned >= self.limits.refresh_seconds
        if old and not self._planning:
            self._plan_waits = True
            self._wake()

    def _wake(self) -> None:
        """Start enough threads for the waiting work. The caller holds the lock."""
        waiting = len(self._batches) + (1 if self._plan_waits else 0)
        free = 0 if self._closed else self.limits.threads_max - self._threads
        for _ in range(min(waiting, free)):
            self._threads += 1
            threading.Thread(target=self._work, name="memwal-page-feed", daemon=True).start()

    def _work(self) -> None:
        """Do the waiting work until there is none."""
        while True:
            with self._lock:
                task = self._next()
                if task is None:
                    self._threads -= 1
                    return
            try:
                task()
            except Exception as error:
                self._show_fault(error)

    def _next(self) -> Callable[[], None] | None:
        """Return the next thing to do: a plan, else a batch of good tables, else one kept apart."""
        if self._closed:
            return None
        if self._plan_waits and not self._planning:
            self._plan_waits = False
            self._planning = True
            return self._plan
        for batch in self._batches:
            if not batch.apart:
                self._batches.remove(batch)
                return lambda: self._look_at(batch)
        if self._batches and not self._apart_runs:
            apart = self._batches.popleft()
            self._apart_runs = True
            return lambda: self._look_at(apart)
        return None

    def _show_fault(self, error: Exception) -> None:
        """Show a fault of the feed itself; the thread goes on."""
        with self._lock:
            text = f"the page's look at the tables failed: {type(error).__name__}"
            self._order = replace(self._order, problem=text)

    def _plan(self) -> None:
        """Read the configuration and queue the tables whose data are old."""
        try:
            order = self._source()
            with self._lock:
                self._take_over(order)
                self._queue_old()
                self._wake()
        finally:
            with self._lock:
                self._planning = False
                self._planned = self._clock.monotonic()
                self._planned_at = self._clock.now()

    def _take_over(self, order: Order) -> None:
        if order.jobs is None:
            # Nothing can be read now; what is known stays, and shows its age.
            self._order = replace(self._order, problem=order.problem)
            return
        names = list(order.tables)[: self.limits.tables_max]
        self._left_out = len(order.tables) - len(names)
        before, self._order = self._order.tables, order
        # A name whose address has changed is a different table, of which nothing is known yet.
        self._looks = {
            name: self._looks[name]
            if name in self._looks and before.get(name) == order.tables[name]
            else Look(name=name, uri=order.tables[name])
            for name in names
        }
        targets = order.freshness_seconds
        self._change(names, lambda look: replace(look, freshness_seconds=targets.get(look.name)))
        self._history = {name: self._history[name] for name in names if name in self._history}

    def _queue_old(self) -> None:
        now = self._clock.monotonic()
        due = [
            name
            for name, look in self._looks.items()
            if not look.looking and self._due_at(name) <= now
        ]
        due.sort(key=lambda name: self._known(name).queried)
        groups: dict[tuple[bool, str], list[str]] = {}
        for name in due:
            groups.setdefault(self._choose_group(name), []).append(name)
        size = self.limits.batch_tables_max
        for (apart, _), names in groups.items():
            for start in range(0, len(names), size):
                self._queue(_Batch(names=tuple(names[start : start + size]), apart=apart))

    def _choose_group(self, name: str) -> tuple[bool, str]:
        """Return whether a table is looked at apart, and a key that its group has in common."""
        history = self._known(name)
        if history.failures:
            return True, name if history.spoils else ""
        # A new table shows nothing before its first answer, and its store may give none: so new
        # tables are grouped by store.
        return False, "" if name in self._history else _find_place(self._looks[name].uri or "")

    def _known(self, name: str) -> _History:
        return self._history.get(name, _NEVER)

    def _due_at(self, name: str) -> float:
        """Return when to look next: less and less often if the table keeps failing."""
        history = self._known(name)
        # A plan is made every `refresh_seconds`; with half of that, those of the last plan are due.
        wait = self.limits.refresh_seconds * 0.5
        if history.failures:
            backoff = self.limits.refresh_seconds * 2.0 ** min(history.failures - 1, 20)
            wait = min(backoff, self.limits.backoff_seconds_max)
        return history.queried + wait

    def _queue(self, batch: _Batch) -> None:
        self._batches.append(batch)
        self._change(batch.names, lambda look: replace(look, looking=True))

    def _look_at(self, batch: _Batch) -> None:
        """Query the tables of a batch, and store the answers."""
        with self._lock:
            order = self._order
        try:
            failed = self._ask_status(batch, order)
            silent = self._find_unreachable(batch.names)
            there = tuple(name for name in batch.names if name not in failed | silent)
            if there:
                failed |= self._ask_runs(there, order)
            with self._lock:
                self._settle(batch, failed, silent)
        finally:
            with self._lock:
                if batch.apart:
                    self._apart_runs = False
                queued = {name for waiting in self._batches for name in waiting.names}
                done = set(batch.names) - queued
                self._change(done, lambda look: replace(look, looking=False))

    def _find_unreachable(self, names: Iterable[str]) -> frozenset[str]:
        with self._lock:
            known = (self._looks.get(name) for name in names)
            return frozenset(look.name for look in known if look and look.unreachable_since)

    def _settle(self, batch: _Batch, failed: frozenset[str], silent: frozenset[str]) -> None:
        """Record which tables failed, and queue another try for each of them, alone.

        A failed table that was alone already gets none, nor do the `silent` ones, which are
        unreachable.
        """
        now, today = self._clock.monotonic(), self._clock.now()
        tries: dict[str, datetime] = {}
        for name in batch.names:
            failures = self._known(name).failures + 1 if name in failed | silent else 0
            self._history[name] = _History(queried=now, failures=failures, spoils=name in failed)
            if failures:
                tries[name] = today + timedelta(seconds=self._due_at(name) - now)
        self._change(batch.names, lambda look: replace(look, next_try_at=tries.get(look.name)))
        if failed and len(batch.names) > 1:
            for name in batch.names:
                if name in failed and name in self._looks and not self._closed:
                    self._queue(_Batch(names=(name,), apart=True))
            self._wake()

    def _ask_status(self, batch: _Batch, order: Order) -> frozenset[str]:
        """Store the status of each table, and return the names of those without an answer.

        A table that memwal reports as broken does have an answer.
        """
        output = self._run(order, "status", ["--json"], batch.names)
        try:
            tables = read_answer(output, "status")
        except Unclear as unclear:
            # Any of several may be to blame: no table is shown as failed before a look at it alone.
            if len(batch.names) == 1 or not output.started:
                self._fail(batch.names, str(unclear), order, late=output.late)
            return frozenset(batch.names)
        silent = frozenset(name for name in batch.names if name not in tables)
        self._fail(silent, "memwal said nothing about this table", order)
        now = self._clock.now()
        self._change(tables, lambda look: add_status(look, tables[look.name], now, order.redactor))
        return silent

    def _ask_runs(self, names: tuple[str, ...], order: Order) -> frozenset[str]:
        """Store the run records of each table, and return the names that need a look alone."""
        limit = f"--limit={self.limits.runs_max}"
        output = self._run(order, "runs", [limit, "--json"], names)
        try:
            tables = read_answer(output, "runs")
        except Unclear as unclear:
            if output.why is not None and len(names) > 1:
                return frozenset(names)
            tables = {name: {"error": str(unclear)} for name in names}
        self._change(tables, lambda look: add_runs(look, tables[look.name], order.redactor))
        return frozenset(names) if output.why is not None else frozenset()

    def _run(
        self, order: Order, command: str, options: Sequence[str], names: Sequence[str]
    ) -> Output:
        try:
            argv, environment = order.command(command, options, names)
        except Usage as error:
            return Output(why=str(error))
        limits = self.limits
        return self._runner.run(argv, environment, limits.seconds_max, limits.stdout_bytes_max)

    def _fail(self, names: Iterable[str], text: str, order: Order, *, late: bool = False) -> None:
        now, add = self._clock.now(), add_unreachable if late else add_error
        self._change(names, lambda look: add(look, text, now, order.redactor))

    def _change(self, names: Iterable[str], change: Callable[[Look], Look]) -> None:
        """Change what is known of the tables, those that are still configured."""
        with self._lock:
            for name in names:
                if name in self._looks:
                    self._looks[name] = change(self._looks[name])


def _find_place(uri: str) -> str:
    """Return the bucket or namespace of an address; the same for all local folders."""
    parts = uri.split("/")
    return parts[2] if "://" in uri else parts[0].partition(":")[0]
