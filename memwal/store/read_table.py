"""The merging read, carried out: who wins is decided from keys, payload is read for winners.

pylance's own planners are not used, for what they do wrong or cannot do (14.0.2, each held by
tests/integration/test_read_pylance.py):

- `LsmScanner` gives the first row when all are in memory, and took 24 s for 2 million rows with
  500 thousand pending ones, where this took 1 s; it fails on a generation that lacks the writer's
  private `_pk_index`, which the spec does not ask for, on a mixed-case column that its filter does
  not quote, and on a table without a primary key;
- `LsmPointLookupPlanner` fails when a key column's name is not in lower case;
- `LsmVectorSearchPlanner` looks into indexes only: rows that no index covers yet are left out, all
  rows when there is no index. It may also give fewer than k rows.

A read goes one of two ways. Keys first: all pending keys are folded (as the merge does), winners
are read, and the base without the pending keys. Candidates first: when a filter or a limit leaves
few rows, those are read, and only their keys are looked up in the generations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import lance
import pyarrow as pa

from memwal import fold
from memwal.align import Alignment, ColumnSource
from memwal.errors import Refused
from memwal.keyset import KeySet
from memwal.model import FlushedGeneration, ShardId, TableView
from memwal.plan.read import DISTANCE, ReadPlan, ShardRead
from memwal.store.generations import Renamed, Source, line_up
from memwal.store.read_nearest import Search
from memwal.store.read_sources import Base, Batches, Found, Part, Rows, Table
from memwal.store.table import LanceTables, columns_of

T = TypeVar("T")

# Up to so many rows of each source are candidates; with more, all keys are folded.
_CANDIDATES_MAX = 4096
_CANDIDATES_MIN = 256
_CANDIDATE_BYTES_MAX = 64 * 1024 * 1024
_OPENERS_MAX = 16


class LanceReadTable:
    """Opens merging reads (the ReadTable port) over Lance."""

    def __init__(self, tables: LanceTables, renamed: Renamed) -> None:
        """`renamed(view, rename, generation)` tells whether history proves a rename."""
        self._tables = tables
        self._renamed = renamed

    def open(
        self, view: TableView, plan: ReadPlan, unflushed: Mapping[ShardId, pa.Table] | None = None
    ) -> LanceRead:
        """Open every table that the plan names (see the port)."""
        dataset = self._tables.base(plan.version)
        base = Base(where=f"{plan.uri}: version {plan.version}", dataset=dataset)
        schema = dataset.scanner(blob_handling="all_binary").projected_schema
        opener = _Opener(self._tables, self._renamed, view, schema)
        with ThreadPoolExecutor(_OPENERS_MAX) as pool:
            jobs = [[pool.submit(opener.open, s, g) for g in s.generations] for s in plan.shards]
            shards = []
            for shard, opening in zip(plan.shards, jobs, strict=True):
                parts = [job.result() for job in opening]
                rows = (unflushed or {}).get(shard.shard_id)
                if rows is not None and len(rows):
                    parts.insert(0, opener.in_memory(shard, rows))
                shards.append(OpenShard(read=shard, parts=tuple(parts)))
        read = LanceRead(plan=plan, base=base, schema=schema, shards=tuple(shards))
        read.check()
        return read


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenShard:
    """One shard's generations, newest first; unflushed rows come before them."""

    read: ShardRead
    parts: tuple[Part, ...]


class _Opener:
    def __init__(
        self, tables: LanceTables, renamed: Renamed, view: TableView, schema: pa.Schema
    ) -> None:
        self._tables = tables
        self._renamed = renamed
        self._view = view
        self._schema = schema

    def open(self, shard: ShardRead, generation: FlushedGeneration) -> Part:
        dataset = self._tables.generation(shard.shard_id, generation)
        source = line_up(self._view, shard.shard_id, generation, dataset, self._renamed)
        name = f"generation {generation.generation}"
        return self._part(shard, f"{name} ({generation.path})", name, source)

    def in_memory(self, shard: ShardRead, rows: pa.Table) -> Part:
        """Rows with the base's columns and `_tombstone`, as a generation that is in no store."""
        fields = [pa.field(f.name, f.type) for f in rows.schema]
        dataset = lance.write_dataset(rows.cast(pa.schema(fields)), "memory://")
        alignment = Alignment(
            columns=tuple(ColumnSource(column=n, source=n) for n in self._schema.names)
        )
        source = Source(
            dataset=dataset,
            columns=columns_of(dataset),
            alignment=alignment,
            batch_rows=8192,
        )
        return self._part(shard, "unflushed rows", "unflushed rows", source)

    def _part(self, shard: ShardRead, where: str, name: str, source: Source) -> Part:
        return Part(
            where=f"{self._view.uri}: shard {shard.shard_id}: {where}",
            name=name,
            source=source,
            base_schema=self._schema,
        )


