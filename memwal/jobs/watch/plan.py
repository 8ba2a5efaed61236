"""What a watch knows of a table, and which work begins next. Pure.

Times are seconds on the watch's own monotonic clock. The time of a flush is converted to it when
its generation is first seen, and kept: after that, a clock that is wrong or reset changes no age.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import MemWalError
from memwal.format.layout import SYSTEM_INDEXES
from memwal.jobs.merge.plan import choose_shards
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.status.plan import DueLimits, find_due_shards, take_state
from memwal.model import Cursor, ShardId, ShardView, TableState, TableView
from memwal.options import PRIORITY
from memwal.text import name_some

Generation = tuple[ShardId, int]

# How old, as a fraction of the target, a table's oldest generation may get before a round begins;
# and how many looks a changing table gets in the time of one target.
_ACT_AT = 0.5
_LOOKS_A_TARGET = 4
# Time is left for this many rounds, so that one that takes longer than the last still ends in time.
_ROUNDS_SPARED = 2.0
_UPKEEP_GROWTH_MAX = 24.0
_NAMED_MAX = 3
# A store that has answered no look for so long may be silent; one look in so many is its share.
_SILENT_SECONDS = 5.0
_SILENT_SHARE = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class TableLook:
    """What a look found.

    `flushed_at_nanos` says when each generation was flushed that is pending, or merged and still
    listed; some are left out that were through at the first look. `changed` tells whether anything
    differs from the look before. `requests` counts this look's requests to the store, by operation.
    `abandoned_shards` is the number of shards with rows that no writer will flush, and
    `unflushed_at_nanos` says for each shard with rows in no generation when the oldest was put, as
    of a moment ago; None where no look could tell. So is `last_backup_at_nanos`: 0 where there
    should be backups and none is known. `cursors` are as they were some minutes ago at most.
    """

    view: TableView
    flushed_at_nanos: Mapping[Generation, int]
    changed: bool
    requests: Mapping[str, int]
    abandoned_shards: int | None = None
    unflushed_at_nanos: Mapping[ShardId, int] | None = None
    last_backup_at_nanos: int | None = None
    cursors: Sequence[Cursor] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Jobs to run on one table, in order, under one lease. `large` rounds go to Spark."""

    table: str
    jobs: tuple[str, ...]
    large: bool = False

    @property
    def has_upkeep(self) -> bool:
        """Whether it does more than it takes to be fresh, which may take long."""
        return not set(self.jobs) <= set(FRESHENING)


MERGE, INDEX_CATCHUP = "merge", "index-catchup"
COMPACTION, SNAPSHOT, GARBAGE = "compaction", "snapshot", "garbage"
FRESHENING = (MERGE, INDEX_CATCHUP)
FLUSHED = "flushed"
"""The stage that a writer has to bring about: its rows are in a generation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchLimits:
    """Bounds of a watch. A look longer than `look_seconds_max` no longer counts in `looks_max`.

    `upkeep_seconds` is the interval of each upkeep job; jobs that are not in it never run. Upkeep
    that finds nothing to do is done more and more rarely.
    """

    every_seconds: float = 5.0
    rounds_max: int = 2
    looks_max: int = 16
    look_seconds_max: float = 60.0
    backoff_seconds_max: float = 300.0
    stop_seconds_max: float = 30.0
    upkeep_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The freshness target of a table, and how the table is worked on.

    `is_large` tells from the number of shards and their in-memory bytes whether Spark is worth it.
    `at_once` acts on anything pending, however young. `collects` is whether garbage is collected,
    `compacts` whether fragments are compacted where that is advised. `priority` is 1 to 9, for the
    most important.
    """

    freshness_seconds: float
    due: DueLimits = DueLimits()
    is_large: Callable[[int, int], bool] = field(default=lambda units, size: False, compare=False)
    at_once: bool = False
    collects: bool = False
    compacts: bool = True
    priority: int = PRIORITY


