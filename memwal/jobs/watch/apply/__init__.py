"""The loop of a watch, through ports only: take in looks, begin rounds, take in their ends.

All its state can be lost: another watch, or this one after a restart, needs none of it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memwal.errors import MemWalError, StoreUnavailable, Usage
from memwal.jobs.watch.apply.table_state import LOOK, PROGRESS, WatchedTable
from memwal.jobs.watch.plan import (
    FLUSHED,
    LookUnderWay,
    Need,
    Round,
    TableLook,
    WatchLimits,
    assess,
    find_queues,
    find_room,
    order_tables,
)
from memwal.jobs.watch.ports import (
    Event,
    Events,
    LookEnd,
    Lookouts,
    RoundEnd,
    Watched,
    Workers,
)
from memwal.jobs.watch.report import (
    count_rows,
    describe_error,
    describe_jobs,
    describe_look,
)
from memwal.ports import Clock
from memwal.report import DONE, NOTHING_TO_DO, TableReport, failed_report

if TYPE_CHECKING:
    from memwal.jobs.watch.metrics import WatchMetrics

# How long a turn waits at most: normally, and while looks are under way.
_TURN_SECONDS_MAX = 0.5
_LOOKING_SECONDS_MAX = 0.02


@dataclass(slots=True)
class _Looking:
    """A look under way, which is `overdue` once that was reported."""

    asked: Watched
    began: float
    overdue: bool = False


@dataclass(kw_only=True)
class Watch:
    """A watch over tables.

    Unless it `acts`, it only looks and judges. With `once`, every table is brought up to date once
    and then left alone. `read_again` returns the tables if they have changed since its last call,
    else None, and raises Usage, once, for a configuration that can't be used. `find_unlisted`
    tells, by glob, why a namespace can't be listed now; the tables that it listed last stay.
    """

    lookouts: Lookouts
    workers: Workers
    clock: Clock
    events: Events
    read_again: Callable[[], Sequence[Watched] | None]
    limits: WatchLimits
    find_unlisted: Callable[[], Mapping[str, MemWalError]] = dict
    observers: Sequence[WatchMetrics] = ()
    acts: bool = True
    once: bool = False
    stopping: bool = False
    tables: dict[str, WatchedTable] = field(default_factory=dict)
    rounds: int = 0
    looks: int = 0
    rows: int = 0
    lag_seconds_max: float = 0.0
    _looks: list[tuple[float, str]] = field(default_factory=list)
    _looking: dict[int, _Looking] = field(default_factory=dict)
    _answered: dict[Hashable, float] = field(default_factory=dict)
    _waiting: set[str] = field(default_factory=set)
    _slack: set[str] = field(default_factory=set)
    _behind: set[str] = field(default_factory=set)
    _queues: Mapping[str, float] = field(default_factory=dict)
    _keeping: set[str] = field(default_factory=set)
    _read_at: float = 0.0
    _misread: bool = False
    _unlisted: dict[str, str] = field(default_factory=dict)

    def turn(self) -> None:
        """Go round the loop once; waits a little if there is nothing to do."""
        now = self.clock.monotonic_seconds()
        self._read_configuration(now)
        looks = self.lookouts.collect()
        if looks:
            self._queues = self._find_queues(now)
        for look in looks:
            self._take_look(look)
        now = self.clock.monotonic_seconds()
        self._find_overdue(now)
        if not self.stopping:
            self._begin_looks(now)
            if self.acts:
                self._begin_rounds(now)
        for observer in self.observers:
            observer.turn(list(self.tables))
        for end in self.workers.wait(self._find_pause(now)):
            self._take_end(end)

    def watch(self, tables: Sequence[Watched]) -> None:
        """Watch these tables from now on, and no others.

        A round that runs on a table that goes away is finished.
        """
        now = self.clock.monotonic_seconds()
        named = {watched.resolved.name: watched for watched in tables}
        for name in [name for name in self.tables if name not in named]:
            if not self.tables[name].gone:
                self._tell(name, "gone", {"message": "not among the tables to watch any more"})
            self._leave(self.tables[name])
        for name, watched in named.items():
            state = self.tables.get(name)
            if state is not None and state.watched == watched and not state.gone:
                continue
            fresh = WatchedTable(watched=watched, limits=self.limits, clock=self.clock, look_at=now)
            if state is not None:
                fresh.running = state.running
                if state.watched.resolved == watched.resolved:
                    fresh.looking = state.looking
                else:
                    self.lookouts.forget(name)
            self.tables[name] = fresh
            self._plan_look(fresh, now)

    def end(self) -> None:
        """Begin nothing more. Safe to call from a signal handler."""
        self.stopping = True

    def finish(self, seconds_max: float | None = None) -> None:
        """Begin nothing more, and let running rounds end after their commit, within the bound.

        `seconds_max` overrides the limits' `stop_seconds_max`.
        """
        self.stopping = True
        bound = self.limits.stop_seconds_max if seconds_max is None else seconds_max
        for end in self.workers.stop(bound):
            self._take_end(end)

    @property
    def is_over(self) -> bool:
        """Whether the watch is over: stopped, no longer heard, or done with all tables `once`."""
        over = self.once and all(state.report is not None for state in self.tables.values())
        return self.stopping or over or not self.events.is_heard

    def _read_configuration(self, now: float) -> None:
        if now < self._read_at:
            return
        self._read_at = now + self.limits.every_seconds
        try:
            tables = self.read_again()
        except Usage as error:
            self._misread = True
            self._tell(None, "error", describe_error(error, kept=len(self.tables)))
            return
        self._tell_unlisted()
        if tables is None:
            return
        if self._misread:
            self._misread = False
            self._tell(None, "fresh", {"message": "the configuration can be read again"})
        self.watch(tables)

    def _tell_unlisted(self) -> None:
        found = self.find_unlisted()
        for name, error in found.items():
            if self._unlisted.get(name) != str(error):
                self._tell(None, "error", describe_error(error, kept=len(self.tables)))
        for name in self._unlisted.keys() - found.keys():
            self._tell(None, "fresh", {"message": f"{name}: can be listed again"})
        self._unlisted = {name: str(error) for name, error in found.items()}

    def _leave(self, state: WatchedTable) -> None:
        self._waiting.discard(state.name)
        self._slack.discard(state.name)
        self._behind.discard(state.name)
        if state.running is not None:
            state.gone, state.need = True, None
            return
        del self.tables[state.name]
        self.lookouts.forget(state.name)
        for observer in self.observers:
            observer.forgot(state.name)

    def _plan_look(self, state: WatchedTable, at: float) -> None:
        state.look_at = at
        heapq.heappush(self._looks, (at, state.name))

    def _begin_looks(self, now: float) -> None:
        while self._looks and self._looks[0][0] <= now:
            room, full = self._find_room(now)
            if room <= 0:
                return
            at, name = heapq.heappop(self._looks)
            state = self.tables.get(name)
            if state is None or state.gone or state.look_at != at or state.looking is not None:
                continue
            if self.once and state.report is not None:
                continue
            if state.watched.store in full:
                self._plan_look(state, now + self.limits.every_seconds)
                continue
            state.looking = asked = state.watched
            self._looking[id(asked.resolved)] = _Looking(asked, now)
            self.lookouts.start(asked.resolved)

    def _find_room(self, now: float) -> tuple[int, Collection[Hashable]]:
        looks = [
            LookUnderWay(store=look.asked.store, seconds=now - look.began, overdue=look.overdue)
            for look in self._looking.values()
        ]
        asked = {look.store for look in looks} & self._answered.keys()
        answered = {store: now - self._answered[store] for store in asked}
        return find_room(looks, answered, self.limits.looks_max)

    def _find_overdue(self, now: float) -> None:
        """Report looks that take too long; from then on, they hold up only their own table."""
        for look in self._looking.values():
            state = self.tables.get(look.asked.resolved.name)
            if look.overdue or now - look.began < self.limits.look_seconds_max:
                continue
            look.overdue = True
            if state is not None and state.looking is look.asked:
                error = StoreUnavailable(f"a look has taken {now - look.began:.0f} s so far")
                self._tell_errors(state, {LOOK: error})
                for observer in self.observers:
                    observer.failed(state.name, error)

    def _take_look(self, end: LookEnd) -> None:
        look = self._looking.pop(id(end.table), None)
        state = self.tables.get(end.table.name)
        if look is None or state is None or state.looking is not look.asked:
            return  # the table went away, or its name stands for another one now
        now, state.looking = self.clock.monotonic_seconds(), None
        if look.began < state.last_ended:
            self._plan_look(state, now)  # a round has ended since: what the look saw is outdated
            return
        self.looks += 1
        if end.look is None:
            self._take_failed_look(state, end.error or MemWalError("the look found nothing"), now)
        else:
            self._take_found(state, end.look, now)
        self._tell_lateness(state, now)

    def _take_failed_look(self, state: WatchedTable, error: MemWalError, now: float) -> None:
        state.put_aside(LOOK, error, now)
        state.need = None
        self._waiting.discard(state.name)
        self._tell_errors(state, {LOOK: error})
        for observer in self.observers:
            observer.failed(state.name, error)
        self._plan_look(state, state.aside[LOOK].until)
        if self.once or state.lag is None:  # a table that was never seen is reported at the end
            state.report = failed_report(state.name, error)

    def _take_found(self, state: WatchedTable, look: TableLook, now: float) -> None:
        is_first, target = state.lag is None, state.watched.target
        self._answered[state.watched.store] = now
        state.aside.pop(LOOK, None)
        if not self.once:
            state.report = None
        state.lag = lag = assess(
            state.name,
            look,
            target,
            state.lag,
            indexed_version=state.indexed_version,
            now=now,
            now_nanos=self.clock.now_nanos(),
        )
        if look.changed:
            state.changed_at = now
        unhelped = state.judge_need(now, self._queues.get(state.name, 0.0))
        self._behind.add(state.name)
        if is_first or look.changed:
            self._tell(state.name, "look", describe_look(lag, state.need, now))
        found: dict[str, MemWalError | None] = dict.fromkeys((LOOK, *state.problems))
        if PROGRESS not in state.aside:
            found[PROGRESS] = None
        state.problems = lag.problems
        self._tell_errors(state, {**found, **unhelped, **lag.problems})
        for observer in self.observers:
            observer.looked(look, lag)
        (self._waiting.add if state.need else self._waiting.discard)(state.name)
        if state.has_upkeep(now):
            self._slack.add(state.name)
        seconds = state.look_seconds(now) * (0.95 + self.clock.random() / 10)
        self._plan_look(state, max(now + seconds, state.held_until if self.once else now))
        idle = state.need is None or not self.acts
        if self.once and idle and state.running is None:
            error = next(iter(lag.problems.values()), None)
            done = DONE if state.need is not None else NOTHING_TO_DO
            state.report = (
                failed_report(state.name, error) if error else _report_idle(state.name, look, done)
            )

    def _tell_lateness(self, state: WatchedTable, now: float) -> None:
        if state.lag is None:
            return
        seconds, stage = state.lag.find_worst(now)
        self.lag_seconds_max = max(self.lag_seconds_max, seconds)
        before, state.late_stage = state.late_stage, None
        if seconds > state.freshness_seconds:
            state.late_stage = stage
            if before is None:
                state.late_since = now
            elif FLUSHED not in (before, stage) or before == stage:
                return
            details: dict[str, Any] = {
                "stage": stage,
                "lag_seconds": round(seconds, 3),
                "freshness_seconds": state.freshness_seconds,
            }
            waiting = [state.lag.describe_unflushed(now)] if stage == FLUSHED else []
            wrong = (*state.problems.values(), *(aside.reason for aside in state.aside.values()))
            reasons = list(dict.fromkeys(map(str, (*waiting, *wrong))))
            self._tell(state.name, "late", details | ({"reasons": reasons} if reasons else {}))
        elif state.late_since is not None:
            late, state.late_since = now - state.late_since, None
            details = {"late_seconds": round(late, 3), "lag_seconds": round(seconds, 3)}
            self._tell(state.name, "fresh", details)

    def _begin_rounds(self, now: float) -> None:
        """Begin those that workers are free for, in the order of the tables' turns."""
        found = (self.tables[name].wait_for(now) for name in self._waiting)
        waiting = order_tables((table for table in found if table is not None), now=now)
        left = len(waiting)
        for name in waiting:
            state = self.tables[name]
            need = state.need
            if need is not None and self.workers.can_take(large=need.large):
                left -= 1
                self._begin(state, need, self._find_upkeep(state, now, spare=not left), now)
        if not left and not self.once:
            self._begin_upkeep(now)

    def _find_queues(self, now: float) -> Mapping[str, float]:
        found = {name: self.tables[name].find_behind(now) for name in self._behind}
        behind = {name: table for name, table in found.items() if table is not None}
        self._behind = set(behind)
        return find_queues(behind.values(), rounds_max=self.limits.rounds_max)

    def _begin_upkeep(self, now: float) -> None:
        """Begin rounds of upkeep alone while no table waits; the longest due comes first."""
        for state in self._list_slack(now):
            jobs = self._find_upkeep(state, now, spare=True)
            if jobs and self.workers.can_take(large=False):
                self._begin(state, None, jobs, now)

    def _find_upkeep(self, state: WatchedTable, now: float, *, spare: bool) -> tuple[str, ...]:
        """The upkeep that a round of the table does, which none does out of turn in `spare` time.

        It may take long, so half of the workers are left to what makes tables fresh.
        """
        if self.once or len(self._keeping) >= max(1, self.limits.rounds_max // 2):
            return ()
        out_of_turn = spare and self._list_slack(now)[:1] != [state]
        return () if out_of_turn else state.find_upkeep(now, spare=spare)

    def _list_slack(self, now: float) -> list[WatchedTable]:
        states = (self.tables[name] for name in self._slack)
        due = (state for state in states if state.find_upkeep(now, spare=True))
        return sorted(due, key=lambda state: (state.upkeep_due_at, state.name))

    def _begin(
        self, state: WatchedTable, need: Need | None, upkeep: tuple[str, ...], now: float
    ) -> None:
        jobs = (need.jobs if need is not None else ()) + upkeep
        work = Round(table=state.name, jobs=jobs, large=need is not None and need.large)
        state.begin(work, now)
        if work.has_upkeep:
            self._keeping.add(state.name)
        self._waiting.discard(state.name)
        self._slack.discard(state.name)
        self.workers.start(state.watched.resolved, work)

    def _take_end(self, end: RoundEnd) -> None:
        state = self.tables.get(end.work.table)
        self._keeping.discard(end.work.table)
        self.rounds += 1
        self.rows += count_rows(end)
        for job, details in describe_jobs(end):
            self._tell(end.work.table, job, details)
        for observer in self.observers:
            observer.ended(end)
        if state is None:
            return
        now = self.clock.monotonic_seconds()
        found = state.end(end, now)
        self._tell_errors(state, {k: e for k, e in found.items() if k not in state.problems})
        if self.once:
            error = end.error or MemWalError("the round left no report")
            state.report = end.report or failed_report(state.name, error)
        if state.gone:
            self._leave(state)
        else:
            self._plan_look(state, now)

    def _find_pause(self, now: float) -> float:
        if self.is_over:
            return 0.0
        looking = any(not look.overdue for look in self._looking.values())
        longest = _LOOKING_SECONDS_MAX if looking else _TURN_SECONDS_MAX
        if not self._looks or self._find_room(now)[0] <= 0:
            return longest
        return max(0.0, min(longest, self._looks[0][0] - now))

    def _tell_errors(self, state: WatchedTable, found: Mapping[str, MemWalError | None]) -> None:
        """Report each error once, until its text changes; None: there is none any more."""
        for key, error in found.items():
            if error is None:
                state.reported.pop(key, None)
                continue
            if state.reported.get(key) == str(error):
                continue
            state.reported[key] = str(error)
            more: dict[str, Any] = {"about": key} if key else {}
            until = state.aside.get(key)
            if until is not None:
                wait = until.until - self.clock.monotonic_seconds()
                more |= {"failures": until.failures, "retry_seconds": round(max(0.0, wait), 1)}
            self._tell(state.name, "error", describe_error(error, **more))

    def _tell(self, table: str | None, event: str, details: Mapping[str, Any]) -> None:
        at = self.clock.now_nanos()
        self.events.tell(Event(at_nanos=at, table=table, event=event, details=details))


def _report_idle(table: str, look: TableLook, outcome: str) -> TableReport:
    version = look.view.version
    return TableReport(table=table, outcome=outcome, version_before=version, version_after=version)
