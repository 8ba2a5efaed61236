"""The newest row of every key: keys decide which rows win, payload is read for winners only.

pylance's own planners are not used, for what they do wrong or cannot do (14.0.2, each held by
tests/read/test_read_pylance.py):

- `LsmScanner` gives the first row when all are in memory, and took 24 s for 2 million rows with
  500 thousand pending ones, where this took 1 s; it fails on a generation that lacks the writer's
  private `_pk_index`, which the spec does not ask for, on a mixed-case column that its filter does
  not quote, and on a table without a primary key;
- `LsmPointLookupPlanner` fails when a key column's name is not in lower case;
- `LsmVectorSearchPlanner` looks into indexes only: rows that no index covers yet are left out, all
  rows when there is no index. It may also give fewer than k rows.

A read goes one of three ways. Small generations are read whole, and folded in memory. Keys first:
all pending keys are folded (as the merge does), winners are read, and the base without the pending
keys. Candidates first: when a filter or a limit leaves few rows, those are read, and only their
keys are looked up in the generations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

import numpy as np
import pyarrow as pa

from memwal.read.plan.sources import ReadPlan
from memwal.read.store.search import NearestSearch, TextSearch
from memwal.read.store.sources import Base, Batches, Found, Listed, OpenRead, Part, Rows
from memwal.read.store.threads import choose_threads, map_in_order, map_parts, scan_ahead
from memwal.read.store.winners import (
    OpenShard,
    Verdict,
    collect_keys,
    collect_wanted_keys,
    filter_rows,
    find_rows,
    key_rows,
    list_parts,
    may_name,
)
from memwal.rows.fold import find_winning

# Up to so many rows of each source are candidates; with more, all keys are folded.
_CANDIDATES_MAX = 4096
_CANDIDATES_MIN = 256
_CANDIDATE_BYTES_MAX = 64 * 1024 * 1024
_HELD_BYTES_MAX = 64 * 1024 * 1024
# On average: where few rows are wanted, a larger table costs more to read than to look into.
_SMALL_BYTES = 1024 * 1024
# What looks like a call: an index may answer one (contains_tokens) otherwise than a scan does.
_CALL = re.compile(r"\b(?!(?:in|and|or|not|between|like|when|then|else)\b)\w+\s*\(", re.IGNORECASE)


class NewestRows(OpenRead):
    """A read of the newest row of every key."""

    def __init__(
        self, plan: ReadPlan, base: Base, schema: pa.Schema, shards: Sequence[OpenShard]
    ) -> None:
        """`schema` is the base's. Raises Usage for a filter that Lance does not take."""
        super().__init__(plan, base, schema)
        self._shards = shards
        self._base_schema = schema
        self._keys = [schema.field(name) for name in plan.primary_key]
        self._threads = choose_threads(plan.uri)
        self._parts = list_parts(shards)
        self._search = None
        if plan.search is not None:
            self._search = TextSearch(
                plan.search, base, self._parts, self._rows, schema, self._threads
            )

    def _read(self) -> Batches:
        if self._plan.nearest is not None:
            search = NearestSearch(
                self._plan.nearest, self._base, self._parts, self._rows, self._threads
            )
            return search.run(self._drop_superseded)
        if self._search is not None:
            return self._search.run(self._plan.primary_key, self._plan.limit, self._drop_superseded)
        if self._looks_up:
            return self._look_up()
        return self._read_few()

    @property
    def way(self) -> str:
        """How the read goes about it, for people."""
        if self._plan.nearest is not None:
            return "candidates of each table, then their keys in the generations"
        if self._search is not None:
            return (
                "the best matches of each table, then their keys in the generations, ranked by "
                "statistics of all tables together"
            )
        if not self._parts:
            return "the base alone: nothing is pending"
        if self._looks_up:
            return "the keys in all generations, then rows of those that have them, then the base"
        if self._held:
            return "all generations, held in memory, then the base without their keys"
        if self._plan.predicate is None and self._plan.limit is None:
            return "keys of all generations, then winners, then the base without these keys"
        return (
            f"up to {_CANDIDATES_MAX} candidates of each table, then their keys in the "
            "generations; with more of them, all keys first"
        )

    def explain_plans(self) -> tuple[str, dict[Listed, str | None]]:
        """Lance's plans (see `OpenRead`)."""
        rows = self._rows
        if self._search is not None:
            plans = {p.listed: self._search.explain_scan(p) for p in self._parts if p.listed}
            return self._base.explain_scan(self._search.rows()), plans
        if self._plan.nearest is not None:
            search = NearestSearch(self._plan.nearest, self._base, self._parts, rows, self._threads)
            rows = search.rows(self._plan.nearest.k)
        scan = self._held or rows
        texts = map_in_order(lambda part: part.explain_scan(scan), self._parts, self._threads)
        return self._base.explain_scan(rows), {p.listed: text for p, text in texts if p.listed}

    def _decide(self, tables: Mapping[int, pa.Table]) -> Verdict:
        verdict = Verdict(self._shards, self._keys, tables)
        self._warn(verdict.shared)
        return verdict

    # -- by key

    @property
    def _looks_up(self) -> bool:
        searched = self._plan.nearest is not None or self._plan.search is not None
        return bool(self._parts and self._plan.keys) and not searched

    def _look_up(self) -> Batches:
        only = collect_wanted_keys(self._plan, self._base_schema)
        verdict = self._decide(find_rows(self._parts, self._keys, only, self._threads))
        having = [part for part in self._parts if verdict.has_winners(part)]
        live = list(self._keep_winners(verdict, scan_ahead(having, self._rows, self._threads)))
        if verdict.hides_all(only.count):
            return iter(live)
        return chain(live, verdict.keep_visible(self._base.scan(self._rows)))

    # -- all of them

    def _read_all(self) -> Batches:
        held, parts = self._held, self._parts if self._keys else ()
        rows = held or key_rows(self._keys)
        tables = map_parts(lambda part: part.read_all(rows), parts, self._threads)
        verdict = self._decide(tables)
        if held:
            found = pa.concat_tables(tables.values())
            wins = np.concatenate([find_winning(tables[p], verdict.winners[p]) for p in tables])
            live = iter(filter_rows(self._plan.uri, found, self._plan.predicate, wins).to_batches())
        else:
            live = self._keep_winners(verdict, scan_ahead(self._parts, self._rows, self._threads))
        limit = None if self._parts else self._plan.limit
        # Generations first: they may be collected once they are merged, the version stays longer.
        return chain(live, verdict.keep_visible(self._base.scan(replace(self._rows, limit=limit))))

    def _keep_winners(self, verdict: Verdict, found: Iterable[tuple[Part, Batches]]) -> Batches:
        for part, batches in found:
            yield from verdict.keep_winners(part, batches)

    @cached_property
    def _held(self) -> Rows | None:
        """What of all parts is held; None where they are large, or only Lance's scan tells.

        To look into a small table costs more than its rows do.
        """
        names = {*self._plan.primary_key, *self._scanned.names}
        predicate = self._plan.predicate
        fields = [f for f in self._base_schema if f.name in names or may_name(predicate, f.name)]
        sizes = [part.measure(fields) for part in self._parts]
        each = _HELD_BYTES_MAX if predicate is None and self._plan.limit is None else _SMALL_BYTES
        few = self._keys and 0 < sum(sizes) < min(_HELD_BYTES_MAX, each * len(sizes))
        odd = any(isinstance(field.type, pa.BaseExtensionType) for field in fields)
        sought = self._looks_up or self._plan.nearest or _CALL.search(predicate or "")
        held = Rows(schema=pa.schema(fields), tombstones=True)
        return held if few and not (odd or sought) else None

    # -- candidates first

    def _read_few(self) -> Batches:
        """All rows if they are few, or as many as the limit asks for; else keys first."""
        plan = self._plan
        unbounded = plan.predicate is None and plan.limit is None
        if not self._parts or not plan.primary_key or unbounded or self._held:
            return self._read_all()
        most = _CANDIDATES_MAX
        if plan.limit is not None:
            most = min(most, max(_CANDIDATES_MIN, 4 * plan.limit))
        rows = replace(self._rows, limit=most + 1)
        enough = plan.limit is not None and plan.limit <= most
        found: list[tuple[Part, list[pa.RecordBatch]]] = []
        complete = True
        for part, (batches, whole) in map_in_order(
            lambda p: _take(most, p.scan(rows)), self._parts, self._threads
        ):
            found.append((part, batches))
            complete = complete and whole
            if not complete and not enough:
                return self._read_all()
        candidates, whole = _take(most, self._base.scan(rows))
        if not whole and not enough:
            return self._read_all()
        newest = self._drop_superseded([*found, (self._base, candidates)])
        kept = [batch for _, batches in newest for batch in batches]
        if not (complete and whole) and sum(batch.num_rows for batch in kept) < (plan.limit or 0):
            return self._read_all()
        return iter(kept)

    def _drop_superseded(self, found: Sequence[Found]) -> list[Found]:
        """The found rows without superseded ones; looks only their keys up in the generations."""
        batches = [batch for _, some in found for batch in some]
        tables: dict[int, pa.Table] = {}
        if self._keys:
            only = collect_keys(batches, self._keys)
            tables = find_rows(self._parts, self._keys, only, self._threads)
        verdict = self._decide(tables)
        return [
            (
                table,
                list(
                    verdict.keep_winners(table, some)
                    if isinstance(table, Part)
                    else verdict.keep_visible(some)
                ),
            )
            for table, some in found
        ]


def _take(rows_max: int, batches: Batches) -> tuple[list[pa.RecordBatch], bool]:
    """The first batches within the bounds, and whether these are all."""
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
