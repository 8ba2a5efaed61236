"""One table twice: the simulation's lake, and a real one that pylance makes. Keys are numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import pyarrow as pa

from memwal.jobs.compaction.store import LanceCompactionTable
from memwal.jobs.garbage.store import StoredGarbageEvidence
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.jobs.merge.job import open_merge_table
from memwal.jobs.merge.ports import Fold
from memwal.jobs.schema.plan import NEW, SchemaPlan
from memwal.jobs.schema.store import StoredSchemaTable
from memwal.jobs.snapshot.store import StoredSnapshots
from memwal.model import ColumnInfo, FlushedGeneration, MemWalState, ShardId, TableView
from memwal.testing import ManualClock, MemoryBucket
from tests.simulation.lake import Lake, encode_changes
from tests.simulation.sim_ports import SimExpiry, SimSnapshots, SimStores, data_path
from tests.simulation.upkeep_ports import SimCompactionTable
from tests.support.builders import Delete, Put, Table, make_table
from tests.support.fencing import claim_epoch

T = TypeVar("T")
Changes = Mapping[int, int | None]
"""What a generation does to keys; None deletes."""
BASE = {key: 1000 + key for key in range(10, 30)}
INDEXES = ("key_idx", "n_idx")


def fold(world: World, view: TableView, shard: int, generations: int) -> Fold:
    """A fold of a shard's oldest pending generations on a view, which may be old by now."""
    found = next(s for s in view.shards if s.shard_id == world.shards[shard])
    made: Fold = world.merge_table.fold(view, found.shard_id, found.pending[:generations])
    return made


def state(world: World) -> MemWalState:
    """Progress as the latest version has it."""
    return world.view().mem_wal


# ---- the lake


@dataclass
class _Free:
    """An actor that nobody holds back."""

    name: str = "writer"
    clock: ManualClock = field(default_factory=ManualClock)
    skew_seconds: float = 0.0

    @property
    def scheduler(self) -> _Free:
        return self

    def now_nanos(self) -> int:
        return self.clock.now_nanos()

    def stale(self, actor: object) -> bool:
        return False

    def step(self, what: str, effect: Callable[[], T]) -> T:
        return effect()


class LakeWorld:
    """The model that the simulation runs on."""

    def __init__(self, base: Mapping[int, int] = BASE) -> None:
        self._actor = _Free()
        self.lake = Lake(
            bucket=MemoryBucket(), now_nanos=self._actor.clock.now_nanos, indexes=INDEXES
        )
        self.stores = SimStores(self._actor, self.lake, lambda *_: None)  # type: ignore[arg-type]
        self.views = self.merge_table = self.indexes = self.stores
        self.compaction = SimCompactionTable(self.stores)
        self.snapshots = SimSnapshots(self.stores)
        self.evidence = self.stores.evidence
        self.shards = [ShardId(f"00000000-0000-4000-8000-00000000000{n}") for n in (1, 2)]
        self.lake.write("append", base, frozenset())
        for name in INDEXES:
            self.indexes.append([name], 0)
        for shard in self.shards:
            claim_epoch(self.stores.manifests, shard)

    def view(self) -> TableView:
        return self.stores.table()

    def flush(self, shard: ShardId, changes: Changes) -> int:
        manifests = self.stores.manifests
        manifest = manifests.latest(shard)
        assert manifest is not None
        number = manifest.current_generation
        new = FlushedGeneration(
            generation=number,
            path=f"{number:08x}_gen_{number}",
            in_memory_bytes=100,
            physical_rows=len(changes),
        )
        self.stores.objects.put_if_absent(data_path(shard, new), encode_changes(changes))
        manifests.commit(
            manifest,
            replace(manifest, current_generation=number + 1,
                  flushed_generations=(*manifest.flushed_generations, new)),
        )  # fmt: skip
        return number

    def rows(self) -> dict[int, int]:
        return {key: value for key, (value, _) in self.lake.latest.rows.items()}

    def append(self, rows: Mapping[int, int]) -> None:
        self.lake.write("append", rows, frozenset())

    def delete(self, key: int) -> None:
        self.lake.write("delete", {}, frozenset({key}))

    def update(self, key: int, n: int) -> None:
        self.lake.write("update", {key: n}, frozenset())

    def alter(self, version: int) -> None:
        self.lake.alter(version, 1)

    def tag(self, name: str, version: int) -> None:
        self.lake.tag(name, version)

    def branch(self, name: str, version: int) -> None:
        self.lake.branch(name, version)
        self.lake.refer(name)

    def expire(self) -> None:
        self._actor.clock.advance(10.0)
        SimExpiry(self.stores).expire_versions(self.lake.aged(1.0))

    def versions(self) -> list[int]:
        return sorted(self.lake.versions)