@dataclass(frozen=True, kw_only=True, slots=True)
class Lag:
    """How far a table was behind its writers at a look: its state, and what rounds are planned by.

    Of each pending generation, `put` has the time of its oldest row, as seen in the WAL before, or
    else that of its flush. `mergeable` has the shards that a merge would take, each with the first
    such time; `unindexed` has, for each index that is behind, the flush time of the oldest merged
    generation that it lacks. `flushed` has the times of all these generations. `unflushed` has the
    shards with rows in no generation, which no round can help, each with the time of the oldest.
    `problems` are what keeps shards from being merged, with those of the whole table under an empty
    name. `progress` changes with anything that a round achieves.
    """

    table: str
    state: TableState
    oldest_pending: float | None
    mergeable: Mapping[ShardId, float]
    mergeable_bytes: int
    due: Mapping[ShardId, tuple[str, ...]]
    unindexed: Mapping[str, float]
    problems: Mapping[str, MemWalError]
    flushed: Mapping[Generation, float]
    put: Mapping[Generation, float]
    unflushed: Mapping[ShardId, float]
    progress: object

    def pending_seconds(self, now: float) -> float | None:
        """The age of the oldest generation that is not merged; None without one."""
        return None if self.oldest_pending is None else max(0.0, now - self.oldest_pending)

    def unindexed_seconds(self, now: float) -> float | None:
        """The age of the oldest merged generation that an index lacks; None without one."""
        return max((now - at for at in self.unindexed.values()), default=None)

    def find_oldest(self, aside: Collection[str]) -> float | None:
        """When the oldest generation was flushed that a round could merge or index.

        Shards and indexes set `aside` are left out; None if nothing remains.
        """
        work = [at for shard, at in self.mergeable.items() if shard not in aside]
        work += [at for name, at in self.unindexed.items() if name_index(name) not in aside]
        return min(work, default=None)

    def find_worst(self, now: float) -> tuple[float, str]:
        """How far the table is behind its writers, and in which stage: flushed, merged, indexed."""
        stages = (FLUSHED, self.unflushed), ("merged", self.put), ("indexed", self.unindexed)
        return max((now - min(at.values(), default=now), stage) for stage, at in stages)

    def describe_unflushed(self, now: float) -> str:
        """What makes generations of the rows that wait in WALs for too long."""
        most = self.state.freshness_target_seconds or 0.0
        late = [shard for shard, at in self.unflushed.items() if now - at > most]
        return (
            f"rows of shard {', '.join(name_some(sorted(late), _NAMED_MAX, 'shards'))} are in the "
            "WAL only, where no merge sees them: close or reopen the writer (`open_writer` does so "
            f"by itself: generation_every), or `memwal rescue {self.table}` if it is gone"
        )


