"""The ports of one actor: every call is a step of the scheduler, and then the real store's code.

Shard manifests, table manifests, WAL entries, evidence and leases go through memwal's own stores
over objects in memory; only Lance itself is played by `lake`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar, cast

from memwal.errors import LostRace, Missing, NotATable
from memwal.format import codec, layout
from memwal.indexes import FragmentFacts, IndexFacts, SegmentFacts, TableIndexes
from memwal.jobs.garbage.model import Expired
from memwal.jobs.garbage.store import StoredGarbageEvidence
from memwal.jobs.index_catchup.apply import BuiltSegment
from memwal.jobs.merge.ports import Fold
from memwal.jobs.snapshot.plan import Stored
from memwal.model import (
    ColumnInfo,
    FlushedGeneration,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardView,
    StoredFile,
    TableView,
    VersionManifest,
)
from memwal.rows.expire import EXPIRE_KEY
from memwal.store.records.lease import StoredLeases
from memwal.store.shards.inherited import InheritedProgress
from memwal.store.shards.listing import list_shards
from memwal.store.shards.manifests import ShardManifests
from memwal.store.shards.snapshots import ShardSnapshots
from memwal.store.tables.manifests import TableManifests
from memwal.testing import Call, HookedObjects, MemoryObjects
from tests.simulation.lake import KEY_FIELD, Lake, decode_changes
from tests.simulation.manifest_names import ClaimLimits
from tests.simulation.row_rules import NEWEST_WINS, RowRules
from tests.simulation.scheduler import Actor, ActorClock, Violation
from tests.simulation.sim_merge import SimFold, SimSharedFold, shared
from tests.support.fencing import ShardFencing

T = TypeVar("T")

Watch = Callable[[str, str, bytes | None], None]
"""Told of every object that an actor writes, or deletes (None)."""
LISTING_LAG_NANOS = 5 * 10**9
LATEST_ATTEMPTS_MAX = 3
_AGED = (ColumnInfo(field_id=KEY_FIELD + 2, name="at", type_text="timestamp[s]", nullable=True),)


def sim_objects(
    actor: Actor, lake: Lake, watch: Watch, claims: ClaimLimits | None
) -> HookedObjects:
    """The Objects port of one actor over the shared bucket: each call is a step of its own."""
    inner = MemoryObjects(bucket=lake.bucket, clock=_TrueClock(actor=actor), uri=lake.uri)

    def watched(call: Call, effect: Callable[[], T]) -> T:
        if call.operation == "delete":
            for path in call.paths:
                watch(actor.name, path, None)
        if claims is not None and call.operation == "put_if_absent":
            claims.check(call)
        result = effect()
        if claims is not None and call.operation == "get":
            claims.looked(call.paths[0], cast("bytes", result))
        if call.data is not None:
            watch(actor.name, call.paths[0], call.data)
        if call.operation == "list" and actor.scheduler.stale(actor):
            newest = actor.scheduler.now_nanos() - LISTING_LAG_NANOS
            listed = cast("tuple[StoredFile, ...]", result)
            return cast("T", tuple(i for i in listed if i.modified_at_nanos <= newest))
        return result

    def stepped(call: Call, effect: Callable[[], T]) -> T:
        return actor.step(_named(call), lambda: watched(call, effect))

    return HookedObjects(inner, stepped)


def _named(call: Call) -> str:
    if call.operation == "delete":
        return f"delete {call.paths[0]}, {len(call.paths)} objects" if call.paths else "delete none"
    return f"{call.operation} {call.paths[0]}"


class _TrueClock(ActorClock):
    """The store's own clock, which stamps objects: no host's skew is in it."""

    def now_nanos(self) -> int:
        return self.actor.scheduler.now_nanos()


class _Inline(Executor):
    """A pool that is no thread: an actor is one already, and to start another costs more than all
    that it reads.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
        return done


@dataclass(frozen=True, kw_only=True)
class Restore:
    """What Lance records of a restore."""

    version: int


@dataclass(frozen=True)
class Clone:
    """What Lance records of a clone."""


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """What Lance records of a commit."""

    operation: Restore | Clone | None