# ---- the real thing


class LanceWorld:
    """A real table, through the stores that the jobs open."""

    def __init__(self, uri: object, options: Mapping[str, str] | None = None) -> None:
        self.table: Table = make_table(uri, rows=list(BASE), shards=2, options=options)
        dataset = self.table.dataset
        dataset.create_scalar_index("k", "BTREE", name="key_idx")
        dataset.create_scalar_index("n", "BTREE", name="n_idx")
        self.shards = self.table.shards
        stores = self.table.stores
        self.merge_table, self.indexes = open_merge_table(stores), LanceIndexTable(stores.tables)
        self.compaction, self.snapshots = (
            LanceCompactionTable(stores.tables),
            StoredSnapshots(stores.objects, stores.tables),
        )
        self.evidence = StoredGarbageEvidence(stores.objects)
        self.views = stores.views
        self._tables = stores.tables
        self._numbers = {self.table.kind.key(i)[0]: i for i in range(2000)}

    def view(self) -> TableView:
        return self.views.table()

    def flush(self, shard: ShardId, changes: Changes) -> int:
        puts = [Put([key], value) for key, value in changes.items() if value is not None]
        gone = [key for key, value in changes.items() if value is None]
        return self.table.flush(shard, *puts, *([Delete(gone)] if gone else []))

    def rows(self) -> dict[int, int]:
        return {self._numbers[key[0]]: row["n"] for key, row in self.table.base_rows().items()}

    def append(self, rows: Mapping[int, int]) -> None:
        self.table.dataset.insert(self._arrow(rows))

    def delete(self, key: int) -> None:
        self.table.dataset.delete(f"k = {self._key(key)}")

    def update(self, key: int, n: int) -> None:
        self.table.dataset.update({"n": str(n)}, where=f"k = {self._key(key)}")

    def alter(self, version: int) -> None:
        """The commit of `memwal schema`, planned on this version: a column with values."""
        columns = self.view().columns
        added = ColumnInfo(field_id=NEW, name="added", type_text="int64", nullable=True)
        stored = StoredSchemaTable(self.table.stores)
        plan = SchemaPlan(columns=columns, wanted=(*columns, added), defaults={"added": "7"})
        stored.commit(version, plan)

    def tag(self, name: str, version: int) -> None:
        self.table.dataset.tags.create(name, version)

    def branch(self, name: str, version: int) -> None:
        self.table.dataset.create_branch(name, version)

    def expire(self) -> None:
        time.sleep(0.002)  # versions of this very millisecond are not older than nothing
        self._tables.base().cleanup_old_versions(
            older_than=timedelta(0), error_if_tagged_old_versions=False
        )

    def versions(self) -> list[int]:
        return self.table.versions()

    def _key(self, key: int) -> int:
        return int(self.table.kind.key(key)[0])

    def _arrow(self, rows: Mapping[int, int]) -> pa.Table:
        made: Sequence[Mapping[str, Any]] = [self.table.row(key, n) for key, n in rows.items()]
        return pa.Table.from_pylist(list(made), schema=self.table.dataset.schema)


World = LakeWorld | LanceWorld
