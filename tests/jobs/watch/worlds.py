"""Tables that are numbers, under a watch's own ports: what is flushed, merged and broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from memwal.config import ResolvedTable, Settings
from memwal.errors import MemWalError, Usage
from memwal.jobs.index_catchup.plan import IndexCatchupTableReport
from memwal.jobs.maintain.report import MaintainTableReport
from memwal.jobs.merge.report import MergeTableReport, ShardReport
from memwal.jobs.watch.apply import Watch
from memwal.jobs.watch.plan import Round, TableLook, Target, WatchLimits
from memwal.jobs.watch.ports import Event, LookEnd, RoundEnd, Watched
from memwal.model import NO_MEM_WAL, ShardId, ShardStatus, TableView
from memwal.report import (
    DONE,
    HELD,
    NOTHING_TO_DO,
    CompactionAdvice,
    JobOnTable,
    TableReport,
)
from memwal.run.reports import sum_up_jobs
from memwal.testing import ManualClock
from tests.support.views import make_generation, make_shard, make_state, make_version, make_view

SHARD = ShardId("00000000-0000-4000-8000-000000000001")
OTHER = ShardId("00000000-0000-4000-8000-000000000002")


@dataclass(kw_only=True)
class FakeTable:
    """`flushed` has the times of a shard's generations, from 1 on, in nanoseconds.

    `unflushed` has that of the oldest row in a shard's WAL. A merge leaves a small fragment, of
    which 32 are reason enough to compact.
    """

    name: str
    flushed: dict[ShardId, list[int]] = field(default_factory=lambda: {SHARD: []})
    unflushed: dict[ShardId, int] = field(default_factory=dict)
    merged: dict[ShardId, int] = field(default_factory=dict)
    indexed: dict[ShardId, int] = field(default_factory=dict)
    indexes: tuple[str, ...] = ("by_n",)
    sealed: set[ShardId] = field(default_factory=set)
    key: tuple[str, ...] = ("k",)
    version: int = 1
    committed_at_nanos: int = 0
    look_error: MemWalError | None = None
    round_error: MemWalError | None = None
    shard_error: MemWalError | None = None
    held: bool = False
    idle: bool = False
    deaf: bool = False
    plain: bool = False
    round_seconds: float = 1.0
    upkeep_seconds: float = 0.0
    fragments: int = 1

    def flush(self, clock: ManualClock, shard: ShardId = SHARD, ago: float = 0.0) -> None:
        self.flushed.setdefault(shard, []).append(clock.now_nanos() - round(ago * 1e9))
        self.unflushed.pop(shard, None)

    def view(self) -> TableView:
        shards = [
            make_shard(
                shard,
                [make_generation(n + 1, 100, 1) for n in range(len(times))],
                merged=self.merged.get(shard, 0),
                status=ShardStatus.SEALED if shard in self.sealed else ShardStatus.ACTIVE,
            )
            for shard, times in self.flushed.items()
        ]
        state = make_state(
            merged=dict(self.merged), index_catchup={n: dict(self.indexed) for n in self.indexes}
        )
        if self.plain:
            shards, state = [], NO_MEM_WAL
        manifest = replace(
            make_version(state, *self.indexes, version=self.version),
            timestamp_nanos=self.committed_at_nanos,
        )
        return make_view(
            *shards, state=state, manifest=manifest, version=self.version, primary_key=self.key
        )

    def work(self, jobs: Sequence[str]) -> tuple[JobOnTable, ...]:
        return tuple(JobOnTable(job=job, report=self._run(job)) for job in jobs)

    def _run(self, job: str) -> TableReport:
        if self.held:
            return TableReport(table=self.name, outcome=HELD, exit_code=4, error="held")
        if job == "merge":
            return self._merge()
        if job == "index-catchup":
            if self.deaf:
                return IndexCatchupTableReport(table=self.name, outcome=NOTHING_TO_DO)
            behind = self.indexed != self.merged
            self.indexed = dict(self.merged)
            self.version += behind
            outcome = DONE if behind else NOTHING_TO_DO
            reason = "small fragments" if self.fragments >= 32 else None
            advice = CompactionAdvice(small_fragments=self.fragments, deleted_rows=0, reason=reason)
            return IndexCatchupTableReport(
                table=self.name,
                outcome=outcome,
                version_after=self.version,
                compaction=advice,
            )
        if job == "compaction":
            outcome = DONE if self.fragments >= 32 else NOTHING_TO_DO
            self.fragments = 1 if outcome == DONE else self.fragments
            return TableReport(table=self.name, outcome=outcome)
        return TableReport(table=self.name, outcome=NOTHING_TO_DO if self.idle else DONE)

    def _merge(self) -> MergeTableReport:
        shards = []
        for shard, times in self.flushed.items():
            before = self.merged.get(shard, 0)
            facts: dict[str, Any] = {"outcome": NOTHING_TO_DO}
            if before < len(times) and shard not in self.sealed and not self.idle:
                if self.shard_error is not None and shard == OTHER:
                    error = self.shard_error
                    facts = {
                        "outcome": error.outcome, "error": str(error), "exit_code": error.exit_code
                    }  # fmt: skip
                else:
                    self.merged[shard] = len(times)
                    self.version += 1
                    self.fragments += 1
                    facts = {"outcome": DONE, "rows_inserted": len(times) - before}
            shards.append(ShardReport(shard_id=shard, **facts))
        done = any(shard.outcome == DONE for shard in shards)
        failed = any(shard.error for shard in shards)
        outcome = "partial" if done and failed else DONE if done else NOTHING_TO_DO
        outcome = "failed" if failed and not done else outcome
        return MergeTableReport(table=self.name, outcome=outcome, shards=tuple(shards))


@dataclass(kw_only=True)
class World:
    """The ports of a watch over such tables. A look is at once; a round takes its seconds."""

    tables: dict[str, FakeTable]
    clock: ManualClock = field(default_factory=ManualClock)
    slots: int = 2
    events: list[Event] = field(default_factory=list)
    is_heard: bool = True
    looked: list[tuple[float, str]] = field(default_factory=list)
    rounds: list[tuple[float, Round]] = field(default_factory=list)
    running: list[tuple[float, ResolvedTable, Round]] = field(default_factory=list)
    again: list[Sequence[Watched] | Usage] = field(default_factory=list)
    hung: set[str] = field(default_factory=set)
    """Addresses of tables that a look never ends on."""
    lost: list[ResolvedTable] = field(default_factory=list)
    looks: list[LookEnd] = field(default_factory=list)
    leases: dict[str, object] = field(default_factory=dict)
    _seen: dict[str, object] = field(default_factory=dict)

    # ---- Lookouts

    def start(self, table: ResolvedTable, work: Round | None = None) -> None:
        """Of Lookouts and of Workers."""
        now = self.clock.monotonic_seconds()
        if work is not None:
            assert all(running.name != table.name for _, running, _ in self.running)
            self.rounds.append((now, work))
            fake = self.tables[table.name]
            seconds = fake.round_seconds + fake.upkeep_seconds * work.has_upkeep
            self.running.append((now + seconds, table, work))
            return
        self.looked.append((now, table.name))
        if table.uri in self.hung:
            self.lost.append(table)
            return
        fake = self.tables[table.name]
        if fake.look_error is not None:
            self.looks.append(LookEnd(table=table, error=fake.look_error))
            return
        view = fake.view()
        times = {(s, n + 1): at for s, ts in fake.flushed.items() for n, at in enumerate(ts)}
        changed = self._seen.get(table.name) != view
        self._seen[table.name] = view
        look = TableLook(
            view=view,
            flushed_at_nanos=times,
            changed=changed,
            requests={"list": 1},
            unflushed_at_nanos=dict(fake.unflushed),
        )
        self.looks.append(LookEnd(table=table, look=look))

    def collect(self) -> Sequence[LookEnd]:
        found, self.looks = self.looks, []
        return found

    def forget(self, table: str) -> None:
        self._seen.pop(table, None)

    # ---- Workers

    def can_take(self, *, large: bool) -> bool:
        return len(self.running) < self.slots

    def wait(self, seconds: float) -> Sequence[RoundEnd]:
        now = self.clock.monotonic_seconds()
        until = min([now + max(seconds, 0.001), *(at for at, _, _ in self.running)])
        self.clock.advance(max(0.0, until - now))
        now = self.clock.monotonic_seconds()
        over = [item for item in self.running if item[0] <= now + 1e-6]
        self.running = [item for item in self.running if item not in over]
        return [self._end(table, work) for _, table, work in over]

    def stop(self, seconds_max: float) -> Sequence[RoundEnd]:
        over, self.running = self.running, []
        return [self._end(table, work) for at, table, work in over]

    def _end(self, table: ResolvedTable, work: Round) -> RoundEnd:
        fake = self.tables[table.name]
        if fake.round_error is not None:
            return RoundEnd(work=work, seconds=fake.round_seconds, error=fake.round_error)
        jobs = fake.work(work.jobs)
        report = MaintainTableReport(table=table.name, **sum_up_jobs(jobs))
        return RoundEnd(work=work, seconds=fake.round_seconds, report=report)

    # ---- Events, configuration

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def read_again(self) -> Sequence[Watched] | None:
        if not self.again:
            return None
        found = self.again.pop(0)
        if isinstance(found, Usage):
            raise found
        return found

    # ---- the watch

    def watched(
        self, name: str, freshness: float = 60.0, uri: str | None = None, **target: Any
    ) -> Watched:
        uri = uri or f"/{name}"
        resolved = ResolvedTable(name=name, uri=uri, settings=Settings(), storage_options={})
        return Watched(resolved=resolved, target=Target(freshness_seconds=freshness, **target))

    def watch(self, freshness: float = 60.0, **given: Any) -> Watch:
        limits = replace(WatchLimits(rounds_max=self.slots), **given.pop("limits", {}))
        target = {"at_once": given.get("once", False), "collects": given.pop("collects", True)}
        watch = Watch(
            lookouts=self,
            workers=self,
            clock=self.clock,
            events=self,
            read_again=self.read_again,
            limits=limits,
            **given,
        )
        watch.watch([self.watched(name, freshness, **target) for name in self.tables])
        return watch

    def run(self, watch: Watch, seconds: float, flush: Any = None) -> None:
        """`flush` is called every second."""
        until = self.clock.monotonic_seconds() + seconds
        told = self.clock.monotonic_seconds()
        while self.clock.monotonic_seconds() < until and not watch.is_over:
            while flush is not None and told <= self.clock.monotonic_seconds():
                flush()
                told += 1.0
            watch.turn()

    def told(self, event: str, table: str | None = "t") -> list[dict[str, Any]]:
        return [dict(e.details) for e in self.events if e.event == event and e.table == table]


def one(**facts: Any) -> tuple[World, FakeTable]:
    """A world with one table."""
    table = FakeTable(name="t", **facts)
    return World(tables={"t": table}), table
