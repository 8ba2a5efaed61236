"""More actors: compaction, rescue, whoever looks (status, wait, reads), and users of the base.

A user here is anybody with plain Lance in hand: tags and branches, cleanup, writes to the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from memwal.errors import Corruption, MemWalError, Missing, NotATable, Refused
from memwal.format import layout
from memwal.format.replay import select_above
from memwal.jobs.compaction.apply import Compactor, Rewritten
from memwal.jobs.compaction.plan import CompactionLimits, CompactionTask
from memwal.jobs.rescue.apply import ShardRescuer
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import StoredShardWal
from memwal.jobs.status.plan import WalSize
from memwal.jobs.status.report import StatusTableReport, report_status
from memwal.jobs.status.until import Step, Waiter, choose_target
from memwal.model import Cursor, ShardId, TableView
from memwal.read.store.wal_rows import StoredWalRows
from memwal.store.objects.opening import read_store_time
from memwal.store.records.cursors import StoredCursors
from memwal.store.shards.wal import WalEntries, WalLimits
from memwal.store.tables.field_ids import FieldIds
from tests.simulation import checkpoint_actors
from tests.simulation.actors import GRACE_SECONDS, OUTCOMES, Jobs, Session, make_catchup_job
from tests.simulation.lake import Progress, Version, decode_changes
from tests.simulation.row_rules import NEWEST_WINS, leave_out
from tests.simulation.scheduler import Actor
from tests.simulation.sim_ports import SimExpiry, SimStores, data_path
from tests.simulation.truth import USER_KEYS, PlainWrite, State, Violation
from tests.simulation.upkeep_ports import SimCompactionTable

IDLE_SECONDS = 20.0
CURSOR = "mart"
TAGS = ("monday", "tuesday")
BRANCHES = ("side", "other/side")
ONE_READER = WalLimits(entries_in_flight_max=1)
COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())])

UPKEEP = (
    "compaction",
    "rescue",
    "referrer",
    "cleaner",
    "user",
    "time_traveller",
    "wal_reader",
    "status",
    "wait",
    "checkpoint",
    "follower",
)
"""Their names, which are those of the methods that run them."""


class _Unchanged(FieldIds):
    """Of a table whose columns never change."""

    def __init__(self) -> None:
        pass

    def find_reused(self, *_: Any, **__: Any) -> frozenset[int]:
        return frozenset()


@dataclass(kw_only=True)
class Upkeep:
    """Makes these actors' bodies. `shard_rows` lets users write to rows that shards own too."""

    jobs: Jobs
    shard_rows: bool = True

    # ---- jobs

    def compaction(self, actor: Actor) -> None:
        """`memwal compaction`."""
        stores = self.jobs.open(actor)
        table = SimCompactionTable(stores)

        def rewrite(tasks: Sequence[CompactionTask]) -> list[Rewritten]:
            done: list[Rewritten] = []
            for task in tasks:
                try:
                    done.append(table.rewrite(task))
                except MemWalError as error:
                    done.append(error)
            return done

        try:
            with self.jobs.lease_of(stores, "compaction") as lease:
                view, catchup = stores.table(), make_catchup_job(stores, lease)
                done = Compactor(
                    name="t",
                    views=stores,
                    table=table,
                    clock=stores.clock,
                    read_store_time=partial(read_store_time, stores.objects),
                    rewrite=rewrite,
                    plan_indexes=lambda view: catchup.plan(view).indexes,
                    catch_up=lambda: catchup.catch_up(view).indexes,
                    limits=CompactionLimits(target_rows_per_fragment=8),
                    take_lease=lease.take,
                    before_commit=lease.check,
                ).run(view)
            self.jobs.seen["rows purged"] += done.purged_rows
        except OUTCOMES:
            return

    def rescue(self, actor: Actor) -> None:
        """`memwal rescue`, on every shard."""
        stores = self.jobs.open(actor)
        signs = {s: self._newest_sign(stores, s) for s in self.jobs.shards}
        try:
            with self.jobs.lease(stores, "rescue") as check:
                rescuer = ShardRescuer(
                    wal=StoredShardWal(stores.objects, ONE_READER),
                    writers=_Writers(stores=stores, jobs=self.jobs, signs=signs),
                    clock=stores.clock,
                    request=RescueRequest(idle_seconds=IDLE_SECONDS),
                    before_claim=check,
                )
                for shard in self.jobs.shards:
                    rescuer.run(shard)
        except OUTCOMES:
            return

    def _newest_sign(self, stores: SimStores, shard: ShardId) -> int:
        """When a writer last left something; what rescues left does not count."""
        traces = self.jobs.truth.rescue_traces
        folder = f"{layout.shard_folder(shard)}/"
        return max(
            (
                at
                for path, (_, at) in stores.lake.bucket.objects.items()
                if path.startswith(folder) and path not in traces
            ),
            default=0,
        )

    def checkpoint(self, actor: Actor) -> None:
        """`memwal checkpoint`."""
        checkpoint_actors.keep_or_drop(self.jobs, actor)

    def follower(self, actor: Actor) -> None:
        """`memwal changes --commit`: moves its cursor to the latest version, or makes it there."""
        stores = self.jobs.open(actor)
        cursors = StoredCursors(stores.objects)
        try:
            version, before = stores.table().version, cursors.read(CURSOR)
            if before is None or before.version < version:
                cursors.put(
                    Cursor(
                        name=CURSOR, version=version, moved_at_nanos=stores.clock.now_nanos(),
                        holder=actor.name, transaction=None,
                    )
                )  # fmt: skip
                self.jobs.seen["cursors moved"] += 1
        except OUTCOMES:
            return

    # ---- users with plain Lance

    def referrer(self, actor: Actor) -> None:
        """Makes or deletes a tag or a branch, of any version that is there."""
        stores = self.jobs.open(actor)
        lake, dice = stores.lake, actor.scheduler.dice
        version = dice.choice(sorted(lake.versions))
        try:
            if dice.random() < 0.5:
                name = dice.choice(TAGS)
                if name in lake.tags:
                    actor.step(f"delete tag {name}", lambda: lake.untag(name))
                else:
                    actor.step(f"tag {version} as {name}", lambda: lake.tag(name, version))
                return
            name = dice.choice(BRANCHES)
            if name in lake.branches:
                actor.step(f"forget branch {name}", lambda: lake.unrefer(name))
                actor.step(f"delete branch {name}", lambda: lake.unbranch(name))
            else:
                actor.step(f"branch {name} from {version}", lambda: lake.branch(name, version))
                actor.step(f"refer to branch {name}", lambda: lake.refer(name))
        except OUTCOMES:
            return

    def cleaner(self, actor: Actor) -> None:
        """Lance's own cleanup, by somebody who asks nobody."""
        stores = self.jobs.open(actor)
        try:
            seconds = actor.scheduler.dice.choice((0.0, 5.0, 60.0))
            SimExpiry(stores).expire_versions(stores.lake.aged(seconds))
        except OUTCOMES:
            return

    def user(self, actor: Actor) -> None:
        """A plain append, update or delete: of own rows, or of a shard's row that is there."""
        stores, truth = self.jobs.open(actor), self.jobs.truth
        dice = actor.scheduler.dice
        value, new = dice.getrandbits(30), USER_KEYS + dice.randrange(10**6)
        kind = dice.choice(("append", "update", "delete"))

        def write() -> None:
            rows = stores.lake.latest.rows
            known = sorted(k for k in rows if self.shard_rows or k >= USER_KEYS)
            if kind == "append" or not known:
                stores.lake.write("append", {new: value}, frozenset())
                truth.users[new] = value
                return
            key = dice.choice(known)
            live = {key: truth.rules.value(value)} if kind == "update" else {}
            gone = frozenset[int]() if live else frozenset({key})
            landed = stores.lake.write(kind, live, gone)
            if key >= USER_KEYS:
                NEWEST_WINS.apply(truth.users, {key: live.get(key)})
            else:
                self._remember(landed, key, live.get(key))

        try:
            actor.step(f"user: {kind}", write)
        except OUTCOMES:
            return

    def _remember(self, landed: Version, key: int, value: int | None) -> None:
        shard = self.jobs.shards[key % len(self.jobs.shards)]
        self.jobs.truth.plain[shard].append(
            PlainWrite(
                after_generation=landed.own(shard),
                version=landed.number,
                key=key,
                value=value,
            )
        )

    # ---- readers

    def time_traveller(self, actor: Actor) -> None:
        """A merging read at a tag: never mind how long it takes, nothing of it may go."""
        stores, truth = self.jobs.open(actor), self.jobs.truth
        # Of a version that a checkpoint was made of, memwal may refuse to read more than that.
        tags = {n: v for n, v in stores.lake.tags.items() if v not in truth.checkpointed}
        if not tags:
            return
        name = actor.scheduler.dice.choice(sorted(tags))
        began = {s: truth.flushed(s) for s in self.jobs.shards}
        try:
            view = stores.at(tags[name])
            rows = self._read(stores, view)
        except Missing as error:
            if stores.lake.tags.get(name) == tags[name] and not _listings_lag(actor):
                raise Violation(f"6: tag {name} is there, and can't be read: {error}") from error
            return
        except OUTCOMES:
            return
        self._check_read(f"at tag {name}", view, rows, began)

    def wal_reader(self, actor: Actor) -> None:
        """A strongly consistent read: with whatever was acknowledged before it began."""
        stores, truth = self.jobs.open(actor), self.jobs.truth
        acknowledged = {s: max(truth.acknowledged[s], default=0) for s in self.jobs.shards}
        started = actor.scheduler.now_seconds
        wal = WalEntries(stores.objects, ONE_READER)
        reader = StoredWalRows(wal=wal, manifests=stores.manifests, field_ids=_Unchanged())
        try:
            view, tails = reader.read_settled(
                lambda: _as_written(stores.table()), lambda view: COLUMNS
            )
        except (Corruption, Refused) as error:
            raise Violation(f"7: a WAL that is whole was refused: {error}") from error
        except OUTCOMES:
            return
        try:
            rows = self._read(stores, view)
        except Missing:
            if view.version in stores.lake.versions:
                self._excuse(actor, started)
            return
        except OUTCOMES:
            return
        now = stores.clock.now_nanos()
        cut = max(now, actor.scheduler.now_nanos())
        for shard in view.shards:
            tail, mine = tails[shard.shard_id], self._own(rows, shard.shard_id)
            columns = (tail.rows[name].to_pylist() for name in ("id", "n"))
            for key, change in zip(*columns, strict=True):
                truth.rules.apply(mine, {key: change})
            mine = truth.rules.hide(leave_out(mine, view, now), cut)
            positions = truth.wal[shard.shard_id]
            upto = range(acknowledged[shard.shard_id], max(positions, default=0) + 1)
            states = (truth.at(shard.shard_id, p, view.version) for p in upto)
            if not any(mine == truth.rules.hide(state, cut) for state in states):
                raise Violation(f"5: a read of {shard.shard_id[:4]} with its WAL saw {mine}")
        self.jobs.seen["reads with the WAL"] += 1

    def _excuse(self, actor: Actor, started: float) -> None:
        """A file may only be gone for one that takes longer than the grace."""
        waited = actor.scheduler.now_seconds - started
        if waited < GRACE_SECONDS and not _listings_lag(actor) and not _clocks_jump(actor):
            raise Violation(f"6: a file was gone within {waited:g} s")

    def _read(self, stores: SimStores, view: TableView) -> State:
        rows = {key: value for key, (value, _) in stores.rows(view.version).items()}
        for shard in view.shards:
            for generation in shard.pending:
                data = stores.objects.get(data_path(shard.shard_id, generation))
                self.jobs.truth.rules.apply(rows, decode_changes(data))
        return rows

    def _own(self, rows: State, shard: ShardId) -> State:
        place, shards = self.jobs.shards.index(shard), len(self.jobs.shards)
        return {k: v for k, v in rows.items() if k < USER_KEYS and k % shards == place}

    def _check_read(
        self, where: str, view: TableView, rows: State, began: dict[ShardId, int]
    ) -> None:
        truth, cut = self.jobs.truth, view.manifest.timestamp_nanos
        for shard, least in began.items():
            mine = leave_out(self._own(rows, shard), view, cut)
            upto = range(least, truth.flushed(shard) + 1)
            states = (truth.state(shard, g, view.version) for g in upto)
            if not any(mine == truth.rules.hide(state, cut) for state in states):
                raise Violation(f"5: a reader of shard {shard[:4]} {where} saw {mine}")

    # ---- who looks

    def status(self, actor: Actor) -> None:
        """`memwal status`: each number is what it was at some instant of the look."""
        stores = self.jobs.open(actor)
        before, faults = self._progress(stores), actor.scheduler.injected.total()
        try:
            view = stores.table()
            listed = {s: WalEntries(stores.objects).list_entries(s) for s in self.jobs.shards}
        except OUTCOMES as error:
            self._not_by_itself("status", actor, faults, error)
            return
        manifests = {s.shard_id: s.manifest for s in view.shards}

        def wal(shard: ShardId) -> WalSize:
            return WalSize(
                wal_entries=len(listed[shard]),
                wal_bytes=sum(info.size_bytes for _, info in listed[shard]),
                unflushed_wal_entries=len(select_above(manifests[shard], listed[shard])),
            )

        report = report_status(
            "t", view, wal=wal, unindexed_rows=lambda name: None, due={}, now_nanos=0
        )
        recorded = stores.lake.progress[view.version]
        self._check_status(report, recorded, before, self._progress(stores))

    def _progress(self, stores: SimStores) -> dict[ShardId, tuple[int, int]]:
        """Merged and flushed, now."""
        merged = stores.lake.latest.merged
        return {s: (merged.get(s, 0), self.jobs.truth.flushed(s)) for s in self.jobs.shards}

    def _check_status(
        self,
        report: StatusTableReport,
        merged: Progress,
        before: dict[ShardId, tuple[int, int]],
        after: dict[ShardId, tuple[int, int]],
    ) -> None:
        for shard in report.shards:
            assert shard.shard_id is not None
            known = ShardId(shard.shard_id)
            recorded = merged.get(known, 0)
            if shard.merged_generation != recorded:
                raise Violation(f"status: merged {shard.merged_generation}, not {recorded}")
            highest = max(recorded, before[known][0], after[known][0])
            least = set(range(highest + 1, before[known][1] + 1))
            most = set(range(recorded + 1, after[known][1] + 1))
            if not least <= set(shard.pending_generations) <= most:
                raise Violation(
                    f"status: pending {shard.pending_generations}, where {sorted(least)} were all "
                    f"the time, and {sorted(most)} at some"
                )

    def wait(self, actor: Actor) -> None:
        """What `status --until` says is there is there, and what it misses was missing."""
        stores, dice = self.jobs.open(actor), actor.scheduler.dice
        until = dice.choice(list(Step))
        faults, started = actor.scheduler.injected.total(), actor.scheduler.now_nanos()
        try:
            target = dict(choose_target(stores.table(), {}))
            waiter = Waiter(
                views=stores,
                shards=stores.manifests,
                folders=lambda shard: _folders(stores, shard),
                clock=stores.clock,
                readers_max=1,
            )
            missing = waiter.run(until, target, timeout_seconds=dice.choice((0.0, 5.0, 50.0)))
        except OUTCOMES as error:
            self._not_by_itself("wait", actor, faults, error)
            return
        if until is Step.COLLECTED:
            reached = {s: g for s, g in target.items() if s not in missing}
            self._check_collected(stores, reached, started)
            return
        for shard, wanted in target.items():
            found = self._reached(stores, until, shard, waiter.version)
            said = missing.get(shard, wanted)
            if said != min(found, wanted):
                raise Violation(f"wait: {until.value} up to {said}, where {found} was the truth")

    def _reached(self, stores: SimStores, until: Step, shard: ShardId, version: int) -> int:
        """How far the shard was at that version, by the lake's own record."""
        if until is Step.MERGED:
            return stores.lake.progress[version].get(shard, 0)
        return stores.lake.indexed_to(version, shard)

    def _check_collected(
        self, stores: SimStores, reached: dict[ShardId, int], started_nanos: int
    ) -> None:
        """Nothing is left that was there before; a stalled writer may leave a folder any time."""
        for shard, wanted in reached.items():
            listed = self.jobs.truth.manifests[shard][-1].flushed_generations
            left = [g.generation for g in listed if g.generation <= wanted]
            folder = f"{layout.shard_folder(shard)}/"
            for path, (_, at) in stores.lake.bucket.objects.items():
                if path.startswith(folder) and at < started_nanos:
                    number = layout.parse_generation_folder(path.split("/")[2])
                    left += [number] if number is not None and number <= wanted else []
            if left:
                raise Violation(f"wait: {wanted} generations are collected, and {left} are there")

    @staticmethod
    def _not_by_itself(what: str, actor: Actor, faults: int, error: MemWalError) -> None:
        """Who only looks fails for a fault, or while the table is overwritten."""
        if actor.scheduler.injected.total() == faults and not isinstance(error, NotATable):
            raise Violation(f"{what} failed without a fault: {error}") from error


