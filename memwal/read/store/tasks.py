"""A merging read that is carried out by many tasks, each of which reads a part of it.

Who wins is decided in one of two ways. Decided once: the keys of all pending generations are read
and folded before the tasks start, which are told what they need; the keys have to fit into what is
sent to them. Looked up: each task asks the generations about the keys of its own rows, and holds no
more than those, however many keys are pending.

Neither applies the filter before it is known who wins: a row that the filter drops still hides
older ones.

Rows that are in a WAL only, if they are asked for, are part of the snapshot, and go to all tasks.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Missing, Refused, Usage
from memwal.model import (
    FlushedGeneration,
    MemWalState,
    ShardId,
    TableView,
    VersionManifest,
    sum_known,
)
from memwal.read.plan.sources import GenerationRead, ReadPlan, ReadTask, ShardRead, list_sources
from memwal.read.store.opening import open_read, open_rows
from memwal.read.store.policy_read import Folding, open_pending
from memwal.read.store.sources import Base, Batches, Listed, Part, Rows
from memwal.read.store.threads import choose_threads, map_in_order
from memwal.read.store.winners import (
    OpenShard,
    Verdict,
    collect_keys,
    find_rows,
    fold_shard,
    list_parts,
)
from memwal.rows import fold
from memwal.rows.keyset import KeySet
from memwal.rows.policy import RowPolicy
from memwal.store.tables.blobs import read_schema
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.generations import Generations
from memwal.store.tables.policy_rows import read_policy

Addresses = np.ndarray[tuple[int], np.dtype[np.uint64]]

# Only rows of more than 8 KiB make smaller batches than Lance's own.
_BATCH_BYTES_MAX = 64 * 1024 * 1024
_BATCH_ROWS_MAX = 8192


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What is read: a plan, with as much of the view behind it as tasks need.

    `schema` is the base's, as it is read; `now_nanos` the instant at which rows expire;
    `unflushed` are rows as in `memwal.read.store.wal_rows`, of shards that have any.
    """

    view: TableView
    plan: ReadPlan
    schema: pa.Schema
    now_nanos: int
    unflushed: Mapping[ShardId, pa.Table] = field(default_factory=dict)

    @property
    def unflushed_bytes(self) -> Mapping[ShardId, int]:
        """What the unflushed rows take in memory."""
        return {shard_id: rows.nbytes for shard_id, rows in self.unflushed.items()}

    @property
    def whole_shards(self) -> bool:
        """Whether a task needs all pending rows of a shard: a row-merge policy folds them."""
        return self.view.policy_text is not None


def take_snapshot(
    tables: LanceTables,
    view: TableView,
    plan: ReadPlan,
    now_nanos: int,
    unflushed: Mapping[ShardId, pa.Table],
) -> Snapshot:
    """A plan and its view, without the parts that may be large: manifests and shards' states."""
    schema = read_schema(tables.base(plan.version))
    slim = replace(
        view,
        manifest=VersionManifest(version=view.version, timestamp_nanos=0, mem_wal=None),
        mem_wal=MemWalState(index_uuid="", created_at_millis=None, merged={}, index_catchup={}),
        shards=(),
        broken=(),
        strangers=(),
    )
    read = {shard.shard_id for shard in plan.shards}
    held = {shard: rows for shard, rows in unflushed.items() if len(rows) and shard in read}
    return Snapshot(view=slim, plan=plan, schema=schema, now_nanos=now_nanos, unflushed=held)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """Who wins: keys that hide rows of the base, and for each generation its winners, packed."""

    hidden: KeySet | None = None
    winners: Mapping[Listed, bytes] = field(default_factory=dict)


