"""The merging read of a table with a row-merge policy (`memwal.policy`).

Pending rows, superseded ones too, are read whole and folded, with the base's rows that they need.
Who is shown follows from the folded rows: the filter is asked of those, in memory, and of the
base's rows whose keys are in no generation. Key lookups and limits go the same way. A search for
vectors is refused: an index knows nothing of folded rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa

from memwal.errors import MemWalError, Unsupported, Usage
from memwal.format import layout
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.ports import Clock
from memwal.read.plan import ReadPlan, ShardRead
from memwal.read.store_beside import in_turn, threads_for
from memwal.read.store_held import may_name
from memwal.read.store_sources import Base, Batches, Rows, asked, judged, shown
from memwal.rows.keyset import KeySet, find_shared_key
from memwal.rows.policy import RowPolicy
from memwal.rows.policy_fold import Layer, Mask, PolicyFold, expired
from memwal.rows.policy_rows import all_rows, base_rows
from memwal.sharding.domain import Case, cases_of
from memwal.sharding.predicate import predicate_of
from memwal.sharding.values import as_comparable
from memwal.store.generations import Generations, Source

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
        """What all of it takes, as far as the writers told."""
        listed = sum(g.in_memory_bytes or 0 for g, _ in self.generations)
        return listed + (0 if self.unflushed is None else self.unflushed.nbytes)


class PolicyGenerations:
    """Opens what a read of one view reads."""

    def __init__(self, generations: Generations, view: TableView) -> None:
        self.tables = generations.tables
        self._generations = generations
        self.view = view

    def pending(
        self, shards: Sequence[ShardRead], unflushed: Mapping[ShardId, pa.Table]
    ) -> list[Pending]:
        """Every generation of the shards, opened. Raises Missing, Refused."""
        listed = [(shard, g) for shard in shards for g in reversed(shard.generations)]
        found: dict[ShardId, list[tuple[FlushedGeneration, Source]]] = {}
        opened = in_turn(lambda one: self._open(*one), listed, threads_for(self.tables.uri))
        for (shard, generation), source in opened:
            found.setdefault(shard.shard_id, []).append((generation, source))
        return [
            Pending(
                shard_id=shard.shard_id,
                generations=found.get(shard.shard_id, ()),
                unflushed=unflushed.get(shard.shard_id),
            )
            for shard in shards
        ]

    def _open(self, shard: ShardRead, generation: FlushedGeneration) -> Source:
        return self._generations.open(self.view, shard.shard_id, generation)


class Folding:
    """How one read folds, at one instant, and what it shows."""

    def __init__(
        self, policy: RowPolicy, plan: ReadPlan, schema: pa.Schema, now_nanos: int
    ) -> None:
        """`schema` is the base's."""
        self._policy = policy
        self._plan = plan
        self._now_nanos = now_nanos
        self._threads = threads_for(plan.uri)
        special = {policy.marker, policy.expiry, *plan.primary_key}
        # What rows are folded for: the columns that are shown, or that the filter may name.
        self._folded = pa.schema(
            [
                field
                for field in schema
                if field.name in plan.scanned
                or field.name in special
                or may_name(plan.predicate, field.name)
            ]
        )
        self._scanned = pa.schema(
            [f for f in schema if f.name in plan.scanned or f.name == policy.expiry]
        )
        self._only = self._asked_keys()

    def _asked_keys(self) -> KeySet | None:
        if self._plan.keys is None:
            return None
        names = self._plan.primary_key
        values = zip(*self._plan.keys, strict=True) if self._plan.keys else ([] for _ in names)
        return KeySet(
            [
                pa.chunked_array([list(column)], type=self._folded.field(name).type)
                for name, column in zip(names, values, strict=True)
            ]
        )

    def rows(
        self, base: Base, pending: Sequence[Pending]
    ) -> tuple[list[pa.Table], dict[ShardId, pa.Table]]:
        """The folded rows that match, and each shard's keys, all of which hide the base's.

        Raises Missing, Corruption, Refused.
        """
        tables: list[pa.Table] = []
        keys: dict[ShardId, pa.Table] = {}
        for together in _together(pending):
            folds = {
                shard.shard_id: fold
                for shard in together
                if (fold := self._fold(shard)) is not None
            }
            if not folds:
                continue
            wanted = pa.concat_tables([fold.base_keys for fold in folds.values()])
            names = self._folded.names
            found = asked(base.where, partial(base_rows, base.dataset, wanted, names))
            for shard_id, fold in folds.items():
                keys[shard_id] = fold.keys
                tables.append(self._matching(base.where, self._finished(base.where, fold, found)))
        return tables, keys

    def _fold(self, shard: Pending) -> PolicyFold | None:
        layers = [
            layer
            for _, layer in in_turn(
                lambda one: self._layer(shard, *one), shard.generations, self._threads
            )
        ]
        if shard.unflushed is not None:
            names = [*self._folded.names, layout.TOMBSTONE]
            table = self._wanted(shard.unflushed.select(names))
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
            raise type(error)(f"{self._plan.uri}: shard {shard.shard_id}: {error}") from None

    def _layer(self, shard: Pending, generation: FlushedGeneration, source: Source) -> Layer:
        name = f"generation {generation.generation}"
        where = f"{self._plan.uri}: shard {shard.shard_id}: {name} ({generation.path})"
        table = asked(where, lambda: all_rows(source, generation, self._folded))
        return Layer(name=name, table=self._wanted(table))

    def _wanted(self, table: pa.Table) -> pa.Table:
        if self._only is None:
            return table
        keys = [table[key] for key in self._plan.primary_key]
        return table.filter(pa.array(self._only.contains(keys)))

    def _finished(self, where: str, fold: PolicyFold, base: pa.Table) -> pa.Table:
        names = self._plan.primary_key
        own = KeySet([fold.base_keys[name] for name in names])
        mine = base.filter(pa.array(own.contains([base[name] for name in names])))
        outcome = fold.finish(mine, partial(self._may_match, where))
        return pa.concat_tables([outcome.rows, outcome.unchanged])

    def _may_match(self, where: str, keys: pa.Table) -> Mask:
        """Which keys' rows the read may want: the filter does not rule them out by their key."""
        predicate = self._plan.predicate
        if predicate is None:
            return np.ones(len(keys), dtype=bool)
        try:
            return judged(where, keys, predicate)
        except Usage:  # it names other columns
            types = {field.name: field.type for field in keys.schema}
            return _inside(keys, cases_of(predicate_of(predicate, self._folded), types))

    def _matching(self, where: str, table: pa.Table) -> pa.Table:
        predicate = self._plan.predicate
        if predicate is None or not len(table):
            return table
        named = [name for name in table.column_names if may_name(predicate, name)]
        return table.filter(pa.array(judged(where, table.select(named), predicate)))

    def base_rows(self, base: Base, hidden: KeySet | None) -> Batches:
        """The base's rows that match, without hidden and expired ones."""
        rows = Rows(schema=self._scanned, predicate=self._plan.predicate)
        found = base.scan(rows)
        if hidden is not None:
            found = hidden.outside(found, self._plan.primary_key)
        return found if self._policy.expiry is None else self._lasting(found, self._policy.expiry)

    def _lasting(self, batches: Iterable[pa.RecordBatch], expiry: str) -> Batches:
        for batch in batches:
            over = expired(pa.chunked_array([batch.column(expiry)]), self._now_nanos)
            kept = batch.filter(pa.array(~over)) if over.any() else batch
            if kept.num_rows:
                yield kept


