"""A fake base table with shards, in memory: the Views and MergeTable ports. Shipped.

Commits race as in pylance with the scan join. A commit from an old version lands on top of newer
ones that touched none of its keys; it fails if one did, or if its mark is not above the recorded
one. Deleting an absent key touches nothing: the trap that the merge plan guards against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from memwal.errors import LostRace, Missing, NotATable
from memwal.jobs.merge.plan import Deletes, FoldFacts
from memwal.jobs.merge.ports import CommitStats, Fold
from memwal.model import (
    ColumnInfo,
    FlushedGeneration,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardView,
    TableView,
    VersionManifest,
)
from memwal.ports import Clock

Key = tuple[object, ...]
Row = Mapping[str, object]
Changes = Mapping[Key, Row | None]
"""What a generation did to each key: its row, or None for a delete."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Version:
    rows: Mapping[Key, Row]
    merged: Mapping[ShardId, int]
    touched: frozenset[Key] = frozenset()


@dataclass(kw_only=True)
class MemoryTable:
    """One table, where `versions[i]` is version i + 1."""

    clock: Clock
    base: Mapping[Key, Row] = field(default_factory=dict)
    key_type: str = "int64"
    uri: str = "memory://table"
    changes: dict[ShardId, list[Changes]] = field(default_factory=dict)
    lost: set[tuple[ShardId, int]] = field(default_factory=set)
    doubles: set[Key] = field(default_factory=set)
    """Keys that the base holds more than once, until they are deleted."""
    versions: list[_Version] = field(init=False)

    def __post_init__(self) -> None:
        self.versions = [_Version(rows=dict(self.base), merged={})]

    def flush(self, shard_id: ShardId, changes: Changes) -> int:
        """Flush a generation as a writer does, and return its number."""
        self.changes.setdefault(shard_id, []).append(dict(changes))
        return len(self.changes[shard_id])

    # ---- Views

    def table_version(self) -> int:
        """The latest version."""
        return len(self.versions)

    def table(self) -> TableView:
        """The table with every shard."""
        return self._view(tuple(self.changes))

    def shard(self, shard_id: ShardId) -> TableView:
        """The table with one shard."""
        if shard_id not in self.changes:
            raise NotATable(f"{self.uri}: shard {shard_id} has no manifest")
        return self._view((shard_id,))

    def shards(self, shard_ids: Sequence[ShardId]) -> TableView:
        """The table with some shards."""
        return self._view(tuple(s for s in shard_ids if s in self.changes))

    def mem_wal(self, version: int) -> MemWalState:
        """The merge progress of one version."""
        return MemWalState(
            index_uuid="",
            created_at_millis=0,
            merged=self.versions[version - 1].merged,
            index_catchup={},
        )

    def flushed_at_nanos(self, shard_id: ShardId, generation: FlushedGeneration) -> int:
        """Always now: every generation counts as just flushed."""
        return self.clock.now_nanos()

    def mem_wal_since_nanos(self, view: TableView, not_after_nanos: int) -> int | None:
        """Always 0: the MemWAL has existed from the beginning."""
        return 0

    def _view(self, shards: tuple[ShardId, ...]) -> TableView:
        version = self.table_version()
        state = self.mem_wal(version)
        return TableView(
            uri=self.uri,
            version=version,
            primary_key=("id",),
            columns=(ColumnInfo(field_id=0, name="id", type_text=self.key_type, nullable=False),),
            rows=len(self.versions[-1].rows),
            manifest=VersionManifest(version=version, timestamp_nanos=0, mem_wal=state),
            mem_wal=state,
            shards=tuple(
                ShardView(manifest=self._manifest(s), merged_generation=state.merged.get(s, 0))
                for s in shards
            ),
        )

    def _manifest(self, shard_id: ShardId) -> ShardManifest:
        return ShardManifest(
            shard_id=shard_id,
            version=len(self.changes[shard_id]) + 1,
            writer_epoch=1,
            current_generation=len(self.changes[shard_id]) + 1,
            flushed_generations=tuple(
                FlushedGeneration(
                    generation=number,
                    path=f"{number:08x}_gen_{number}",
                    in_memory_bytes=len(changes),
                    physical_rows=len(changes),
                )
                for number, changes in enumerate(self.changes[shard_id], start=1)
            ),
        )

    # ---- MergeTable

    def fold(
        self, view: TableView, shard_id: ShardId, generations: Sequence[FlushedGeneration]
    ) -> MemoryFold:
        """Fold generations against the view's version."""
        folded: dict[Key, Row | None] = {}
        deleted: set[Key] = set()
        for generation in generations:
            if (shard_id, generation.generation) in self.lost:
                raise Missing(f"{self.uri}: shard {shard_id}: {generation.path} is gone")
            changes = self.changes[shard_id][generation.generation - 1]
            folded.update(changes)
            deleted.update(key for key, row in changes.items() if row is None)
        first = self.changes[shard_id][generations[0].generation - 1]
        return MemoryFold(
            table=self,
            version=view.version,
            shard_id=shard_id,
            generations=len(generations),
            changes=folded,
            anchors=frozenset(first.keys() - deleted),
        )

    def share(self, folds: Mapping[ShardId, Fold]) -> MemorySharedFold | None:
        """Several shards' folds as one; None if two of them have a key in common."""
        members = [fold for fold in folds.values() if isinstance(fold, MemoryFold)]
        keys = [key for fold in members for key in fold.changes]
        if len(members) < len(folds) or len(keys) > len(set(keys)):
            return None
        return MemorySharedFold(table=self, members=tuple(members))

    def land(self, version: int, made: _Version) -> int:
        """Commit from `version`, as Lance does without retries. Raises LostRace."""
        for other in self.versions[version:]:
            if other.touched & made.touched:
                raise LostRace("Too many concurrent writers. Attempted 0 retries.")
        latest = self.versions[-1]
        for shard, mark in made.merged.items():
            if mark <= latest.merged.get(shard, 0):
                raise LostRace(f"Stale SSTable compaction for shard {shard}")
        rows = {k: r for k, r in latest.rows.items() if k not in made.touched}
        rows.update(made.rows)
        self.versions.append(
            _Version(rows=rows, merged={**latest.merged, **made.merged}, touched=made.touched)
        )
        return len(self.versions)


