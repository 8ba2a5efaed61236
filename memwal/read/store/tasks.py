"""A merging read that is carried out by many tasks, each of which reads a part of it.

Who wins is decided in one of two ways. Decided once: the keys of all pending generations are read
and folded before the tasks start, which are told what they need; the keys have to fit into what is
sent to them. Looked up: each task asks the generations about the keys of its own rows, and holds no
more than those, however many keys are pending.

Neither applies the filter before it is known who wins: a row that the filter drops still hides
older ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.clock import SystemClock
from memwal.errors import Missing, Refused, Usage
from memwal.model import (
    FlushedGeneration,
    MemWalState,
    ShardId,
    TableView,
    VersionManifest,
    sum_known,
)
from memwal.read.plan.sources import ReadPlan, ShardRead
from memwal.read.plan.tasks import ReadTask
from memwal.read.store.keys import collect_keys
from memwal.read.store.opening import open_read
from memwal.read.store.policy import Folding, open_pending
from memwal.read.store.sources import Base, Batches, Listed, Part, Rows
from memwal.read.store.threads import choose_threads, map_in_order
from memwal.read.store.verdict import OpenShard, Verdict, fold_shard
from memwal.rows import fold
from memwal.rows.keyset import KeySet
from memwal.rows.policy import RowPolicy
from memwal.store.blobs import read_schema
from memwal.store.generations import Generations
from memwal.store.stored_policy import read_policy
from memwal.store.table import LanceTables

Addresses = np.ndarray[tuple[int], np.dtype[np.uint64]]

# Only rows of more than 8 KiB make smaller batches than Lance's own.
_BATCH_BYTES_MAX = 64 * 1024 * 1024
_BATCH_ROWS_MAX = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What is read: a plan, with as much of the view behind it as tasks need.

    `schema` is the base's, as it is read; `now_nanos` the instant at which rows expire.
    """

    view: TableView
    plan: ReadPlan
    schema: pa.Schema
    now_nanos: int

    @property
    def whole_shards(self) -> bool:
        """Whether a task needs all pending rows of a shard: a row-merge policy folds them."""
        return self.view.policy_text is not None


def take_snapshot(tables: LanceTables, view: TableView, plan: ReadPlan, now_nanos: int) -> Snapshot:
    """A plan and its view without what may be large in it: manifests, and states of shards."""
    schema = read_schema(tables.base(plan.version))
    slim = replace(
        view,
        manifest=VersionManifest(version=view.version, timestamp_nanos=0, mem_wal=None),
        mem_wal=MemWalState(index_uuid="", created_at_millis=None, merged={}, index_catchup={}),
        shards=(),
        broken=(),
        strangers=(),
    )
    return Snapshot(view=slim, plan=plan, schema=schema, now_nanos=now_nanos)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """Who wins: keys that hide rows of the base, and for each generation its winners, packed."""

    hidden: KeySet | None = None
    winners: Mapping[Listed, bytes] = field(default_factory=dict)


