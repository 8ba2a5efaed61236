"""The merging read of a table with a row-merge policy (`memwal.rows.policy`).

Pending rows, superseded ones too, are read whole and folded, with the base's rows that they need.
The filter is applied to the folded rows, in memory, and to the base's rows whose keys are in no
generation. Key lookups and limits go the same way. A search for vectors is refused: an index knows
nothing of folded rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from memwal.errors import MemWalError, Unsupported, Usage
from memwal.format import layout
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.read.plan.sources import ReadPlan, ShardRead
from memwal.read.store.faults import guard
from memwal.read.store.sources import Base, Batches, Listed, OpenRead, Rows, match_rows
from memwal.read.store.threads import choose_threads, map_in_order
from memwal.read.store.winners import collect_wanted_keys, filter_rows, may_name
from memwal.rows.keyset import KeySet, Mask, find_shared_key
from memwal.rows.policy import RowPolicy
from memwal.rows.policy_fold import Layer, PolicyFold, find_expired
from memwal.store.tables.generations import Generations, Source
from memwal.store.tables.policy_rows import read_all_rows, read_base_rows

# Shards that are folded together, and ask the base together for what they need, take no more.
_TOGETHER_BYTES_MAX = 512 * 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pending:
    """One shard's pending rows, by their source, oldest first."""

    shard_id: ShardId
    generations: Sequence[tuple[FlushedGeneration, Source]]
    unflushed: pa.Table | None = None

    @property
    def in_memory_bytes(self) -> int:
        """What all of it takes, where the writers recorded it."""
        listed = sum(g.in_memory_bytes or 0 for g, _ in self.generations)
        return listed + (0 if self.unflushed is None else self.unflushed.nbytes)


def open_pending(
    generations: Generations,
    view: TableView,
    shards: Sequence[ShardRead],
    unflushed: Mapping[ShardId, pa.Table],
) -> list[Pending]:
    """Every generation of the shards, opened. Raises Missing, Refused."""
    listed = [(shard, g) for shard in shards for g in reversed(shard.generations)]
    found: dict[ShardId, list[tuple[FlushedGeneration, Source]]] = {}
    threads = choose_threads(view.uri)
    for (shard, generation), source in map_in_order(
        lambda one: generations.open(view, one[0].shard_id, one[1]), listed, threads
    ):
        found.setdefault(shard.shard_id, []).append((generation, source))
    return [
        Pending(
            shard_id=shard.shard_id,
            generations=found.get(shard.shard_id, ()),
            unflushed=unflushed.get(shard.shard_id),
        )
        for shard in shards
    ]


