"""The merging read, carried out: who wins is decided from keys, payload is read for winners.

pylance's own planners are not used, for what they do wrong or cannot do (14.0.2, each held by
tests/read/test_read_pylance.py):

- `LsmScanner` gives the first row when all are in memory, and took 24 s for 2 million rows with
  500 thousand pending ones, where this took 1 s; it fails on a generation that lacks the writer's
  private `_pk_index`, which the spec does not ask for, on a mixed-case column that its filter does
  not quote, and on a table without a primary key;
- `LsmPointLookupPlanner` fails when a key column's name is not in lower case;
- `LsmVectorSearchPlanner` looks into indexes only: rows that no index covers yet are left out, all
  rows when there is no index. It may also give fewer than k rows.

A read goes one of three ways. Held: small generations are read whole, once (see `read_held`). Keys
first: all pending keys are folded (as the merge does), winners are read, and the base without the
pending keys. Candidates first: when a filter or a limit leaves few rows, those are read, and only
their keys are looked up in the generations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import lance
import pyarrow as pa

from memwal.model import FlushedGeneration, ShardId, SharedKey, TableView
from memwal.ports import Clock
from memwal.read.plan import DISTANCE, ReadPlan, ShardRead
from memwal.read.ports import OpenRead
from memwal.read.store_beside import in_turn, scanned, side_by_side, threads_for
from memwal.read.store_held import Held, HeldShard, held_rows, may_hold
from memwal.read.store_nearest import Search
from memwal.read.store_policy import PolicyGenerations, PolicyRead
from memwal.read.store_sources import Base, Batches, Found, Part, Rows, shown
from memwal.read.store_verdict import OpenShard, Verdict, folded, parts_of
from memwal.rows.align import Alignment, ColumnSource
from memwal.rows.keyset import KeySet
from memwal.store.blobs import BlobReader, read_schema
from memwal.store.generations import Generations, Source
from memwal.store.stored_policy import checked_policy
from memwal.store.table import columns_of

# Generations that take less, all together, are held.
_HELD_BYTES_MAX = 128 * 1024 * 1024
# Up to so many rows of each source are candidates; with more, all keys are folded.
_CANDIDATES_MAX = 4096
_CANDIDATES_MIN = 256
_CANDIDATE_BYTES_MAX = 64 * 1024 * 1024


class LanceReadTable:
    """Opens merging reads (the ReadTable port) over Lance."""

    def __init__(self, generations: Generations, clock: Clock) -> None:
        self._generations = generations
        self._tables = generations.tables
        self._clock = clock

    def open(
        self, view: TableView, plan: ReadPlan, unflushed: Mapping[ShardId, pa.Table] | None = None
    ) -> OpenRead:
        """Open every table that the plan names (see the port)."""
        policy = checked_policy(view, self._tables.base)
        if policy is not None:
            generations = PolicyGenerations(self._generations, view)
            return PolicyRead(policy, plan, generations, unflushed or {}, self._clock)
        dataset = self._tables.base(plan.version)
        base = Base.of(view, f"{plan.uri}: version {plan.version}", dataset)
        schema = read_schema(dataset)
        opener = _Opener(self._generations, view, schema)
        listed = [(shard, g) for shard in plan.shards for g in shard.generations]
        opened = list(in_turn(lambda one: opener.open(*one), listed, threads_for(plan.uri)))
        opener.check(opened)
        parts: dict[ShardId, list[Part]] = {shard.shard_id: [] for shard in plan.shards}
        for (shard, _), part in opened:
            parts[shard.shard_id].append(part)
        for shard in plan.shards:
            rows = (unflushed or {}).get(shard.shard_id)
            if rows is not None and len(rows):
                parts[shard.shard_id].insert(0, opener.in_memory(shard, rows))
        shards = [OpenShard(read=s, parts=tuple(parts[s.shard_id])) for s in plan.shards]
        read = LanceRead(plan=plan, base=base, schema=schema, shards=tuple(shards))
        read.check()
        return read


class _Opener:
    def __init__(self, generations: Generations, view: TableView, schema: pa.Schema) -> None:
        self._generations = generations
        self._view = view
        self._schema = schema

    def open(self, shard: ShardRead, generation: FlushedGeneration) -> Part:
        source = self._generations.open_unchecked(self._view, shard.shard_id, generation)
        name = f"generation {generation.generation}"
        where = f"{name} ({generation.path})"
        return self._part(shard, where, name, source, generation.in_memory_bytes)

    def check(self, opened: Sequence[tuple[tuple[ShardRead, FlushedGeneration], Part]]) -> None:
        """Look at the data files, one by one where they are local.

        Threads would wait for Python's lock, in turn: a read by key took a sixth longer, with 200
        generations; like this, a thirtieth.
        """

        def one(item: tuple[tuple[ShardRead, FlushedGeneration], Part]) -> None:
            (shard, generation), part = item
            self._generations.check(shard.shard_id, generation, part.source)

        threads = threads_for(self._view.uri) if "://" in self._view.uri else 1
        for _ in in_turn(one, opened, threads):
            pass

    def in_memory(self, shard: ShardRead, rows: pa.Table) -> Part:
        """Rows with the base's columns and `_tombstone`, as a generation that is in no store."""
        fields = [pa.field(f.name, f.type) for f in rows.schema]
        dataset = lance.write_dataset(rows.cast(pa.schema(fields)), "memory://")
        alignment = Alignment(
            columns=tuple(ColumnSource(column=n, source=n) for n in self._schema.names)
        )
        source = Source(
            dataset=dataset,
            blobs=BlobReader(where=shard.shard_id, dataset=dataset, columns=frozenset()),
            columns=columns_of(dataset),
            alignment=alignment,
            batch_rows=8192,
        )
        name = "unflushed rows"
        return self._part(shard, name, name, source, rows.nbytes)

    def _part(
        self, shard: ShardRead, where: str, name: str, source: Source, size: int | None
    ) -> Part:
        return Part(
            where=f"{self._view.uri}: shard {shard.shard_id}: {where}",
            name=name,
            source=source,
            base_schema=self._schema,
            in_memory_bytes=size,
        )


