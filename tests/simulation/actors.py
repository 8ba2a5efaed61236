"""The actors: a writer a shard, and each job as its command runs it, over simulated ports."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from memwal.errors import (
    AlreadyExists,
    Corruption,
    LeaseHeld,
    LostRace,
    MemWalError,
    Missing,
    StoreUnavailable,
)
from memwal.format import layout
from memwal.jobs.garbage.apply import TableGarbage, collect_garbage
from memwal.jobs.garbage.apply.deletions import Deleter
from memwal.jobs.garbage.model import GarbageLimits
from memwal.jobs.index_catchup.apply import IndexCatchupJob
from memwal.jobs.merge.apply import RefreshWatch, ShardMerger
from memwal.jobs.merge.apply.shared_commits import SharedMerger
from memwal.jobs.merge.plan import MergeLimits
from memwal.jobs.merge.ports import Fold, SharedFold, SharedKey
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.snapshot.apply import SnapshotRefresher
from memwal.model import FlushedGeneration, ShardId, ShardManifest, TableView
from memwal.ports import Steps
from memwal.run.lease import HeldLease
from memwal.run.progress import SILENT
from memwal.store.records.lease import StoredLeases
from memwal.store.shards.manifests import Fenced
from tests.simulation.lake import decode_changes, encode_changes
from tests.simulation.pylance_claims import PylanceClaims
from tests.simulation.row_rules import leave_out
from tests.simulation.scheduler import Actor
from tests.simulation.sim_ports import SimExpiry, SimSnapshots, SimStores, data_path
from tests.simulation.truth import USER_KEYS, Truth, Violation
from tests.support.fencing import ShardClaim

if TYPE_CHECKING:
    from tests.simulation.weather import Setup

GRACE_SECONDS = 600.0
RETENTION_SECONDS = 120.0
TURNS_REMEMBERED = 4
OUTCOMES = (MemWalError,)
"""How a job may end besides well. Anything else that is raised is a finding."""


@dataclass(kw_only=True)
class SimCommitQueue:
    """The CommitQueue port, which keeps nobody out: what has to be safe without it, has to be so.

    After a refused commit some turns are held, so that merges look again before they commit.
    """

    left: int = 0

    @contextmanager
    def turn(self) -> Iterator[bool]:
        held = self.left > 0
        self.left -= held
        yield held

    def lost(self) -> None:
        self.left = TURNS_REMEMBERED


@dataclass(frozen=True)
class WholeFolds:
    """The base table of a merger that folds all that is pending, or nothing."""

    stores: SimStores

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> Fold:
        (shard,) = view.shards
        if len(generations) < len(shard.pending):
            raise LostRace("a part of what is pending, while a refresh may have lowered progress")
        return self.stores.fold(view, shard_id, generations)

    def share(self, folds: Mapping[ShardId, Fold]) -> SharedFold | SharedKey | None:
        return self.stores.share(folds)


class UnrenewedLease(HeldLease):
    """A lease without a heartbeat."""

    def _start_heart(self) -> None:
        pass

    def _stop_heart(self) -> None:
        pass


@dataclass(kw_only=True)
class SimLease:
    """A run's lease, as an OpenTable has it; nobody renews a claim here."""

    leases: StoredLeases
    job: str
    seen: Counter[str]
    is_on: bool = True
    held: HeldLease | None = None

    def take(self) -> None:
        try:
            self.held = UnrenewedLease(self.leases, self.job) if self.is_on else None
        except LeaseHeld:
            self.seen["leases held"] += 1
            raise

    def pass_on(self, job: str, *, own_claim: bool) -> None:
        if self.held is not None:
            self.held.pass_on(self.leases, job, own_claim=own_claim)

    def is_unfenced(self) -> bool:
        return self.held is not None and self.held.is_unfenced

    def note_fenced(self) -> None:
        if self.held is not None:
            self.seen["refreshes fenced off"] += self.held.is_unfenced
            self.held.note_fenced()

    def check(self) -> None:
        if self.held is not None:
            self.held.check()

    def check_unbroken(self) -> None:
        try:
            if self.held is not None:
                self.held.check_unbroken()
        except LeaseHeld:
            self.seen["repairs left"] += 1
            raise

    def release(self) -> None:
        if self.held is not None:
            self.held.release()


def make_catchup_job(stores: SimStores, lease: SimLease) -> IndexCatchupJob:
    """Index catch-up; here no index is built in segments."""
    return IndexCatchupJob(
        name="t",
        views=stores,
        table=stores,
        clock=stores.clock,
        build=lambda tasks: (),
        take_lease=lease.take,
        before_commit=lease.check,
    )