def assess(
    table: str,
    look: TableLook,
    target: Target,
    before: Lag | None,
    *,
    indexed_version: int = 0,
    now: float,
    now_nanos: int,
) -> Lag:
    """How far a table is behind, by a look at it. `before` is the lag that was found last.

    `indexed_version` is the one that the last index catch-up came to: without a MemWAL, nothing
    else in the manifest tells cheaply whether indexes lack rows.
    """
    view = look.view
    known = before.flushed if before is not None else {}
    flushed: dict[Generation, float] = {}
    put: dict[Generation, float] = {}

    def date_flushes(generations: Iterable[Generation], *, recorded: bool = True) -> float:
        for generation in generations:
            nanos = look.flushed_at_nanos.get(generation, now_nanos)
            age = max(0.0, (now_nanos - nanos) / 1e9)
            if not recorded and age > target.freshness_seconds:
                # The index is new, or a compaction has erased its entry: it may cover these rows.
                age = 0.0
            at = known.get(generation, now - age)
            flushed[generation] = min(flushed.get(generation, at), at)
        return min(flushed[generation] for generation in generations)

    def date_rows(generations: Sequence[Generation]) -> float:
        for generation in generations:
            at = flushed[generation]
            if before is not None:
                waited = {} if generation in known else before.unflushed
                at = min(at, before.put.get(generation, at), waited.get(generation[0], at))
            put[generation] = at
        return min(put[generation] for generation in generations)

    pending = {
        s.shard_id: [(s.shard_id, g.generation) for g in s.pending]
        for s in view.shards
        if s.pending
    }
    oldest_pending = min(map(date_flushes, pending.values()), default=None)
    rows = {shard_id: date_rows(generations) for shard_id, generations in pending.items()}
    unindexed = {
        name: date_flushes(lacking, recorded=bool(view.mem_wal.index_catchup.get(name)))
        for name, lacking in _find_lacking(view)
        if lacking
    }
    if not view.has_mem_wal and view.version > indexed_version:
        # Nobody knows since when, at the first look.
        committed = (
            now if before is None else now - (now_nanos - view.manifest.timestamp_nanos) / 1e9
        )
        since = {} if before is None else before.unindexed
        unindexed = {name: since.get(name, min(now, committed)) for name in _list_indexes(view)}
    work, problems = _find_work(view)
    dated = replace(
        view,
        shards=tuple(
            replace(s, oldest_pending_flushed_at_nanos=_date(s, look)) for s in view.shards
        ),
    )
    due = find_due_shards(dated, target.due, now_nanos)

    def date(at: float | None) -> int | None:
        return None if at is None else now_nanos - int((now - at) * 1e9)

    waiting = look.unflushed_at_nanos
    return Lag(
        table=table,
        state=replace(
            take_state(dated, now_nanos),
            oldest_pending_at_nanos=date(oldest_pending),
            oldest_unindexed_at_nanos=date(min(unindexed.values(), default=None)),
            abandoned_shards=look.abandoned_shards,
            unflushed_shards=None if waiting is None else len(waiting),
            oldest_unflushed_at_nanos=min(waiting.values(), default=None) if waiting else None,
            freshness_target_seconds=target.freshness_seconds,
            last_backup_at_nanos=look.last_backup_at_nanos,
            cursors=look.cursors,
        ),
        oldest_pending=oldest_pending,
        mergeable={shard.shard_id: rows[shard.shard_id] for shard in work},
        mergeable_bytes=sum(g.in_memory_bytes or 0 for shard in work for g in shard.pending),
        due={shard.shard_id: due[shard.shard_id] for shard in work if shard.shard_id in due},
        unindexed=unindexed,
        problems=problems,
        flushed=flushed,
        put=put,
        unflushed={
            shard: now - max(0.0, (now_nanos - at) / 1e9) for shard, at in (waiting or {}).items()
        },
        progress=(view.mem_wal.merged, view.mem_wal.index_catchup)
        if view.has_mem_wal
        else indexed_version,
    )


def _list_indexes(view: TableView) -> list[str]:
    return sorted({entry.name for entry in view.manifest.indexes} - SYSTEM_INDEXES)


def _find_lacking(view: TableView) -> Iterable[tuple[str, list[Generation]]]:
    """For each index, the merged generations that it lacks, as far as they are still listed.

    One of a table without rows lacks none, though Lance records that with the next rows only.
    For a shard whose lacking generations are all gone already, the first of them stands for all.
    """
    stored = {s.shard_id: s.manifest.flushed_generations for s in view.shards}
    for name in _list_indexes(view):
        recorded = view.mem_wal.index_catchup.get(name, {})
        lacking: list[Generation] = []
        for shard, merged in view.mem_wal.merged.items() if view.rows else ():
            caught_up = recorded.get(shard, 0)
            if caught_up < merged:
                numbers = [
                    g.generation
                    for g in stored.get(shard, ())
                    if caught_up < g.generation <= merged
                ]
                lacking += [(shard, number) for number in numbers or [caught_up + 1]]
        yield name, lacking