class LanceRead:
    """One opened read (the OpenRead port). Each `start` reads anew."""

    def __init__(
        self, *, plan: ReadPlan, base: Base, schema: pa.Schema, shards: tuple[OpenShard, ...]
    ) -> None:
        self._plan = plan
        self._base = base
        self._shards = shards
        self._base_schema = schema
        self._threads = threads_for(plan.uri)
        self._scanned = pa.schema([schema.field(name) for name in plan.scanned])
        self._rows = Rows(schema=self._scanned, predicate=plan.predicate)
        self._parts = parts_of(shards)
        self.warnings: Sequence[str] = ()
        shown = list(self._scanned)[: len(plan.columns)]
        if plan.nearest is not None:
            shown.append(pa.field(DISTANCE, pa.float32()))
        self.schema = pa.schema(shown, metadata=schema.metadata)

    def check(self) -> None:
        """Raise Usage for a filter that Lance does not take."""
        if self._plan.filter is not None:
            # By itself, so that its parentheses are its own.
            self._base.plan_text(Rows(schema=self._scanned, predicate=self._plan.filter))

    def start(self) -> Batches:
        """The rows, in `schema`, in no promised order; nearest first for a search.

        Who wins is decided before this returns, and Missing raised when a generation is gone;
        payload is read as it is taken.
        """
        plan = self._plan
        self.warnings = ()
        if plan.limit == 0:
            return iter(())
        if plan.nearest is not None:
            search = Search(plan.nearest, self._base, self._parts, self._rows)
            return self._shown(search.run(self._judged))
        if self._looks_up:
            return self._shown(self._looked_up())
        return self._shown(self._held() if self._holds else self._few())

    @property
    def way(self) -> str:
        """How the read goes about it (see the port)."""
        if self._plan.nearest is not None:
            return "candidates of each table, then their keys in the generations"
        if not self._parts:
            return "the base alone: nothing is pending"
        if self._looks_up:
            return "the keys in all generations, then rows of those that have them, then the base"
        if self._holds:
            return "all generations, held in memory, then the base without their keys"
        if self._plan.predicate is None and self._plan.limit is None:
            return "keys of all generations, then winners, then the base without these keys"
        return (
            f"up to {_CANDIDATES_MAX} candidates of each table, then their keys in the "
            "generations; with more of them, all keys first"
        )

    def plan_texts(self) -> tuple[str, dict[tuple[ShardId, int], str | None]]:
        """Lance's plans (see the port)."""
        rows = self._rows
        if self._plan.nearest is not None:
            search = Search(self._plan.nearest, self._base, self._parts, rows)
            rows = search.rows(self._plan.nearest.k)
        parts = self._listed()
        asked = self._held_rows() if self._holds else rows
        texts = side_by_side(
            lambda part: part.plan_text(asked), list(parts.values()), self._threads
        )
        return self._base.plan_text(rows), {key: texts[id(part)] for key, part in parts.items()}

    def own_indexes(self) -> dict[tuple[ShardId, int], frozenset[str]]:
        """Names of the indexes that each generation has (see the port)."""
        parts = self._listed()
        names = side_by_side(lambda part: part.index_names(), list(parts.values()), self._threads)
        return {key: names[id(part)] for key, part in parts.items()}

    def _listed(self) -> dict[tuple[ShardId, int], Part]:
        # Unflushed rows, which no generation holds, come first among the parts.
        return {
            (shard.read.shard_id, generation.generation): part
            for shard in self._shards
            for generation, part in zip(
                reversed(shard.read.generations), reversed(shard.parts), strict=False
            )
        }

    def _verdict(self, only: KeySet | None = None) -> Verdict:
        verdict = Verdict(self._shards, self._plan.primary_key, only, threads=self._threads)
        self._notice(verdict.shared)
        return verdict

    def _notice(self, shared: SharedKey | None) -> None:
        if shared is not None:
            self.warnings = (f"{self._plan.uri}: {shared}",)

    def _shown(self, found: Batches) -> Batches:
        return shown(found, self.schema, self._plan.limit)

    # -- by key

    @property
    def _looks_up(self) -> bool:
        return bool(self._parts and self._plan.keys and self._plan.nearest is None)

    def _looked_up(self) -> Batches:
        names, keys = self._plan.primary_key, self._plan.keys or ()
        columns = [
            pa.chunked_array([list(values)], type=self._scanned.field(name).type)
            for name, values in zip(names, zip(*keys, strict=True), strict=True)
        ]
        only = KeySet(columns)
        verdict = self._verdict(only)
        having = [part for part in self._parts if verdict.has_winners(part)]
        live = list(self._live(verdict, scanned(having, self._rows, self._threads)))
        if verdict.hides_all(only.count):
            return iter(live)
        return chain(live, verdict.visible(self._base.scan(self._rows)))

    # -- held

    @property
    def _holds(self) -> bool:
        plan = self._plan
        if not self._parts or not plan.primary_key or plan.nearest is not None or self._looks_up:
            return False
        return may_hold(self._parts, self._held_rows(), plan.predicate, _HELD_BYTES_MAX)

    def _held_rows(self) -> Rows:
        return held_rows(self._parts, self._rows, self._plan.primary_key, self._base_schema)

    def _held(self) -> Batches:
        keys = self._plan.primary_key
        wanted = self._held_rows()
        tables = side_by_side(lambda part: part.whole(wanted), self._parts, self._threads)
        shards = [
            HeldShard(
                shard_id=shard.read.shard_id,
                parts=shard.parts[::-1],
                tables=[tables[id(part)] for part in reversed(shard.parts)],
                fold=partial(folded, shard, keys=keys),
            )
            for shard in self._shards
            if shard.parts
        ]
        held = Held(self._plan.uri, keys, self._rows, shards, self._threads)
        few = self._held_candidates(held)
        if few is None:
            live, base, only = held.live(), self._base.scan(self._rows), None
        else:
            base, only = few
            live = iter(list(held.live(only)))
        hidden = held.hidden(only)
        self._notice(held.shared(hidden))
        return chain(live, hidden.outside(base, keys))

    def _held_candidates(self, held: Held) -> tuple[Batches, KeySet] | None:
        """The base's rows that match, and their keys with the held ones', if both are few."""
        if self._plan.predicate is None:
            return None
        candidates = held.candidates()
        if len(candidates) > _CANDIDATES_MAX:
            return None
        rows = replace(self._rows, limit=_CANDIDATES_MAX + 1)
        base, whole = _up_to(_CANDIDATES_MAX, self._base.scan(rows))
        if not whole:
            return None
        asked = pa.concat_tables(
            [
                candidates,
                *(pa.Table.from_batches([b.select(candidates.column_names)]) for b in base),
            ]
        )
        return iter(base), KeySet(asked.columns)

    # -- keys first

    def _all(self, found: Iterable[tuple[Part, Iterable[pa.RecordBatch]]] | None = None) -> Batches:
        """All rows; `found` are those of the generations, if they were read already."""
        verdict = self._verdict()
        if found is None:
            found = scanned(self._parts, self._rows, self._threads)
        return self._winners(verdict, found)

    def _winners(
        self, verdict: Verdict, found: Iterable[tuple[Part, Iterable[pa.RecordBatch]]]
    ) -> Batches:
        # Generations first: they may be collected once they are merged, the version stays longer.
        yield from self._live(verdict, found)
        limit = None if self._parts else self._plan.limit
        yield from verdict.visible(self._base.scan(replace(self._rows, limit=limit)))

    def _live(
        self, verdict: Verdict, found: Iterable[tuple[Part, Iterable[pa.RecordBatch]]]
    ) -> Batches:
        for part, batches in found:
            yield from verdict.live(part, batches)

    # -- candidates first

    def _few(self) -> Batches:
        """All rows if they are few, or as many as the limit asks for; else keys first."""
        plan = self._plan
        if not self._parts or not plan.primary_key:
            return self._all()
        if plan.predicate is None and plan.limit is None:
            return self._all()
        most = _CANDIDATES_MAX
        if plan.limit is not None:
            most = min(most, max(_CANDIDATES_MIN, 4 * plan.limit))
        rows = replace(self._rows, limit=most + 1)
        enough = plan.limit is not None and plan.limit <= most
        found: list[tuple[Part, list[pa.RecordBatch]]] = []
        complete = True
        for part, (batches, whole) in in_turn(
            lambda p: _up_to(most, p.scan(rows)), self._parts, self._threads
        ):
            found.append((part, batches))
            complete = complete and whole
            if not complete and not enough:
                return self._all()
        candidates, whole = _up_to(most, self._base.scan(rows))
        if not whole and not enough:
            return self._all(found)
        judged = self._judged([*found, (self._base, candidates)])
        kept = [batch for _, batches in judged for batch in batches]
        if not (complete and whole) and sum(batch.num_rows for batch in kept) < (plan.limit or 0):
            return self._all(found if complete else None)
        return iter(kept)

    def _judged(self, found: Sequence[Found]) -> list[Found]:
        """The same without superseded rows; asks the generations about these rows' keys only."""
        keys = self._plan.primary_key
        batches = [batch for _, some in found for batch in some]
        asked = [
            pa.chunked_array([b.column(key) for b in batches], type=self._scanned.field(key).type)
            for key in keys
        ]
        verdict = self._verdict(KeySet(asked) if keys else None)
        return [
            (
                source,
                list(
                    verdict.live(source, iter(some))
                    if isinstance(source, Part)
                    else verdict.visible(iter(some))
                ),
            )
            for source, some in found
        ]


def _up_to(rows_max: int, batches: Batches) -> tuple[list[pa.RecordBatch], bool]:
    """The first batches, and whether they are all; what is beyond the bounds is left out."""
    found: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if rows + batch.num_rows > rows_max or size > _CANDIDATE_BYTES_MAX:
            found.append(batch.slice(0, max(0, rows_max - rows)))
            return found, False
        found.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    return found, True