class SimStores:
    """What a job opens: all ports of one actor."""

    def __init__(
        self,
        actor: Actor,
        lake: Lake,
        watch: Watch,
        rules: RowRules = NEWEST_WINS,
        claims: ClaimLimits | None = None,
        lease_seconds: Sequence[float] = (20.0, 300.0, 3600.0),
    ) -> None:
        self.actor = actor
        self.lease_seconds = lease_seconds
        self.rules = rules
        self.lake = lake
        self.clock = ActorClock(actor=actor)
        self.objects = sim_objects(actor, lake, watch, claims)
        self.manifests = ShardManifests(self.objects)
        self.table_manifests = TableManifests(self.objects)
        self.fencing = ShardFencing(self.objects, self.manifests)
        self.inherited = InheritedProgress(self.objects, self, self.table_manifests, readers_max=1)
        self.evidence = StoredGarbageEvidence(
            self.objects, readers_max=1, make_pool=lambda _: _Inline()
        )

    @cached_property
    def leases(self) -> StoredLeases:
        # Each run has a setting of its own: nobody may judge another's claim by theirs.
        length = random.Random(f"lease {self.actor.name}").choice(self.lease_seconds)
        return StoredLeases(self.objects, self.clock, ttl_seconds=length, holder=self.actor.name)

    # ---- Views

    def table(self, *, probed: bool = False) -> TableView:
        return self._with_shards(self._base())

    def read_shards(self, shard_ids: Sequence[ShardId]) -> Sequence[ShardManifest | None]:
        return [self.manifests.latest(shard_id) for shard_id in shard_ids]

    def shard(self, shard_id: ShardId) -> TableView:
        view = self._base()
        manifest = self.manifests.latest(shard_id)
        if manifest is None:
            raise NotATable(f"shard {shard_id} has no manifest")
        view = self._add(view, [manifest])
        if view.broken:
            raise view.broken[0].error
        return view

    def shards(self, shard_ids: Sequence[ShardId]) -> TableView:
        view = self._base()
        return self._add(view, self.read_shards(shard_ids))

    def base(self) -> TableView:
        return self._base()

    def list_shards(self, view: TableView) -> tuple[TableView, Sequence[ShardId]]:
        return view, list_shards(self.objects, folders_only=True).shards

    def add_shards(
        self,
        view: TableView,
        shard_ids: Iterable[ShardId],
        listed: Mapping[ShardId, Sequence[StoredFile]],
    ) -> TableView:
        return self._add(view, self.read_shards(sorted(shard_ids)))

    def table_version(self) -> int:
        return self.actor.step("table.latest", lambda: self.lake.latest.number)

    def manifest(self, version: int) -> VersionManifest:
        return self.table_manifests.read(version)

    def mem_wal(self, version: int) -> MemWalState:
        state = self.table_manifests.read(version).mem_wal
        if state is None:
            raise NotATable(f"version {version} has no MemWAL index")
        return state

    def flushed_at_nanos(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        path = data_path(shard_id, generation)
        if not self.objects.exists(path):
            raise Missing(path)
        return self.actor.scheduler.now_nanos()

    def mem_wal_since_nanos(self, view: TableView, not_after_nanos: int) -> int | None:
        return 0

    def at(self, version: int) -> TableView:
        """A version, with every shard as it is now. Raises Missing."""
        return self._with_shards(self._base(version))

    def from_snapshot(self) -> TableView | None:
        """The latest version with its shards by the snapshot; None where that can't be used."""
        view = self._base()
        data = ShardSnapshots(self.objects).read_bytes(view.mem_wal)
        if isinstance(data, str):
            return None
        shards = tuple(_shard_view(view, m) for m in decode_snapshot(data))
        return replace(view, shards=shards, taken_at_millis=view.mem_wal.snapshot_ts_millis)

    def _with_shards(self, view: TableView) -> TableView:
        listed = list_shards(self.objects, folders_only=True).shards
        return self._add(view, self.read_shards(listed))

    def _add(self, view: TableView, found: Sequence[ShardManifest | None]) -> TableView:
        shards = (_shard_view(view, m) for m in found if isinstance(m, ShardManifest))
        return self.inherited.part(replace(view, shards=tuple(shards)))

    def transaction(self, version: int) -> Transaction | None:
        """Lance's record of the commit that made a version; None where it is gone."""

        def look() -> Transaction | None:
            try:
                made = self.lake.version(version)
            except Missing:
                return None
            if made.restored is not None:
                return Transaction(operation=Restore(version=made.restored))
            return Transaction(operation=Clone() if made.kind == "clone" else None)

        return self.actor.step(f"transaction of {version}", look)

    def _latest(self) -> VersionManifest:
        """Taken anew when it is expired in between, as StoredViews does."""
        for _ in range(LATEST_ATTEMPTS_MAX):
            with suppress(Missing):
                return self.table_manifests.read(self.table_version())
        raise Missing("the latest version was expired again and again")

    def _base(self, at: int | None = None) -> TableView:
        manifest = self._latest() if at is None else self.table_manifests.read(at)
        version = manifest.version
        if manifest.mem_wal is None:
            raise NotATable(f"version {version} has no MemWAL index")
        if self.rules.expire is not None:
            config = {**manifest.config, EXPIRE_KEY: self.rules.expire.as_text()}
            manifest = replace(manifest, config=config)
        return TableView(
            uri=self.objects.uri,
            version=version,
            primary_key=self.rules.primary_key,
            columns=(
                ColumnInfo(
                    field_id=KEY_FIELD, name="id", type_text=self.lake.key_type, nullable=False
                ),
                ColumnInfo(field_id=KEY_FIELD + 1, name="n", type_text="int64", nullable=True),
                *_AGED[: self.rules.expire is not None],
            ),
            rows=len(self.lake.latest.rows),
            manifest=manifest,
            mem_wal=manifest.mem_wal,
            shards=(),
            policy_text=self.rules.policy_text,
        )

    # ---- MergeTable

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> SimFold:
        changes: dict[int, int | None] = {}
        deleted: set[int] = set()
        first: dict[int, int | None] = {}
        for generation in generations:
            read = decode_changes(self.objects.get(data_path(shard_id, generation)))
            first = first or read
            self.rules.onto(changes, read)
            deleted |= {key for key, value in read.items() if value is None}
        return SimFold(
            stores=self,
            read=view.version,
            shard_id=shard_id,
            generations=len(generations),
            changes=changes,
            anchors=frozenset(first.keys() - deleted),
            base=self.base_rows(view.version),
        )

    def share(self, folds: Mapping[ShardId, Fold]) -> SimSharedFold | None:
        return shared(self, [fold for fold in folds.values() if isinstance(fold, SimFold)])

    def rows(self, version: int) -> Mapping[int, tuple[int, int]]:
        """The rows of a version, as a scan reads them. Raises Missing when it was expired."""
        return self.actor.step(f"scan {version}", lambda: self.lake.version(version).rows)

    def base_rows(self, version: int) -> Mapping[int, tuple[int, int]]:
        """The same for a merge: Lance opens no version that was expired."""
        try:
            return self.rows(version)
        except Missing as error:
            raise LostRace(str(error)) from None

    # ---- IndexTable

    def facts(self, version: int) -> TableIndexes:
        def look() -> TableIndexes:
            seen = self.lake.version(version)
            return TableIndexes(
                version=version,
                fragments=tuple(
                    FragmentFacts(fragment_id=f, rows=n) for f, n in sorted(seen.fragments.items())
                ),
                indexes=tuple(
                    IndexFacts(
                        name=name,
                        kind="BTREE",
                        columns=("id",),
                        segments=(SegmentFacts(uuid=name, fragment_ids=covered),),
                    )
                    for name, covered in seen.covered.items()
                ),
            )

        return self.actor.step(f"index facts {version}", look)

    def record(self, name: str) -> None:
        self._index(self.table_version(), None)

    def append(self, names: Sequence[str], segments_to_merge: int) -> None:
        version = self.table_version()
        for name in names:
            self._index(version, name)

    def retrain(self, name: str, segments_to_merge: int) -> None:
        self._index(self.table_version(), name)

    def commit_segments(self, version: int, name: str, segments: Sequence[BuiltSegment]) -> None:
        self._index(version, name)

    def _index(self, version: int, name: str | None) -> None:
        self.actor.step(f"index {name}", lambda: self.lake.index(version, name))


@dataclass(frozen=True)
class SimSnapshots:
    """The Snapshots port."""

    stores: SimStores
    taken: Callable[[int], None] = lambda millis: None
    """Told the time that each snapshot is said to be of, right before it is committed."""

    def compare(self, state: MemWalState, data: bytes) -> Stored:
        if state.inline_snapshots is None:
            return Stored.NONE
        if state.inline_snapshots != data:
            return Stored.OTHER
        is_confirmed = ShardSnapshots(self.stores.objects).is_confirmed(state, data)
        return Stored.SAME if is_confirmed else Stored.UNCONFIRMED

    def confirm(self, *, taken_at_millis: int, index_uuid: str, data: bytes) -> None:
        ShardSnapshots(self.stores.objects).confirm(
            taken_at_millis=taken_at_millis, index_uuid=index_uuid, data=data
        )

    def encode(self, manifests: Sequence[ShardManifest], specs: object) -> bytes:
        return b"|".join(
            f"{m.shard_id}:{m.version}:{codec.encode_shard_manifest(m).hex()}".encode()
            for m in manifests
        )

    def commit(
        self,
        *,
        version: int,
        merged: Mapping[ShardId, int],
        data: bytes,
        num_shards: int,
        index_uuid: str,
        taken_at_millis: int,
        **rest: Any,
    ) -> int:
        self.taken(taken_at_millis)
        landed = self.stores.actor.step(
            f"replace the MemWAL entry of {version}, raising {len(merged)}",
            lambda: self.stores.lake.replace_entry(
                version, merged, data, num_shards, index_uuid, taken_at_millis
            ),
        )
        return landed.number

    def is_turned_back(self, version: int) -> bool | None:
        def look() -> bool | None:
            try:
                return self.stores.lake.version(version).kind in ("restore", "overwrite")
            except Missing:
                return None

        return self.stores.actor.step(f"what made {version}", look)

    def fragments_and_rows(self, version: int) -> tuple[int, int]:
        def look() -> tuple[int, int]:
            seen = self.stores.lake.version(version)
            return len(seen.fragments), len(seen.rows)

        return self.stores.actor.step(f"count {version}", look)


def decode_snapshot(data: bytes) -> Iterator[ShardManifest]:
    """What `SimSnapshots.encode` wrote."""
    for part in data.decode().split("|") if data else ():
        shard, version, text = part.split(":")
        yield codec.decode_shard_manifest(
            bytes.fromhex(text), shard_id=ShardId(shard), version=int(version)
        )


def _shard_view(view: TableView, manifest: ShardManifest) -> ShardView:
    return ShardView(
        manifest=manifest, merged_generation=view.mem_wal.merged.get(manifest.shard_id, 0)
    )


def data_path(shard_id: ShardId, generation: FlushedGeneration) -> str:
    """Where a generation's rows are."""
    folder = layout.generation_folder(shard_id, generation.path, generation.generation)
    return f"{folder}/data/rows.lance"


@dataclass(frozen=True)
class SimExpiry:
    """Lance's own cleanup of old versions.

    With a retention, none may go that is younger, or that a cursor needs.
    """

    stores: SimStores
    retention_seconds: float | None = None
    cursors: Mapping[str, int] = field(default_factory=dict)

    def check_expirable(self) -> None:
        """No links here."""

    def expire_versions(self, versions: Set[int]) -> Expired:
        def expire() -> int:
            gone = self.stores.lake.expire(versions)
            self._check(max((v.at_nanos for v in gone), default=0))
            self._check_cursors(max((v.number for v in gone), default=0))
            return len(gone)

        count = self.stores.actor.step("expire versions", expire)
        return Expired(versions=count, size_bytes=0)

    def _check(self, newest_nanos: int) -> None:
        scheduler = self.stores.actor.scheduler
        age = (scheduler.now_nanos() - newest_nanos) / 1e9
        if self.retention_seconds is None or scheduler.injected["clock_jump"]:
            return
        if age < self.retention_seconds:
            raise Violation(f"6: a version of {age:g} s was expired")

    def _check_cursors(self, newest: int) -> None:
        for name, version in self.cursors.items():
            injected = self.stores.actor.scheduler.injected
            excused = injected["clock_jump"] or injected["stale_listing"]
            if newest >= version and not excused:
                raise Violation(f"6: version {newest} was expired, cursor {name} is at {version}")