def _find_work(view: TableView) -> tuple[Sequence[ShardView], Mapping[str, MemWalError]]:
    try:
        work, left = choose_shards(view, (), MergeRequest())
    except MemWalError as error:
        return (), {"": error}
    wrong = {shard.shard_id: shard.error for shard in left if shard.error is not None}
    return work, {
        shard: error if isinstance(error, MemWalError) else MemWalError(str(error))
        for shard, error in wrong.items()
    }


def _date(shard: ShardView, look: TableLook) -> int | None:
    known = (look.flushed_at_nanos.get((shard.shard_id, g.generation)) for g in shard.pending)
    return min((at for at in known if at is not None), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """Jobs that a table needs now. `oldest` is when the oldest generation concerned was flushed."""

    jobs: tuple[str, ...]
    oldest: float
    large: bool
    reasons: tuple[str, ...]


def find_need(
    lag: Lag,
    target: Target,
    aside: Collection[str],
    *,
    now: float,
    look_seconds: float,
    round_seconds: float,
    queue_seconds: float = 0.0,
) -> Need | None:
    """What has to be done now to keep the target, or because a trigger was crossed; None: nothing.

    As each commit costs, small flushes wait for each other as long as the target is kept. Shards
    and indexes (by `name_index`) that are set `aside` are no reason for work. The next look is in
    `look_seconds`, a round takes `round_seconds`, and it has to begin `queue_seconds` earlier to
    make room for other tables (`find_queues`).
    """
    act_at = find_age_to_act_at(
        target,
        look_seconds=look_seconds,
        round_seconds=round_seconds,
        queue_seconds=queue_seconds,
    )
    shards = {s: at for s, at in lag.mergeable.items() if s not in aside}
    indexes = {n: at for n, at in lag.unindexed.items() if name_index(n) not in aside}
    due = {shard: reasons for shard, reasons in lag.due.items() if shard in shards}
    pending = min(shards.values(), default=now + 1)
    unindexed = min(indexes.values(), default=now + 1)
    merge_aged, index_aged = now - pending >= act_at, now - unindexed >= act_at
    if not (due or merge_aged or index_aged):
        return None
    jobs = []
    if shards:
        jobs.append(MERGE)
    if index_aged or (merge_aged and lag.state.index_lag_generations):
        jobs.append(INDEX_CATCHUP)
    aged = [
        f"the oldest {what} is {now - at:.0f} s old, of {target.freshness_seconds:g} s"
        for what, at, is_aged in (
            ("pending row", pending, merge_aged),
            ("unindexed generation", unindexed, index_aged),
        )
        if is_aged
    ]
    return Need(
        jobs=tuple(jobs),
        oldest=min(pending, unindexed),
        large=bool(shards) and target.is_large(len(shards), lag.mergeable_bytes),
        reasons=(*aged, *(text for reasons in due.values() for text in reasons)),
    )


def find_age_to_act_at(
    target: Target, *, look_seconds: float, round_seconds: float, queue_seconds: float = 0.0
) -> float:
    """The age at which a round has to begin, so that it ends before the target is missed."""
    left = target.freshness_seconds - look_seconds - _ROUNDS_SPARED * round_seconds
    left -= queue_seconds
    return 0.0 if target.at_once else max(0.0, min(target.freshness_seconds * _ACT_AT, left))


def name_index(name: str) -> str:
    """The key of an index where shards and indexes are mixed."""
    return f"index {name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A table with something to merge or index, which is late after `deadline`."""

    table: str
    deadline: float
    round_seconds: float


def find_queues(behind: Iterable[Behind], *, rounds_max: int) -> Mapping[str, float]:
    """How many seconds earlier each table's round has to begin so that none of them is too late.

    Where deadlines are closer together than rounds can follow each other, the tables with the
    earlier deadlines have to begin earlier.
    """
    queues: dict[str, float] = {}
    queue, after = 0.0, None
    for table in sorted(behind, key=lambda t: (t.deadline, t.table), reverse=True):
        if after is not None:
            room = after.deadline - table.deadline
            queue = max(0.0, queue + after.round_seconds / rounds_max - room)
        queues[table.table], after = queue, table
    return queues


def find_look_seconds(
    freshness_seconds: float, limits: WatchLimits, *, quiet_seconds: float
) -> float:
    """How long until the next look: short where something changed lately, longer otherwise."""
    quick = min(limits.every_seconds, freshness_seconds / _LOOKS_A_TARGET)
    if quiet_seconds < freshness_seconds:
        return quick
    return max(quick, freshness_seconds * _ACT_AT)


@dataclass(frozen=True, kw_only=True, slots=True)
class LookUnderWay:
    """A look at a table of `store`. An `overdue` one was reported, and takes no other's place."""

    store: Hashable
    seconds: float
    overdue: bool


def find_room(
    looks: Sequence[LookUnderWay], answered_seconds: Mapping[Hashable, float], looks_max: int
) -> tuple[int, Collection[Hashable]]:
    """How many more looks may begin now, and at which stores none of them.

    `answered_seconds` says how long ago a look at a store succeeded last. If that was long ago, and
    a look at it takes long, the store may be silent: looks at it get a share of the room only, and
    a few of them begin from time to time to find out.
    """
    silent = {
        look.store
        for look in looks
        if min(look.seconds, answered_seconds.get(look.store, math.inf)) >= _SILENT_SECONDS
    }
    share = max(1, looks_max // _SILENT_SHARE)
    held = Counter(look.store for look in looks if not look.overdue)
    young = Counter(look.store for look in looks if look.seconds < _SILENT_SECONDS)
    taken = sum(min(n, share) if store in silent else n for store, n in held.items())
    return looks_max - taken, {store for store in silent if young[store] >= share}


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A table that has needed a round since `since`; its last one began at `last_began`."""

    table: str
    oldest: float
    freshness_seconds: float
    since: float
    last_began: float
    priority: int = PRIORITY


def order_tables(waiting: Iterable[Waiting], *, now: float) -> list[str]:
    """The tables in the order of their rounds: first those latest relative to their targets.

    How late counts as often as the priority says, so that an important table comes first, and no
    other waits for ever. A table that has had a round since the longest wait began, of those as
    important, comes after all that have not: one that can never keep its target takes turns.
    """
    tables = list(waiting)
    longest = {
        priority: min(t.since for t in tables if t.priority >= priority)
        for priority in {t.priority for t in tables}
    }

    def rank(table: Waiting) -> tuple[bool, float, str]:
        late = (table.oldest - now) / table.freshness_seconds
        return table.last_began > longest[table.priority], late * table.priority, table.table

    return [table.table for table in sorted(tables, key=rank)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Aside:
    """Something left alone for a while: its failures in a row, until when, and the reason."""

    failures: int
    until: float
    reason: str


def set_aside(
    before: Aside | None, reason: str, limits: WatchLimits, *, now: float, chance: float
) -> Aside:
    """Leave it alone with exponential backoff; `chance` in [0, 1) spreads retries apart."""
    failures = 1 if before is None else before.failures + 1
    seconds = min(limits.backoff_seconds_max, limits.every_seconds * 2.0 ** min(failures, 30))
    return Aside(failures=failures, until=now + seconds * (0.5 + chance / 2), reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class Upkeep:
    """When an upkeep job is next due on a table, and its present interval."""

    at: float
    wait_seconds: float


def plan_upkeep(
    job: str, before: Upkeep | None, limits: WatchLimits, *, idle: bool, now: float, chance: float
) -> Upkeep:
    """When the job is due next; the first time at a random moment, so that tables spread out.

    `idle` means that it found nothing to do, or failed: its interval doubles.
    """
    seconds = limits.upkeep_seconds[job]
    if before is None:
        return Upkeep(at=now + seconds * chance, wait_seconds=seconds)
    wait = min(seconds * _UPKEEP_GROWTH_MAX, before.wait_seconds * 2) if idle else seconds
    return Upkeep(at=now + wait * (0.9 + chance / 5), wait_seconds=wait)