@dataclass(kw_only=True)
class MemoryFold:
    """The Fold port over a MemoryTable."""

    table: MemoryTable
    version: int
    shard_id: ShardId
    generations: int
    changes: Changes
    anchors: frozenset[Key]
    bytes_read: int = 0

    @property
    def facts(self) -> FoldFacts:
        """What the plan needs."""
        base = self._base
        return FoldFacts(
            generations=self.generations,
            live_rows=len(self._live),
            tombstones=len(self.changes) - len(self._live),
            anchored=bool(self.anchors),
            anchored_in_base=bool(self.anchors & base.keys()),
            key_types=(self.table.key_type,),
        )

    def rebase(self, view: TableView) -> MemoryFold:
        """The same fold on a newer version."""
        return replace(self, version=view.version)

    @property
    def double_keys(self) -> int:
        """How many live keys the base holds more than once."""
        return len(self.table.doubles & self._live.keys())

    def delete_pass(self) -> tuple[int, int]:
        """Delete the tombstoned and double keys that this version has."""
        gone = self._dead | frozenset(self.table.doubles & self._live.keys())
        if gone:
            self.version = self.table.land(self.version, _Version(rows={}, merged={}, touched=gone))
            self.table.doubles -= gone
        return self.version, len(gone)

    def commit(self, deletes: Deletes, mark: int) -> CommitStats:
        """Write the winners and the mark."""
        self.table.land(self.version, self.made(deletes, mark))
        return self.stats(deletes)

    def made(self, deletes: Deletes, mark: int) -> _Version:
        """What the commit writes."""
        touched = frozenset(self._live) | self._gone(deletes)
        return _Version(rows=self._live, merged={self.shard_id: mark}, touched=touched)

    def stats(self, deletes: Deletes) -> CommitStats:
        """What the commit did."""
        updated = len(self._live.keys() & self._base.keys())
        return CommitStats(
            rows_inserted=len(self._live) - updated,
            rows_updated=updated,
            rows_deleted=len(self._gone(deletes)),
        )

    @property
    def _base(self) -> Mapping[Key, Row]:
        return self.table.versions[self.version - 1].rows

    @property
    def _live(self) -> dict[Key, Row]:
        return {key: row for key, row in self.changes.items() if row is not None}

    @property
    def _dead(self) -> frozenset[Key]:
        """Tombstoned keys that the base has."""
        return frozenset(k for k, row in self.changes.items() if row is None and k in self._base)

    def _gone(self, deletes: Deletes) -> frozenset[Key]:
        return self._dead if deletes is Deletes.SAME_COMMIT else frozenset()


@dataclass(frozen=True, kw_only=True)
class MemorySharedFold:
    """The SharedFold port over a MemoryTable."""

    table: MemoryTable
    members: tuple[MemoryFold, ...]
    bytes_read: int = 0

    @property
    def double_keys(self) -> int:
        """How many live keys the base holds more than once."""
        return sum(fold.double_keys for fold in self.members)

    def commit(self, marks: Mapping[ShardId, int]) -> Mapping[ShardId, CommitStats]:
        """Write all winners and all marks."""
        parts = [fold.made(Deletes.SAME_COMMIT, marks[fold.shard_id]) for fold in self.members]
        made = _Version(
            rows={key: row for part in parts for key, row in part.rows.items()},
            merged={shard: mark for part in parts for shard, mark in part.merged.items()},
            touched=frozenset[Key]().union(*(part.touched for part in parts)),
        )
        self.table.land(self.members[0].version, made)
        return {fold.shard_id: fold.stats(Deletes.SAME_COMMIT) for fold in self.members}


@dataclass(kw_only=True)
class ManualCommitQueue:
    """The CommitQueue port, scripted: `meanwhile` is what others do before a held turn begins.

    It keeps nobody out. `losses` counts the refused commits that were reported to it.
    """

    held: bool = True
    meanwhile: Callable[[], object] = lambda: None
    turns: int = 0
    losses: int = 0

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Begin a turn, and yield `held` as it was set."""
        self.turns += 1
        if self.held:
            self.meanwhile()
        yield self.held

    def lost(self) -> None:
        """Count it."""
        self.losses += 1