class Folding:
    """How one read folds, at one instant, and what it shows."""

    def __init__(
        self, policy: RowPolicy, plan: ReadPlan, schema: pa.Schema, now_nanos: int
    ) -> None:
        """`schema` is the base's."""
        self._policy = policy
        self._plan = plan
        self._now_nanos = now_nanos
        self._threads = choose_threads(plan.uri)
        # What rows are folded for: the columns that are shown, or that the filter may name.
        wanted = {*plan.scanned, policy.marker, policy.expiry}
        self._folded = pa.schema(
            [f for f in schema if f.name in wanted or may_name(plan.predicate, f.name)]
        )
        self._scanned = pa.schema(
            [f for f in schema if f.name in plan.scanned or f.name == policy.expiry]
        )
        self._only = None if plan.keys is None else collect_wanted_keys(plan, schema)

    def fold_rows(
        self, base: Base, pending: Sequence[Pending]
    ) -> tuple[list[pa.Table], dict[ShardId, pa.Table]]:
        """The folded rows that match, and each shard's keys, all of which hide the base's.

        Raises Missing, Corruption, Refused.
        """
        tables: list[pa.Table] = []
        keys: dict[ShardId, pa.Table] = {}
        for together in _group(pending):
            folds = {s.shard_id: fold for s in together if (fold := self._fold(s)) is not None}
            if not folds:
                continue
            wanted = pa.concat_tables([fold.base_keys for fold in folds.values()])
            names = self._folded.names
            found = guard(base.where, partial(read_base_rows, base.dataset, wanted, names))
            for shard_id, fold in folds.items():
                keys[shard_id] = fold.keys
                rows = self._finish(base.where, fold, found)
                every = np.ones(len(rows), dtype=bool)
                tables.append(filter_rows(base.where, rows, self._plan.predicate, every))
        return tables, keys

    def _fold(self, shard: Pending) -> PolicyFold | None:
        reading = map_in_order(
            lambda one: self._read_layer(shard, *one), shard.generations, self._threads
        )
        layers = [layer for _, layer in reading]
        if shard.unflushed is not None:
            names = [*self._folded.names, layout.TOMBSTONE]
            table = self._keep_wanted(shard.unflushed.select(names))
            layers.append(Layer(name="unflushed row", table=table))
        if not any(len(layer.table) for layer in layers):
            return None
        try:
            return PolicyFold(
                self._policy,
                self._plan.primary_key,
                self._folded,
                layers,
                now_nanos=self._now_nanos,
            )
        except MemWalError as error:
            raise error.at(f"{self._plan.uri}: shard {shard.shard_id}") from None

    def _read_layer(self, shard: Pending, generation: FlushedGeneration, source: Source) -> Layer:
        name = f"generation {generation.generation}"
        where = f"{self._plan.uri}: shard {shard.shard_id}: {name} ({generation.path})"
        table = guard(where, lambda: read_all_rows(source, generation, self._folded))
        return Layer(name=name, table=self._keep_wanted(table))

    def _keep_wanted(self, table: pa.Table) -> pa.Table:
        if self._only is None:
            return table
        keys = [table[key] for key in self._plan.primary_key]
        return table.filter(pa.array(self._only.contains(keys)))

    def _finish(self, where: str, fold: PolicyFold, base: pa.Table) -> pa.Table:
        names = self._plan.primary_key
        own = KeySet([fold.base_keys[name] for name in names])
        mine = base.filter(pa.array(own.contains([base[name] for name in names])))
        outcome = fold.finish(mine, partial(self._find_possible, where))
        return pa.concat_tables([outcome.rows, outcome.unchanged])

    def _find_possible(self, where: str, keys: pa.Table) -> Mask:
        """Which keys' rows the read may want: all, unless the filter names nothing but the key."""
        if self._plan.predicate is not None:
            with suppress(Usage):  # it names other columns
                return match_rows(where, keys, self._plan.predicate)
        return np.ones(len(keys), dtype=bool)

    def scan_base(self, base: Base, hidden: KeySet | None) -> Batches:
        """The base's rows that match, without hidden and expired ones."""
        rows = Rows(schema=self._scanned, predicate=self._plan.predicate)
        found = base.scan(rows)
        if hidden is not None:
            found = hidden.outside(found, self._plan.primary_key)
        expiry = self._policy.expiry
        return found if expiry is None else self._drop_expired(found, expiry)

    def _drop_expired(self, batches: Iterable[pa.RecordBatch], expiry: str) -> Batches:
        for batch in batches:
            over = find_expired(pa.chunked_array([batch.column(expiry)]), self._now_nanos)
            kept = batch.filter(pa.array(~over)) if over.any() else batch
            if kept.num_rows:
                yield kept


class FoldedRows(OpenRead):
    """One opened read of a table with a policy. Folded rows are held in memory."""

    way = "all pending rows, folded by the row-merge policy, then the base without their keys"

    def __init__(
        self,
        policy: RowPolicy,
        plan: ReadPlan,
        generations: Generations,
        view: TableView,
        base: Base,
        unflushed: Mapping[ShardId, pa.Table],
        now_nanos: Callable[[], int],
    ) -> None:
        """Opens everything. Raises Unsupported for a search, Usage for a filter Lance refuses."""
        if plan.nearest is not None or plan.search is not None:
            what = "vectors" if plan.search is None else "texts"
            raise Unsupported(
                "MW-Q04",
                f"{plan.uri}: a table with a row-merge policy can't be searched for {what}: its "
                "indexes do not know the rows that come of folding; once it is merged and its "
                "indexes have caught up, Lance's own search finds them in the base table",
            )
        super().__init__(plan, base, base.dataset.schema)
        self._policy = policy
        self._now_nanos = now_nanos
        self._pending = open_pending(generations, view, plan.shards, unflushed)

    def _read(self) -> Batches:
        folding = Folding(self._policy, self._plan, self._base.dataset.schema, self._now_nanos())
        tables, keys = folding.fold_rows(self._base, self._pending)
        hidden = KeySet(pa.concat_tables(keys.values()).columns) if keys else None
        if hidden is not None and hidden.count < sum(map(len, keys.values())):
            by_shard = {shard: [table] for shard, table in keys.items()}
            self._warn(find_shared_key(by_shard, self._plan.primary_key))
        folded = (batch for table in tables for batch in table.to_batches())
        return chain(folded, folding.scan_base(self._base, hidden))

    def explain_plans(self) -> tuple[str, dict[Listed, str | None]]:
        """Lance's plan for the base; generations are read whole, without one."""
        return self._base.explain_scan(self._rows), {}


def _group(pending: Sequence[Pending]) -> Iterator[list[Pending]]:
    """Shards in groups, none larger than the limit unless one shard is."""
    group: list[Pending] = []
    size = 0
    for shard in pending:
        if group and size + shard.in_memory_bytes > _TOGETHER_BYTES_MAX:
            yield group
            group, size = [], 0
        group.append(shard)
        size += shard.in_memory_bytes
    if group:
        yield group