class PolicyRead:
    """One opened read of a table with a policy (the OpenRead port)."""

    way = "all pending rows, folded by the row-merge policy, then the base without their keys"

    def __init__(
        self,
        policy: RowPolicy,
        plan: ReadPlan,
        generations: PolicyGenerations,
        unflushed: Mapping[ShardId, pa.Table],
        clock: Clock,
    ) -> None:
        """Opens everything. Raises Unsupported for a search, Usage for a filter Lance refuses."""
        if plan.nearest is not None:
            raise Unsupported(
                f"{plan.uri}: a table with a row-merge policy can't be searched for vectors: its "
                "indexes do not know the rows that come of folding"
            )
        self._policy = policy
        self._plan = plan
        self._clock = clock
        self.warnings: Sequence[str] = ()
        dataset = generations.tables.base(plan.version)
        where = f"{plan.uri}: version {plan.version}"
        self._base = Base.of(generations.view, where, dataset)
        self._base_schema: pa.Schema = dataset.schema
        self._pending = generations.pending(plan.shards, unflushed)
        fields = [self._base_schema.field(name) for name in plan.columns]
        self.schema = pa.schema(fields, metadata=self._base_schema.metadata)
        if plan.filter is not None:
            # By itself, so that its parentheses are its own.
            self._base.plan_text(Rows(schema=self.schema, predicate=plan.filter))

    def start(self) -> Iterator[pa.RecordBatch]:
        """The rows (see the port). Folded rows are held in memory."""
        if self._plan.limit == 0:
            return iter(())
        folding = Folding(self._policy, self._plan, self._base_schema, self._clock.now_nanos())
        tables, keys = folding.rows(self._base, self._pending)
        hidden = KeySet(pa.concat_tables(keys.values()).columns) if keys else None
        self.warnings = ()
        if hidden is not None and hidden.count < sum(map(len, keys.values())):
            by_shard = {shard: [table] for shard, table in keys.items()}
            shared = find_shared_key(by_shard, self._plan.primary_key)
            self.warnings = () if shared is None else (f"{self._plan.uri}: {shared}",)
        folded = (batch for table in tables for batch in table.to_batches())
        found = chain(folded, folding.base_rows(self._base, hidden))
        return shown(found, self.schema, self._plan.limit)

    def plan_texts(self) -> tuple[str, dict[tuple[ShardId, int], str | None]]:
        """Lance's plans (see the port): generations are read whole, by none."""
        rows = Rows(schema=self.schema, predicate=self._plan.predicate)
        return self._base.plan_text(rows), dict.fromkeys(self._listed())

    def own_indexes(self) -> dict[tuple[ShardId, int], frozenset[str]]:
        """None is used."""
        return dict.fromkeys(self._listed(), frozenset())

    def _listed(self) -> list[tuple[ShardId, int]]:
        return [
            (shard.shard_id, generation.generation)
            for shard in self._pending
            for generation, _ in shard.generations
        ]


def _together(pending: Sequence[Pending]) -> Iterator[list[Pending]]:
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


def _inside(keys: pa.Table, cases: Sequence[Case]) -> Mask:
    """Which keys one of the cases leaves possible."""
    values = {name: [as_comparable(value) for value in keys[name]] for name in keys.column_names}
    found = np.zeros(len(keys), dtype=bool)
    for case in cases:
        inside = np.ones(len(keys), dtype=bool)
        for name, domain in case.items():
            inside &= np.array([domain.contains(value) for value in values[name]], dtype=bool)
        found |= inside
    return found