@dataclass(kw_only=True)
class Jobs:
    """Makes the actors' bodies. `open` gives an actor its ports."""

    open: Callable[[Actor], SimStores]
    truth: Truth
    shards: list[ShardId]
    setup: Setup
    refreshed: Callable[[int], None]
    queue: SimCommitQueue = field(default_factory=SimCommitQueue)
    taken: dict[int, dict[ShardId, int]] = field(default_factory=dict)
    """What was flushed by the time that a snapshot says it is of."""
    seen: Counter[str] = field(default_factory=Counter)
    """Interesting things that came about."""

    # ---- writers

    def writer(self, shard: ShardId, puts: int) -> Callable[[Actor], None]:
        """One session: claim, replay, put and delete, flush, and end without a flush sometimes."""

        def body(actor: Actor) -> None:
            try:
                Session(stores=self.open(actor), jobs=self, shard=shard).run(puts)
                self.seen["writer sessions"] += 1
            except Fenced:
                self.seen["writers fenced"] += 1
            except OUTCOMES:
                self.seen["writers given up"] += 1

        return body

    # ---- jobs

    def steps_of(self, actor: Actor) -> Steps:
        """A job's own steps, before some of which it sleeps, for longer than some leases last."""
        is_slow = self.setup.job_stalls and actor.name.split("-")[0] in self.setup.slow_jobs

        def step(name: str) -> None:
            dice = actor.scheduler.dice
            if is_slow and dice.random() < self.setup.job_stalls:
                self.seen["jobs stalled"] += 1
                actor.scheduler.note(f"{actor.name}: stalls before {name}")
                actor.sleep(dice.choice((10.0, 20.0, 30.0, 400.0)))

        return step

    @contextmanager
    def lease_of(self, stores: SimStores, job: str) -> Iterator[SimLease]:
        """The lease of one run, which takes it once there is work; given back at the end."""
        lease = SimLease(leases=stores.leases, job=job, seen=self.seen)
        lease.is_on = self.setup.leases_on or job == "snapshot"
        try:
            yield lease
        finally:
            lease.release()

    @contextmanager
    def lease(self, stores: SimStores, job: str) -> Iterator[Callable[[], None]]:
        """The table's lease, taken at once; what is given is asked before each commit."""
        with self.lease_of(stores, job) as lease:
            lease.take()
            yield lease.check

    def merge(
        self, shards: Iterable[ShardId], limits: MergeLimits, *, whole: bool = False
    ) -> Callable[[Actor], None]:
        """`memwal merge`, its units one after the other. `whole`: all that is pending, or none."""

        def body(actor: Actor) -> None:
            stores = self.open(actor)
            try:
                view = stores.table()
                work = [s.shard_id for s in view.shards if s.pending and s.shard_id in shards]
                if not work:
                    return
                with self.lease_of(stores, "merge") as lease:
                    lease.take()
                    own = partial(lease.pass_on, "snapshot", own_claim=True)
                    fence = self._refresher(actor, stores, lease, own)
                    fence.fence_off(partial(lease.pass_on, "merge", own_claim=False))
                    watch = RefreshWatch(leases=stores.leases)
                    watched = self.setup.watched and not self.setup.leases_on
                    merger = ShardMerger(
                        views=stores,
                        table=WholeFolds(stores) if whole else stores,
                        clock=stores.clock,
                        limits=limits,
                        before_commit=watch.before_commit if watched else lease.check,
                        before_view=watch.before_view if watched else (lambda: None),
                        queue=self.queue,
                        steps=self.steps_of(actor),
                    )
                    if self.setup.shared:
                        results = SharedMerger(single=merger).run(work, MergeRequest())
                    else:
                        results = tuple(merger.run(shard, MergeRequest()) for shard in work)
                    for result in results:
                        self._merged(result)
            except OUTCOMES:
                return

        return body

    def _merged(self, result: ShardReport) -> None:
        if result.trace:
            raise AssertionError(result.trace)
        if result.exit_code == Corruption.exit_code:
            raise Violation(f"a merge calls a sound table corrupt: {result.error}")
        self.seen["merge commits"] += result.commits
        self.seen["merge commits shared"] += result.commits_shared
        self.seen["merges that lost a race"] += result.conflicts > 0
        self.seen["commits found landed"] += result.commits_found_landed
        self.seen["merges that ended in part"] += result.outcome == "partial"

    def index_catchup(self, actor: Actor) -> None:
        """`memwal index-catchup`."""
        stores = self.open(actor)
        try:
            with self.lease_of(stores, "index-catchup") as lease:
                done = make_catchup_job(stores, lease).run(stores.table())
            self.seen["catch-ups that lost a race"] += any(i.conflicts for i in done.indexes)
        except OUTCOMES:
            return

    def _refresher(
        self, actor: Actor, stores: SimStores, lease: SimLease, take_lease: Callable[[], None]
    ) -> SnapshotRefresher:
        before: dict[ShardId, int] = {}
        steps = self.steps_of(actor)

        def read() -> TableView:
            before.update({s: self.truth.flushed(s) for s in self.shards})
            return stores.table()

        def commits(millis: int) -> None:
            self.taken.setdefault(millis, dict(before))
            steps("land")

        return SnapshotRefresher(
            name="t",
            views=stores,
            snapshots=SimSnapshots(stores, commits),
            clock=stores.clock,
            read=read,
            take_lease=take_lease,
            before_commit=lease.check,
            before_repair=lease.check_unbroken,
            is_unfenced=lease.is_unfenced,
            note_fenced=lease.note_fenced,
            steps=steps,
        )

    def snapshot(self, actor: Actor) -> None:
        """`memwal snapshot`."""
        stores = self.open(actor)
        since: list[int] = []
        try:
            with self.lease_of(stores, "snapshot") as lease:

                def take_lease() -> None:
                    lease.take()
                    since.append(stores.lake.latest.number)

                refresher = self._refresher(actor, stores, lease, take_lease)
                refreshed = refresher.run(refresher.read())
                if since:
                    self.refreshed(since[0])
                self.seen["snapshots written"] += refreshed.outcome == "done"
                self.seen["progress repaired"] += refreshed.repairs
        except OUTCOMES:
            return

    def garbage(
        self, *, wal: bool, retention: bool, adopt: bool = False, full: bool = True
    ) -> Callable[[Actor], None]:
        """`memwal garbage --execute`; unless `full`, where something changed since a run before."""
        limits = GarbageLimits(
            grace_seconds=GRACE_SECONDS,
            wal=wal,
            adopt_orphans=adopt,
            sweep_seconds=5 * GRACE_SECONDS,
            sweep_objects_min=0,
            drops_in_flight_max=1,
            delete_call_objects_max=4,
            numbered_kept_min=1,
        )

        def body(actor: Actor) -> None:
            stores = self.open(actor)
            with suppress(*OUTCOMES), self.lease_of(stores, "garbage") as lease:
                deleter = Deleter(objects=stores.objects, limits=limits, before_commit=lease.check)
                table = TableGarbage(
                    uri=stores.objects.uri,
                    views=stores,
                    evidence=stores.evidence,
                    expiry=SimExpiry(stores, RETENTION_SECONDS, self.truth.cursors),
                    manifests=stores.manifests,
                    objects=stores.objects,
                    clock=stores.clock,
                    prove_store=lambda: None,
                    take_lease=lease.take,
                    before_commit=lease.check,
                    limits=limits,
                    acts=True,
                    retention_seconds=RETENTION_SECONDS if retention else None,
                    progress=SILENT,
                    remembered=None if full else stores.evidence.recall_sweep(),
                )
                table.preview(None if table.remembered is None else stores.base())
                self.seen["garbage passes by difference"] += table.by_difference
                collect_garbage([table], lambda batches: [deleter.run(b) for b in batches])
                self._count_garbage(table)
                if not any(d.error for d in table.dropped) and actor.name in (
                    self.truth.forks.values()
                ):
                    raise Violation("3: a drop that came too late left its manifest")

        return body

    def _count_garbage(self, table: TableGarbage) -> None:
        if table.broken is not None:
            raise table.broken
        self.seen["drops tried again"] += sum(d.attempts > 1 for d in table.dropped)
        self.seen["clocks found fast"] += table.ahead_nanos > 0
        for item in table.deleted:
            parts = item.path.split("/")
            by_folder = {
                "wal": "WAL entries",
                "manifest": "manifests",
                "lease": "claims",
                "checkpoints": "checkpoints",
            }
            kind = by_folder.get(parts[-2]) or {2: "shards", 3: "generations"}[len(parts)]
            self.seen[f"{kind} collected"] += item.error is None

    # ---- readers

    def reader(self, actor: Actor) -> None:
        """A merging read that takes its time: it must see some state that was flushed meanwhile.

        Every other one goes by the shard snapshot: then, or since that was taken.
        """
        stores = self.open(actor)
        began = {s: self.truth.flushed(s) for s in self.shards}
        started = actor.scheduler.now_seconds
        try:
            view = stores.from_snapshot() if actor.scheduler.dice.random() < 0.5 else None
            if view is None:
                view = stores.table()
            elif view.taken_at_millis is not None:
                began = self.taken[view.taken_at_millis]
                self.seen["readers by a snapshot"] += 1
            if view.broken:
                self.seen["readers that refused"] += 1
                return
            rows = {key: value for key, (value, _) in stores.rows(view.version).items()}
        except OUTCOMES:
            # Lance expires a version by its age, also one that was the latest a moment ago.
            self.seen["readers whose version was expired"] += 1
            return
        try:
            for shard in view.shards:
                for generation in shard.pending:
                    data = stores.objects.get(data_path(shard.shard_id, generation))
                    self.truth.rules.apply(rows, decode_changes(data))
        except Missing:
            if view.taken_at_millis is not None:
                return  # it reads the manifests then
            # Allowed for one that takes longer than the grace, which clocks that jump shorten.
            if (
                actor.scheduler.now_seconds - started < GRACE_SECONDS
                and not actor.scheduler.injected["clock_jump"]
                and not actor.scheduler.injected["stale_listing"]
            ):
                raise
            self.seen["readers slower than the grace"] += 1
            return
        except OUTCOMES:
            return
        if actor.scheduler.injected["stale_listing"]:
            return
        # What the store's clock says is purged; the reader's hides what it says.
        now, rules = stores.clock.now_nanos(), self.truth.rules
        rows, cut = leave_out(rows, view, now), max(actor.scheduler.now_nanos(), now)
        for place, shard in enumerate(self.shards):
            mine = rules.hide(
                {k: v for k, v in rows.items() if k < USER_KEYS and k % len(self.shards) == place},
                cut,
            )
            upto = range(began[shard], self.truth.flushed(shard) + 1)
            states = (self.truth.state(shard, g, view.version) for g in upto)
            true = [rules.hide(state, cut) for state in states]
            # By a snapshot, the deletes of a merge that is under way are seen before its rows.
            by_key = view.taken_at_millis is not None and all(
                any(mine.get(key) == state.get(key) for state in true)
                for key in mine.keys() | {key for state in true for key in state}
            )
            if mine not in true and not by_key:
                raise Violation(f"5: a reader of shard {shard[:4]} saw {mine}")
        self.seen["readers that saw a true state"] += 1


