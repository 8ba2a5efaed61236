"""The worlds that the merge suites run in: the fakes, the simulation's table, and pylance's."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memwal.jobs.merge.apply import ShardMerger
from memwal.model import ShardId
from memwal.testing import ManualClock
from memwal.testing.tables import MemoryTable
from tests.store.race_worlds import LakeWorld
from tests.support.builders import Delete, Put, Table, make_table

BASE = range(10)


@dataclass
class Fake:
    """A MemoryTable with the part of `builders.Table` that the suite uses."""

    table: MemoryTable = field(
        default_factory=lambda: MemoryTable(
            clock=ManualClock(), base={(k,): {"k": k, "n": 1000 + k} for k in BASE}
        )
    )
    shards: list[ShardId] = field(
        default_factory=lambda: [ShardId(str(uuid.UUID(int=n))) for n in (1, 2)]
    )

    def flush(self, shard: ShardId, *ops: Put | Delete) -> int:
        changes: dict[tuple[object, ...], dict[str, object] | None] = {}
        for op in ops:
            for place, key in enumerate(op.keys):
                row = {"k": key, "n": op.n + place} if isinstance(op, Put) else None
                changes[(key,)] = row
        return self.table.flush(shard, changes)

    def merger(self, **settings: Any) -> ShardMerger:
        ports = {"views": self.table, "table": self.table, "clock": self.table.clock}
        return ShardMerger(**{**ports, **settings})

    def progress(self) -> dict[ShardId, int]:
        return dict(self.table.versions[-1].merged)

    def numbers(self) -> dict[object, object]:
        return {row["k"]: row["n"] for row in self.table.versions[-1].rows.values()}


@dataclass
class OnTheLake:
    """The simulation's table, which the simulated merger folds as the fake's does."""

    world: LakeWorld = field(default_factory=lambda: LakeWorld({k: 1000 + k for k in BASE}))

    @property
    def shards(self) -> list[ShardId]:
        return self.world.shards

    def flush(self, shard: ShardId, *ops: Put | Delete) -> int:
        changes: dict[int, int | None] = {}
        for op in ops:
            for place, key in enumerate(op.keys):
                changes[key] = op.n + place if isinstance(op, Put) else None
        return self.world.flush(shard, changes)

    def merger(self, **settings: Any) -> ShardMerger:
        stores = self.world.stores
        ports = {"views": stores, "table": stores, "clock": ManualClock()}
        return ShardMerger(**{**ports, **settings})

    def progress(self) -> dict[ShardId, int]:
        return dict(self.world.lake.latest.merged)

    def numbers(self) -> dict[int, int]:
        return self.world.rows()


@dataclass
class Real:
    """A real table, keyed by small integers."""

    table: Table

    @property
    def shards(self) -> list[ShardId]:
        return self.table.shards

    def flush(self, shard: ShardId, *ops: Put | Delete) -> int:
        return self.table.flush(shard, *ops)

    def merger(self, **settings: Any) -> ShardMerger:
        return self.table.merger(**{"clock": ManualClock(), **settings})

    def progress(self) -> dict[ShardId, int]:
        return self.table.progress()

    def numbers(self) -> dict[object, object]:
        number = {self.table.kind.key(i): i for i in range(200)}
        return {number[key]: row["n"] for key, row in self.table.base_rows().items()}


Where = Fake | OnTheLake | Real


def where(kind: str, folder: Path) -> Where:
    """The world of that kind, with two shards: memory, lake, or a table in the folder."""
    if kind == "memory":
        return Fake()
    if kind == "lake":
        return OnTheLake()
    return Real(make_table(folder / "t", rows=BASE, shards=2))