class Verdict:
    """Which rows are the newest of their keys: of all keys, or of those that it was asked about."""

    def __init__(
        self, shards: Sequence[OpenShard], keys: Sequence[str], only: KeySet | None = None
    ) -> None:
        self._winners: dict[int, Any] = {}
        self._hidden: KeySet | None = None
        self._keys = list(keys)
        if not keys:
            return
        tables = _side_by_side(lambda part: part.keys(keys, only), _parts(shards))
        for shard in shards:
            oldest_first = list(reversed(shard.parts))
            if not oldest_first:
                continue
            folded = _folded(shard, [tables[id(p)] for p in oldest_first], keys)
            for part, winners in zip(oldest_first, folded.winners, strict=True):
                self._winners[id(part)] = winners
        if tables:
            columns = [
                pa.chunked_array([c for t in tables.values() for c in t[key].chunks])
                for key in keys
            ]
            self._hidden = KeySet(columns)

    def live(self, part: Part, batches: Batches) -> Batches:
        """A generation's rows without superseded and deleted ones."""
        for batch in batches:
            if self._keys:
                batch = fold.keep_winners(batch, self._winners[id(part)])
            if batch.num_rows:
                yield batch

    def visible(self, batches: Batches) -> Batches:
        """The base's rows without those whose key is in a generation."""
        return batches if self._hidden is None else self._hidden.outside(batches, self._keys)


def _folded(shard: OpenShard, tables: Sequence[pa.Table], keys: Sequence[str]) -> fold.Folded:
    try:
        return fold.fold(tables, keys)
    except Refused as error:
        raise Refused(f"shard {shard.read.shard_id}: {error}") from None


def _parts(shards: Sequence[OpenShard]) -> list[Part]:
    return [part for shard in shards for part in shard.parts]


def _side_by_side(work: Callable[[Part], T], parts: Sequence[Part]) -> dict[int, T]:
    """Do something to each part in threads; the results by the part's identity."""
    with ThreadPoolExecutor(_OPENERS_MAX) as pool:
        return dict(zip(map(id, parts), pool.map(work, parts), strict=True))


class LanceRead:
    """One opened read (the OpenRead port). Each `start` reads anew."""

    def __init__(
        self, *, plan: ReadPlan, base: Base, schema: pa.Schema, shards: tuple[OpenShard, ...]
    ) -> None:
        self._plan = plan
        self._base = base
        self._shards = shards
        self._scanned = pa.schema([schema.field(name) for name in plan.scanned])
        self._rows = Rows(schema=self._scanned, predicate=plan.predicate)
        self._parts = _parts(shards)
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
        if plan.limit == 0:
            return iter(())
        if plan.nearest is not None:
            search = Search(plan.nearest, self._base, self._parts, self._rows)
            return self._shown(search.run(self._judged))
        found = self._few()
        return self._shown(self._all() if found is None else iter(found))

    @property
    def way(self) -> str:
        """How the read goes about it (see the port)."""
        if self._plan.nearest is not None:
            return "candidates of each table, then their keys in the generations"
        if not self._parts:
            return "the base alone: nothing is pending"
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
        texts = _side_by_side(lambda part: part.plan_text(rows), list(parts.values()))
        return self._base.plan_text(rows), {key: texts[id(part)] for key, part in parts.items()}

    def own_indexes(self) -> dict[tuple[ShardId, int], frozenset[str]]:
        """Names of the indexes that each generation has (see the port)."""
        parts = self._listed()
        names = _side_by_side(lambda part: part.index_names(), list(parts.values()))
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

    def _shown(self, found: Batches) -> Batches:
        """What was asked for: no hidden columns, no more rows than the limit."""
        left = self._plan.limit
        for batch in found:
            kept = batch if left is None else batch.slice(0, left)
            yield pa.RecordBatch.from_arrays(
                [kept.column(name) for name in self.schema.names], schema=self.schema
            )
            if left is not None:
                left -= kept.num_rows
                if not left:
                    return

    # -- keys first

    def _all(self) -> Batches:
        verdict = Verdict(self._shards, self._plan.primary_key)
        return self._winners(verdict)

    def _winners(self, verdict: Verdict) -> Batches:
        # Generations first: they may be collected once they are merged, the version stays longer.
        for part in self._parts:
            yield from verdict.live(part, part.scan(self._rows))
        limit = None if self._parts else self._plan.limit
        yield from verdict.visible(self._base.scan(replace(self._rows, limit=limit)))

    # -- candidates first

    def _few(self) -> list[pa.RecordBatch] | None:
        """All rows if they are few, or as many as the limit asks for; None if that was no use."""
        plan = self._plan
        if not self._parts or not plan.primary_key:
            return None
        if plan.predicate is None and plan.limit is None:
            return None
        most = _CANDIDATES_MAX
        if plan.limit is not None:
            most = min(most, max(_CANDIDATES_MIN, 4 * plan.limit))
        found: list[Found] = []
        complete = True
        tables: list[Table] = [*self._parts, self._base]
        for source in tables:
            batches, whole = _up_to(most, source.scan(replace(self._rows, limit=most + 1)))
            found.append((source, batches))
            complete = complete and whole
            if not complete and (plan.limit is None or plan.limit > most):
                return None
        rows = [batch for _, batches in self._judged(found) for batch in batches]
        if not complete and sum(batch.num_rows for batch in rows) < (plan.limit or 0):
            return None
        return rows

    def _judged(self, found: Sequence[Found]) -> list[Found]:
        """The same without superseded rows; asks the generations about these rows' keys only."""
        keys = self._plan.primary_key
        batches = [batch for _, some in found for batch in some]
        asked = [
            pa.chunked_array([b.column(key) for b in batches], type=self._scanned.field(key).type)
            for key in keys
        ]
        verdict = Verdict(self._shards, keys, KeySet(asked) if keys else None)
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
