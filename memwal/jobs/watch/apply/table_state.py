"""The state of one table in a watch: what is known of it, what is set aside, what it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from memwal.errors import LeaseHeld, MemWalError, error_of
from memwal.jobs.watch.plan import (
    COMPACTION,
    FLUSHED,
    FRESHENING,
    GARBAGE,
    INDEX_CATCHUP,
    MERGE,
    Aside,
    Behind,
    Lag,
    Need,
    Round,
    Upkeep,
    Waiting,
    WatchLimits,
    find_look_seconds,
    find_need,
    name_index,
    plan_upkeep,
    set_aside,
)
from memwal.jobs.watch.ports import RoundEnd, Watched
from memwal.ports import Clock
from memwal.report import DONE, HELD, NOTHING_TO_DO, PARTIAL, JobOnTable, Part, TableReport

# What can be set aside besides shards, indexes and upkeep: the whole table, looks at it, and rounds
# because the last one changed nothing.
TABLE, LOOK, PROGRESS = "", "look", "progress"
_ROUND_SECONDS = 1.0
# How many times a table's upkeep may be skipped because the table always needs a round.
_UPKEEP_MISSED_MAX = 10
_NO_PROGRESS = MemWalError("the last round brought what waits no further, and said no reason")


@dataclass(kw_only=True)
class WatchedTable:
    """A table and its state.

    `problems` are those of the last look; `reported` has the errors that were reported already, by
    what they are about. `looking` is the table as a look under way was asked for it. `before_round`
    has the jobs of a round that no look has followed yet, and the progress when it began. `wants`
    tells whether the last look found a need, even if somebody else holds the lease.
    `indexed_version` is where the last index catch-up came to.
    """

    watched: Watched
    limits: WatchLimits
    clock: Clock
    look_at: float
    looking: Watched | None = None
    lag: Lag | None = None
    changed_at: float = -math.inf
    need: Need | None = None
    wants: bool = False
    waiting_since: float = 0.0
    running: Round | None = None
    gone: bool = False
    last_began: float = -math.inf
    last_ended: float = -math.inf
    round_seconds: float = _ROUND_SECONDS
    before_round: tuple[tuple[str, ...], object] | None = None
    held_until: float = -math.inf
    aside: dict[str, Aside] = field(default_factory=dict)
    upkeep: dict[str, Upkeep] = field(default_factory=dict)
    problems: Mapping[str, MemWalError] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    indexed_version: int = 0
    late_since: float | None = None
    late_stage: str | None = None
    report: TableReport | None = None

    @property
    def name(self) -> str:
        """The table's name."""
        return self.watched.resolved.name

    @property
    def freshness_seconds(self) -> float:
        """The table's freshness target."""
        return self.watched.target.freshness_seconds

    @property
    def upkeep_seconds(self) -> Mapping[str, float]:
        """The interval of each upkeep job that this table gets."""
        target = self.watched.target
        done = {GARBAGE: target.collects, COMPACTION: target.compacts}
        every = self.limits.upkeep_seconds
        return {job: seconds for job, seconds in every.items() if done.get(job, True)}

    def look_seconds(self, now: float) -> float:
        """How long until the table is looked at again."""
        quiet = now - max(self.changed_at, self.last_ended)
        return find_look_seconds(self.freshness_seconds, self.limits, quiet_seconds=quiet)

    def find_aside(self, now: float) -> set[str]:
        """The keys of all that is left alone now."""
        return {key for key, aside in self.aside.items() if aside.until > now}

    def put_aside(self, key: str, error: MemWalError, now: float) -> None:
        """Leave what `key` names alone for a while, because of an error."""
        self.aside[key] = set_aside(
            self.aside.get(key), str(error), self.limits, now=now, chance=self.clock.random()
        )

    def judge_need(self, now: float, queue_seconds: float) -> Mapping[str, MemWalError]:
        """Set what the table needs, by its lag.

        Returns an error for everything that the last round should have brought further and did not.
        `queue_seconds` is how much earlier a round has to begin to make room for other tables.
        """
        lag, target = self.lag, self.watched.target
        waited, self.need = self.need is not None, None
        if lag is None or self.running is not None:
            return {}
        find = partial(
            find_need,
            lag,
            target,
            now=now,
            look_seconds=self.look_seconds(now),
            round_seconds=self.round_seconds,
            queue_seconds=queue_seconds,
        )
        need = find(self.find_aside(now))
        unhelped = self._find_unhelped(lag, now, waits=need is not None)
        if unhelped:
            need = find(self.find_aside(now))
        self.wants = need is not None
        if need is not None and not self._is_left_alone(now):
            self.need = need
            if not waited:
                self.waiting_since = now
        return dict.fromkeys(unhelped, _NO_PROGRESS)

    def _is_left_alone(self, now: float) -> bool:
        return now < self.held_until or bool({TABLE, PROGRESS} & self.find_aside(now))

    def _find_unhelped(self, lag: Lag, now: float, *, waits: bool) -> Sequence[str]:
        """Set aside what the last round brought no further although it still waits; its keys."""
        before, self.before_round = self.before_round, None
        if before is None:
            return ()
        jobs, progress = before
        if progress != lag.progress:
            self.aside.pop(PROGRESS, None)
            return ()
        if not waits:
            return ()
        # An index that never catches up must not keep the table from being merged.
        keys = [PROGRESS] if MERGE in jobs else [name_index(name) for name in lag.unindexed]
        for key in keys:
            self.put_aside(key, _NO_PROGRESS, now)
        return keys

    def wait_for(self, now: float) -> Waiting | None:
        """The table as one that waits for a round; None if it does not."""
        if self.need is None:
            return None
        return Waiting(
            table=self.name,
            oldest=self.need.oldest,
            freshness_seconds=self.freshness_seconds,
            since=self.waiting_since,
            last_began=self.last_began,
            priority=self.watched.target.priority,
        )

    def find_behind(self, now: float) -> Behind | None:
        """The table's deadline, if it needs a small round that has not begun; else None."""
        lag = self.lag
        if lag is None or self.running is not None or self._is_left_alone(now):
            return None
        oldest = lag.find_oldest(self.find_aside(now))
        if oldest is None or self.watched.target.is_large(len(lag.mergeable), lag.mergeable_bytes):
            return None
        return Behind(
            table=self.name,
            deadline=oldest + self.freshness_seconds,
            round_seconds=self.round_seconds,
        )

    def has_upkeep(self, now: float) -> bool:
        """Whether any upkeep is due."""
        every = self.upkeep_seconds
        for job in every:
            if job not in self.upkeep:
                self.upkeep[job] = plan_upkeep(
                    job, None, self.limits, idle=False, now=now, chance=self.clock.random()
                )
        return any(self.upkeep[job].at <= now for job in every)

    @property
    def upkeep_due_at(self) -> float:
        """When the first of its upkeep is due, or was."""
        return min(self.upkeep[job].at for job in self.upkeep_seconds)

    def find_upkeep(self, now: float, *, spare: bool) -> tuple[str, ...]:
        """The upkeep jobs to do now, in order.

        Without `spare` time, or while the table is late or something is set aside, upkeep is put
        off, but not for ever: a shard that nobody can merge must not prevent garbage collection. It
        is put off by one interval, or by many while there is something to merge or to index.
        """
        aside, is_due = self.find_aside(now), self.has_upkeep(now)
        if not is_due or self.running or {TABLE, LOOK} & self.aside.keys():
            return ()
        is_calm = spare and self.late_stage in (None, FLUSHED) and not aside
        puts_off = 0 if is_calm else _UPKEEP_MISSED_MAX if self.wants else 1
        return tuple(
            job
            for job, seconds in self.upkeep_seconds.items()
            if job not in aside and self.upkeep[job].at + puts_off * seconds <= now
        )

    def begin(self, work: Round, now: float) -> None:
        """Note that a round begins."""
        self.running, self.need, self.last_began = work, None, now
        if set(work.jobs) & set(FRESHENING) and self.lag is not None:
            self.before_round = work.jobs, self.lag.progress

    def end(self, end: RoundEnd, now: float) -> dict[str, MemWalError | None]:
        """Note that a round ended; returns what it was about, each with its error or None.

        A lease that another run holds is no failure.
        """
        self.running, self.last_ended = None, now
        jobs = end.report.jobs if end.report is not None else ()
        held = isinstance(end.error, LeaseHeld) or any(j.report.outcome == HELD for j in jobs)
        found = dict(_list_results(end))
        if held:
            self.held_until = now + self.limits.every_seconds * (0.5 + self.clock.random())
        elif set(end.work.jobs) & set(FRESHENING):
            self.round_seconds = max(end.seconds, (self.round_seconds + end.seconds) / 2)
        if held or any(found.values()):
            self.before_round = None
        for key, error in found.items():
            if error is None:
                self.aside.pop(key, None)
            else:
                self.put_aside(key, error, now)
        for job in jobs:
            if job.job == INDEX_CATCHUP and job.report.outcome in (DONE, NOTHING_TO_DO):
                self.indexed_version = job.report.version_after or 0
        self._plan_upkeep(end, held, now)
        return found

    def _plan_upkeep(self, end: RoundEnd, held: bool, now: float) -> None:
        jobs = end.report.jobs if end.report is not None else ()
        outcomes = {job.job: job.report.outcome for job in jobs}
        advice = (getattr(job.report, "compaction", None) for job in jobs)
        if COMPACTION in self.upkeep and any(found and found.reason for found in advice):
            self.upkeep[COMPACTION] = replace(self.upkeep[COMPACTION], at=now)
        for job in end.work.jobs:
            before = self.upkeep.get(job)
            if before is None:
                continue
            if held:
                self.upkeep[job] = Upkeep(at=self.held_until, wait_seconds=before.wait_seconds)
                continue
            idle = outcomes.get(job) not in (DONE, PARTIAL)
            self.upkeep[job] = plan_upkeep(
                job, before, self.limits, idle=idle, now=now, chance=self.clock.random()
            )