@dataclass(kw_only=True)
class Session:
    """A writer as the spec has it, over memwal's own fencing."""

    stores: SimStores
    jobs: Jobs
    shard: ShardId
    memtable: dict[int, int | None] = field(default_factory=dict)
    next_position: int = 1

    def run(self, puts: int) -> None:
        """Claim, replay, and work; raises Fenced when somebody took over."""
        dice = self.stores.actor.scheduler.dice
        foreign = dice.random() < self.jobs.setup.foreign
        claim = self._claimed_as_pylance() if foreign else self.open()
        for _ in range(puts):
            self.put(claim, self._changes())
            if dice.random() < self.jobs.setup.flushes:
                claim = self.flush(claim)
        if dice.random() < 0.7:
            self.flush(claim)

    def open(self) -> ShardClaim:
        """Claim the shard, and replay what is in no generation."""
        claim = self.stores.fencing.claim(self.shard)
        self._replay(claim.manifest, claim.next_position)
        return claim

    def _claimed_as_pylance(self) -> ShardClaim:
        claims = PylanceClaims(
            objects=self.stores.objects, manifests=self.stores.manifests, stall=self._stall
        )
        claim = claims.claim(self.shard)
        self._stall()
        entries, self.next_position = claims.replayed(claim)
        self.memtable = {}
        for data in entries:
            self._take_in(claim.manifest, data)
        return claim

    def _take_in(self, manifest: ShardManifest, data: bytes) -> None:
        """Replay an entry, unless it is in a generation though the replay position is below it."""
        if generation_of(data) >= manifest.current_generation:
            self.jobs.truth.rules.onto(self.memtable, decode_entry(data))

    def _stall(self) -> None:
        dice = self.stores.actor.scheduler.dice
        if dice.random() < self.jobs.setup.stalls:
            self.jobs.seen["writers stalled"] += 1
            self.stores.actor.scheduler.note(f"{self.stores.actor.name}: stalls")
            self.stores.actor.sleep(dice.choice((300.0, 700.0, 2000.0, 6000.0)))

    def _changes(self) -> dict[int, int | None]:
        dice = self.stores.actor.scheduler.dice
        place = self.jobs.shards.index(self.shard)
        found: dict[int, int | None] = {}
        for _ in range(dice.choice((1, 1, 2, 4))):
            key = dice.randrange(self.jobs.setup.keys) * len(self.jobs.shards) + place
            deleted = dice.random() < self.jobs.setup.deletes
            found[key] = None if deleted else self.jobs.truth.rules.put(dice.getrandbits(30))
        return found

    def _replay(self, manifest: ShardManifest, upto: int) -> None:
        self.memtable = {}
        for position in range(manifest.replay_after_wal_entry_position + 1, upto):
            data = self.stores.objects.get(layout.wal_entry_path(self.shard, position))
            self._take_in(manifest, data)
        self.next_position = upto

    def put(self, claim: ShardClaim, changes: dict[int, int | None]) -> None:
        """Append an entry; told to the client when it is stored."""
        data = encode_entry(changes, claim.writer_epoch, claim.manifest.current_generation)
        path = layout.wal_entry_path(self.shard, self.next_position)
        truth = self.jobs.truth
        self._stall()
        for _ in range(4):
            try:
                self.stores.objects.put_if_absent(path, data)
            except (AlreadyExists, StoreUnavailable) as error:
                try:
                    stored = self.stores.objects.get(path)
                except Missing:
                    continue
                if stored != data:
                    raise Fenced(f"position {self.next_position} is taken") from error
            truth.acknowledged[self.shard].add(self.next_position)
            truth.rules.onto(self.memtable, changes)
            self.next_position += 1
            return
        raise StoreUnavailable("the WAL could not be written")

    def flush(self, claim: ShardClaim) -> ShardClaim:
        """Write what is in memory as the current generation, then list it."""
        if not self.memtable:
            return claim
        last = self.next_position - 1
        number = claim.manifest.current_generation
        random_part = self.stores.actor.scheduler.dice.getrandbits(32)
        generation = FlushedGeneration(
            generation=number,
            path=f"{random_part:08x}_gen_{number}",
            in_memory_bytes=len(self.memtable) * 100,
            physical_rows=len(self.memtable),
        )
        if number == 1:
            self.stores.lake.flush_first(
                layout.generation_folder(self.shard, generation.path, number)
            )
        self.stores.objects.put_if_absent(
            data_path(self.shard, generation), encode_changes(self.memtable)
        )

        self._stall()
        self.jobs.truth.covered[self.shard, generation.path] = last

        def listed(manifest: ShardManifest) -> ShardManifest:
            return replace(
                manifest,
                current_generation=number + 1,
                replay_after_wal_entry_position=self._said(manifest, last),
                wal_entry_position_last_seen=last,
                flushed_generations=(*manifest.flushed_generations, generation),
            )

        claim = self.stores.fencing.update(claim, listed)
        self.memtable = {}
        return claim

    def _said(self, manifest: ShardManifest, last: int) -> int:
        """The replay position after a flush, which pylance understates when a memtable fills."""
        least, dice = manifest.replay_after_wal_entry_position, self.stores.actor.scheduler.dice
        if self.jobs.setup.understates and dice.random() < self.jobs.setup.understates:
            self.jobs.seen["replay positions understated"] += 1
            return max(least, last - dice.choice((1, 1, 2)))
        return last


def encode_entry(changes: dict[int, int | None], epoch: int, generation: int) -> bytes:
    """A WAL entry: an Arrow stream with the writer's epoch in its schema."""
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("n", pa.int64())],
        metadata={"writer_epoch": str(epoch), "generation": str(generation)},
    )
    batch = pa.record_batch(
        [pa.array(list(changes), pa.int64()), pa.array(list(changes.values()), pa.int64())],
        schema=schema,
    )
    out = io.BytesIO()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_batch(batch)
    return out.getvalue()


def generation_of(data: bytes) -> float:
    """The one that an entry was put for; a sentinel has none, and no rows."""
    with pa.ipc.open_stream(data) as stream:
        return float((stream.schema.metadata or {}).get(b"generation", "inf"))


def decode_entry(data: bytes) -> dict[int, int | None]:
    """Its rows; none of a sentinel's."""
    with pa.ipc.open_stream(data) as stream:
        table = stream.read_all()
    if not table.num_columns:
        return {}
    return dict(zip(table["id"].to_pylist(), table["n"].to_pylist(), strict=True))