@dataclass(frozen=True, kw_only=True)
class _Writers:
    """The ShardWriters port. Checks that whom a rescue fences was silent for long enough."""

    stores: SimStores
    jobs: Jobs
    signs: dict[ShardId, int]

    def claim(
        self, shard_id: ShardId, *, memtable_rows_max: int, memtable_batches_max: int
    ) -> Callable[[], None]:
        marked = self.stores.lake.bucket.objects[layout.rescue_mark_path(shard_id)][1]
        idle = (marked - self.signs[shard_id]) / 1e9
        if idle < IDLE_SECONDS:
            raise Violation(f"4: a shard was claimed that had been silent for {idle:g} s only")
        session = Session(stores=self.stores, jobs=self.jobs, shard=shard_id)
        claimed = session.open()
        return lambda: session.flush(claimed)


def _as_written(view: TableView) -> TableView:
    """With the key's type that WAL entries have here, whatever the merger is told."""
    key, *others = view.columns
    return replace(view, columns=(replace(key, type_text="int64"), *others))


def _folders(stores: SimStores, shard: ShardId) -> list[int]:
    names = stores.objects.list_folders(layout.shard_folder(shard))
    return [n for n in map(layout.parse_generation_folder, names) if n is not None]


def _listings_lag(actor: Actor) -> bool:
    return bool(actor.scheduler.injected["stale_listing"])


def _clocks_jump(actor: Actor) -> bool:
    return bool(actor.scheduler.injected["clock_jump"])