def _list_results(end: RoundEnd) -> Iterator[tuple[str, MemWalError | None]]:
    """All that a round was about (shards, indexes, upkeep, the table), with an error or None."""
    if end.error is not None and not isinstance(end.error, LeaseHeld):
        yield TABLE, end.error
    for job in end.report.jobs if end.report is not None else ():
        if job.report.outcome != HELD:
            yield from _list_job_results(job)


def _list_job_results(job: JobOnTable) -> Iterator[tuple[str, MemWalError | None]]:
    report = job.report
    if job.job not in FRESHENING:
        yield job.job, _find_error(report)
        return
    parts = [(shard.shard_id, _find_error(shard)) for shard in getattr(report, "shards", ())]
    # An index for which nothing was done tells nothing: it may still be behind.
    indexes = (i for i in getattr(report, "indexes", ()) if i.outcome != NOTHING_TO_DO)
    parts += [(name_index(index.name), _find_error(index)) for index in indexes]
    yield from parts
    by_part = any(error is not None for _, error in parts)
    yield TABLE, None if by_part else _find_error(report)


def _find_error(part: Part) -> MemWalError | None:
    if part.outcome in (DONE, NOTHING_TO_DO):
        return None
    if isinstance(part.cause, MemWalError):
        return part.cause
    return error_of(part.exit_code, part.outcome, part.error or part.outcome)