def name_source(source: GenerationRead) -> Listed:
    """The name of a source's winners; unflushed rows get number 0, which no generation has."""
    shard_id, generation = source
    return shard_id, 0 if generation is None else generation.generation


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
        plan = self._plan
        if not self._keys or plan.search is not None or plan.nearest is not None:
            return Decided()
        sources = [self._list_sources(shard) for shard in plan.shards]
        if not any(sources):
            return Decided()
        tables = self._read_keys([one for mine in sources for one in mine], keys_bytes_max)
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
        for mine in sources if self._policy is None else ():
            oldest_first = [name_source(one) for one in reversed(mine)]
            if oldest_first:
                folded = fold_shard(mine[0][0], [tables[o] for o in oldest_first], self._names)
                for listed, won in zip(oldest_first, folded.winners, strict=True):
                    winners[listed] = pack(won)
        return Decided(hidden=hidden, winners=winners)

    def _read_keys(
        self, sources: Sequence[GenerationRead], bytes_max: int
    ) -> dict[Listed, pa.Table] | None:
        tables: dict[Listed, pa.Table] = {}
        rows = Rows(schema=pa.schema(self._keys), tombstones=True)
        size = 0
        for source, table in map_in_order(
            lambda one: self._open(*one).read_all(rows), sources, self._threads
        ):
            size += table.nbytes
            if size > bytes_max:
                return None
            tables[name_source(source)] = table
        return tables

    def _list_sources(self, shard: ShardRead) -> Sequence[GenerationRead]:
        return list_sources(shard, self._snapshot.unflushed)

    # -- in a task

    def read(self, task: ReadTask, decided: Decided | None) -> Batches:
        """The task's rows, in the plan's columns; with None, the generations are asked.

        Raises Missing when the base's files or a generation are gone.
        """
        if task.searches:
            snapshot = self._snapshot
            yield from open_read(
                self._generations,
                snapshot.view,
                self._plan,
                snapshot.unflushed,
                lambda: snapshot.now_nanos,
            ).start()
            return
        if self._policy is not None:
            yield from self._fold(self._policy, task, decided or Decided())
            return
        for source in task.generations:
            part = self._open(*source)
            if decided is None:
                found = self._look_up_generation(part, source)
            elif self._keys:
                won = unpack(decided.winners[name_source(source)])
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
            pending = open_pending(self._generations, snapshot.view, shards, snapshot.unflushed)
            base = Base.of(snapshot.view, self._tables.base(self._plan.version))
            tables, _ = folding.fold_rows(base, pending)
            for table in tables:
                yield from self._show(iter(table.to_batches()))
        if task.fragments:
            found = folding.scan_base(self._open_base(task.fragments), decided.hidden)
            yield from self._show(found)

    def _look_up_generation(self, part: Part, source: GenerationRead) -> Batches:
        own = self._find_keys(part)
        if own is None:
            return
        (shard,) = (s for s in self._plan.shards if s.shard_id == source[0])
        newest_first = self._list_sources(shard)
        (opened,) = self._open_shards([(shard, newest_first[: newest_first.index(source)])])
        opened = replace(opened, parts=(*opened.parts, part))
        verdict = self._decide([opened], own)
        yield from verdict.keep_winners(part, part.scan(self._rows()))

    def _look_up_base(self, base: Base) -> Batches:
        own = self._find_keys(base)
        if own is None:
            return
        shards = self._open_shards([(s, self._list_sources(s)) for s in self._plan.shards])
        yield from self._decide(shards, own).keep_visible(base.scan(self._rows(keyed=True)))

    def _decide(self, shards: Sequence[OpenShard], own: KeySet) -> Verdict:
        found = find_rows(list_parts(shards), self._keys, own, self._threads)
        return Verdict(shards, self._keys, found)

    def _open_shards(
        self, shards: Sequence[tuple[ShardRead, Sequence[GenerationRead]]]
    ) -> list[OpenShard]:
        listed = [one for _, sources in shards for one in sources]
        opened = map_in_order(lambda one: self._open(*one), listed, self._threads)
        parts = iter([part for _, part in opened])
        return [OpenShard(read=s, parts=tuple(next(parts) for _ in mine)) for s, mine in shards]

    def _find_keys(self, table: Base | Part) -> KeySet | None:
        """The keys of the rows that the filter leaves; None when there are none."""
        rows = Rows(schema=pa.schema(self._keys), predicate=self._plan.predicate)
        batches = list(table.scan(rows))
        if not any(batch.num_rows for batch in batches):
            return None
        for key in self._names if isinstance(table, Part) else ():
            if any(batch.column(key).null_count for batch in batches):
                raise Refused("MW-K01", f"{table.where}: rows have NULL in the key column {key!r}")
        return collect_keys(batches, self._keys)

    def _rows(self, *, keyed: bool = False) -> Rows:
        names = self._plan.scanned if keyed else self._plan.columns
        schema = pa.schema([self._snapshot.schema.field(name) for name in names])
        return Rows(schema=schema, predicate=self._plan.predicate)

    def _show(self, batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield batch.select(list(self._plan.columns))

    def _open(self, shard_id: ShardId, generation: FlushedGeneration | None) -> Part:
        if generation is None:
            snapshot = self._snapshot
            rows = snapshot.unflushed[shard_id]
            return open_rows(self._plan.uri, shard_id, rows, snapshot.schema)
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
    """The addresses that `pack` packed."""
    return np.cumsum(np.frombuffer(zlib.decompress(data), dtype=np.uint64), dtype=np.uint64)