class TaskReads:
    """Reads parts of one snapshot."""

    def __init__(self, generations: Generations, snapshot: Snapshot) -> None:
        self._generations = generations
        self._tables = generations.tables
        self._snapshot = snapshot
        self._plan = snapshot.plan
        self._names = snapshot.plan.primary_key
        self._keys = [snapshot.schema.field(name) for name in self._names]
        self._threads = choose_threads(snapshot.plan.uri)
        self._policy = read_policy(snapshot.view, generations.tables.base)

    def list_fragments(self) -> list[tuple[int, int | None]]:
        """The base's fragments with the sizes of their files in bytes, None where not recorded."""
        dataset = self._tables.base(self._plan.version)
        return [(part.fragment_id, _file_bytes(part)) for part in dataset.get_fragments()]

    # -- before the tasks

    def decide(self, keys_bytes_max: int) -> Decided | None:
        """Fold all pending keys; None when keys and row addresses take more than that in memory.

        Raises Missing when a generation is gone, Refused for a NULL in a key, Usage where a
        row-merge policy needs them.
        """
        if not self._keys or not self._plan.generations or self._plan.search is not None:
            return Decided()
        tables = self._read_keys(keys_bytes_max)
        if tables is None:
            if self._policy is None:
                return None
            raise Usage(
                f"{self._plan.uri}: the pending keys take more than keys_bytes_max = "
                f"{keys_bytes_max}, and a table with a row-merge policy has to send them to the "
                "tasks: raise it, or merge first"
            )
        hidden = collect_keys(list(tables.values()), self._keys)
        winners: dict[Listed, bytes] = {}
        for shard in self._plan.shards if self._policy is None else ():
            numbers = [g.generation for g in reversed(shard.generations)]
            if numbers:
                mine = [tables[shard.shard_id, number] for number in numbers]
                folded = fold_shard(shard.shard_id, mine, self._names)
                for number, won in zip(numbers, folded.winners, strict=True):
                    winners[shard.shard_id, number] = pack(won)
        return Decided(hidden=hidden, winners=winners)

    def _read_keys(self, bytes_max: int) -> dict[Listed, pa.Table] | None:
        listed = [(s.shard_id, g) for s in self._plan.shards for g in s.generations]
        tables: dict[Listed, pa.Table] = {}
        size = 0
        for (shard_id, generation), table in map_in_order(
            lambda one: self._open(*one).read_keys(self._names, None), listed, self._threads
        ):
            size += table.nbytes
            if size > bytes_max:
                return None
            tables[shard_id, generation.generation] = table
        return tables

    # -- in a task

    def read(self, task: ReadTask, decided: Decided | None) -> Batches:
        """The task's rows, in the plan's columns; with None, the generations are asked.

        Raises Missing when the base's files or a generation are gone.
        """
        if task.searches:
            view, now = self._snapshot.view, SystemClock().now_nanos
            yield from open_read(self._generations, view, self._plan, {}, now).start()
            return
        if self._policy is not None:
            yield from self._fold(self._policy, task, decided or Decided())
            return
        for shard_id, generation in task.generations:
            part = self._open(shard_id, generation)
            if decided is None:
                found = self._look_up_generation(part, shard_id, generation)
            elif self._keys:
                won = unpack(decided.winners[shard_id, generation.generation])
                found = _keep(part.scan(self._rows()), won) if len(won) else iter(())
            else:
                found = part.scan(self._rows())
            yield from self._show(found)
        if task.fragments:
            base = self._open_base(task.fragments)
            if decided is None:
                found = self._look_up_base(base)
            elif decided.hidden is None:
                found = base.scan(self._rows())
            else:
                found = decided.hidden.outside(base.scan(self._rows(keyed=True)), self._names)
            yield from self._show(found)

    def _fold(self, policy: RowPolicy, task: ReadTask, decided: Decided) -> Batches:
        snapshot = self._snapshot
        folding = Folding(policy, self._plan, snapshot.schema, snapshot.now_nanos)
        mine = {shard_id for shard_id, _ in task.generations}
        if mine:
            shards = [shard for shard in self._plan.shards if shard.shard_id in mine]
            pending = open_pending(self._generations, snapshot.view, shards, {})
            base = Base.of(snapshot.view, self._tables.base(self._plan.version))
            tables, _ = folding.fold_rows(base, pending)
            for table in tables:
                yield from self._show(iter(table.to_batches()))
        if task.fragments:
            found = folding.scan_base(self._open_base(task.fragments), decided.hidden)
            yield from self._show(found)

    def _look_up_generation(
        self, part: Part, shard_id: ShardId, generation: FlushedGeneration
    ) -> Batches:
        own = self._find_keys(part)
        if own is None:
            return
        (shard,) = (s for s in self._plan.shards if s.shard_id == shard_id)
        newer = tuple(g for g in shard.generations if g.generation > generation.generation)
        (opened,) = self._open_shards([replace(shard, generations=newer)])
        opened = replace(opened, parts=(*opened.parts, part))
        verdict = Verdict([opened], self._keys, own, threads=self._threads)
        yield from verdict.keep_winners(part, part.scan(self._rows()))

    def _look_up_base(self, base: Base) -> Batches:
        own = self._find_keys(base)
        if own is None:
            return
        shards = self._open_shards(self._plan.shards)
        verdict = Verdict(shards, self._keys, own, threads=self._threads)
        yield from verdict.keep_visible(base.scan(self._rows(keyed=True)))

    def _open_shards(self, shards: Sequence[ShardRead]) -> list[OpenShard]:
        listed = [(s.shard_id, g) for s in shards for g in s.generations]
        opened = map_in_order(lambda one: self._open(*one), listed, self._threads)
        parts = iter([part for _, part in opened])
        return [OpenShard(read=s, parts=tuple(next(parts) for _ in s.generations)) for s in shards]

    def _find_keys(self, table: Base | Part) -> KeySet | None:
        """The keys of the rows that the filter leaves; None when there are none."""
        rows = Rows(schema=pa.schema(self._keys), predicate=self._plan.predicate)
        batches = list(table.scan(rows))
        if not any(batch.num_rows for batch in batches):
            return None
        for key in self._names if isinstance(table, Part) else ():
            if any(batch.column(key).null_count for batch in batches):
                raise Refused(f"{table.where}: rows have NULL in the key column {key!r}")
        return collect_keys(batches, self._keys)

    def _rows(self, *, keyed: bool = False) -> Rows:
        names = self._plan.scanned if keyed else self._plan.columns
        schema = pa.schema([self._snapshot.schema.field(name) for name in names])
        return Rows(schema=schema, predicate=self._plan.predicate)

    def _show(self, batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield batch.select(list(self._plan.columns))

    def _open(self, shard_id: ShardId, generation: FlushedGeneration) -> Part:
        # Its data files were looked at when the snapshot was taken, and are never written again.
        source = self._generations.open_unchecked(self._snapshot.view, shard_id, generation)
        return Part.of(self._plan.uri, shard_id, generation, source, self._snapshot.schema)

    def _open_base(self, fragments: Sequence[int]) -> Base:
        dataset = self._tables.base(self._plan.version)
        whole = Base.of(self._snapshot.view, dataset)
        there = {part.fragment_id: part for part in dataset.get_fragments()}
        if not there.keys() >= set(fragments):
            raise Missing(
                f"{whole.where}: is another table's now, which has not got these fragments"
            )
        return replace(whole, dataset=_Fragments(dataset, [there[id] for id in fragments]))


class _Fragments:
    """A dataset of which some fragments are scanned."""

    def __init__(self, dataset: Any, parts: Sequence[Any]) -> None:
        self._dataset = dataset
        self._parts = parts

    def scanner(self, **options: Any) -> Any:
        return self._dataset.scanner(
            fragments=list(self._parts), batch_size=self._batch_rows(), **options
        )

    def _batch_rows(self) -> int:
        rows: int = sum(part.physical_rows for part in self._parts)
        size = sum(_file_bytes(part) or 0 for part in self._parts)
        per_row = max(1, size // max(1, rows))
        return max(1, min(_BATCH_ROWS_MAX, _BATCH_BYTES_MAX // per_row))


def _file_bytes(fragment: Any) -> int | None:
    return sum_known(file.file_size_bytes or None for file in fragment.data_files())


def _keep(batches: Batches, winners: Addresses) -> Batches:
    return (fold.keep_winners(batch, winners) for batch in batches)


def pack(winners: Addresses) -> bytes:
    """Ascending row addresses in few bytes: they are mostly neighbours."""
    return zlib.compress(np.diff(winners, prepend=np.uint64(0)).tobytes(), 1)


def unpack(data: bytes) -> Addresses:
    """What was packed."""
    return np.cumsum(np.frombuffer(zlib.decompress(data), dtype=np.uint64), dtype=np.uint64)
