"""Which rows win among generations, from their keys, and generations small enough to be held.

To open and scan a small generation costs more than its rows do: with many of them, a scan for keys
and another for payload take twice as long as one for both. With a filter, and generations that are
not that small, only what it may name is held, and payload is read where something is left. Lance
judges the filter here too, in one scan of a copy in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Refused
from memwal.format import layout
from memwal.model import ShardId, SharedKey
from memwal.read.plan.sources import ReadPlan, ShardRead
from memwal.read.store.sources import Batches, Part, Rows, match_rows
from memwal.read.store.threads import map_in_order, map_parts
from memwal.rows import fold
from memwal.rows.keyset import KeySet, Mask, Places, find_shared_key

# What looks like a call of a function: an index may answer one otherwise than a scan does
# (contains_tokens).
_CALL = re.compile(r"\b(?!(?:in|and|or|not|between|like|when|then|else)\b)\w+\s*\(", re.IGNORECASE)
# A generation is read whole up to this size on average: more payload takes longer to read than it
# takes to come back for it.
_WHOLE_BYTES_MAX = 256 * 1024
# So much is taken out of what is held at once.
_BATCHES_BYTES = 8 * 1024 * 1024


def collect_keys(tables: Sequence[pa.Table | pa.RecordBatch], keys: Sequence[pa.Field]) -> KeySet:
    """The keys of all rows of the tables."""
    columns = []
    for key in keys:
        parts = [table[key.name] for table in tables]
        chunks = [c for part in parts for c in getattr(part, "chunks", (part,))]
        columns.append(pa.chunked_array(chunks, type=key.type))
    return KeySet(columns)


def collect_wanted_keys(plan: ReadPlan, schema: pa.Schema) -> KeySet:
    """The keys that a request names, in columns of the schema's types."""
    keys = plan.keys or ()
    return KeySet(
        [
            pa.chunked_array([[key[place] for key in keys]], type=schema.field(name).type)
            for place, name in enumerate(plan.primary_key)
        ]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenShard:
    """One shard's generations, newest first; unflushed rows come before them."""

    read: ShardRead
    parts: tuple[Part, ...]


class Verdict:
    """Which rows are the newest of their keys, for all keys or those in `only`.

    `shared` is a key that two shards have, if there is one.
    """

    def __init__(
        self,
        shards: Sequence[OpenShard],
        keys: Sequence[pa.Field],
        only: KeySet | None = None,
        *,
        threads: int,
    ) -> None:
        """`keys` are the key's columns in the base. Raises Refused for a NULL in one of them."""
        self._winners: dict[int, Any] = {}
        self._hidden: KeySet | None = None
        self.shared: SharedKey | None = None
        self._keys = [key.name for key in keys]
        if not keys:
            return
        rows = Rows(schema=pa.schema(keys), tombstones=True)
        if only is None:
            tables = map_parts(lambda part: part.read_all(rows), list_parts(shards), threads)
        else:
            tables = find_rows(list_parts(shards), rows, only, threads)
        distinct = 0
        for shard in shards:
            oldest_first = [part for part in reversed(shard.parts) if id(part) in tables]
            if not oldest_first:
                continue
            mine = [tables[id(part)] for part in oldest_first]
            decided = fold_shard(shard.read.shard_id, mine, self._keys)
            distinct += decided.distinct_keys
            for part, winners in zip(oldest_first, decided.winners, strict=True):
                self._winners[id(part)] = winners
        if tables:
            self._hidden = collect_keys(list(tables.values()), keys)
            if distinct > self._hidden.count:
                by_shard = {
                    shard.read.shard_id: [tables[id(p)] for p in shard.parts if id(p) in tables]
                    for shard in shards
                }
                self.shared = find_shared_key(by_shard, self._keys)

    def has_winners(self, part: Part) -> bool:
        """Whether the generation has the newest row of any of the keys, deleted ones left out."""
        return len(self._winners.get(id(part), ())) > 0

    def hides_all(self, keys: int) -> bool:
        """Whether all of the `keys` keys in `only` are in a generation."""
        return self._hidden is not None and self._hidden.count >= keys

    def keep_winners(self, part: Part, batches: Iterable[pa.RecordBatch]) -> Batches:
        """A generation's rows without superseded and deleted ones."""
        if not self._keys:
            yield from batches
        elif self.has_winners(part):
            for batch in batches:
                batch = fold.keep_winners(batch, self._winners[id(part)])
                if batch.num_rows:
                    yield batch

    def keep_visible(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """The base's rows without those whose key is in a generation."""
        if self._hidden is None:
            return iter(batches)
        return self._hidden.outside(batches, self._keys)


def find_rows(parts: Sequence[Part], rows: Rows, only: KeySet, threads: int) -> dict[int, pa.Table]:
    """The key columns of rows with keys in `only`, by the identity of each part that has any.

    All parts' keys are searched at once: most lookups are for few keys in many small tables.
    """
    kept = {id(part): table for part in parts if (table := part.find_keys(rows)) is not None}
    unread = [part for part in parts if id(part) not in kept]
    kept |= map_parts(lambda part: part.read_keys(rows, only), unread, threads)
    stacked = pa.concat_tables([rows.addressed.empty_table(), *kept.values()])
    places = np.flatnonzero(only.contains([stacked[name] for name in rows.columns]))
    found = stacked.take(pa.array(places))
    starts = np.cumsum([0, *map(len, kept.values())])
    ends = np.searchsorted(places, starts).tolist()
    spans = zip(kept, ends, ends[1:], strict=False)
    return {part: found.slice(start, end - start) for part, start, end in spans if end > start}


def fold_shard(shard_id: ShardId, tables: Sequence[pa.Table], keys: Sequence[str]) -> fold.Folded:
    """The shard's keys, folded, oldest generation first. Raises Refused for a NULL in a key."""
    with _of_shard(shard_id):
        return fold.fold(tables, keys)


def find_shard_winners(
    shard_id: ShardId, rows: pa.Table, keys: Sequence[str]
) -> tuple[Places, int]:
    """What `fold.find_winners` finds among a shard's rows. Raises what `fold_shard` does."""
    with _of_shard(shard_id):
        return fold.find_winners(rows, keys)


@contextmanager
def _of_shard(shard_id: ShardId) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise error.at(f"shard {shard_id}") from None


def list_parts(shards: Sequence[OpenShard]) -> list[Part]:
    """The parts of all shards."""
    return [part for shard in shards for part in shard.parts]


Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def may_hold(parts: Iterable[Part], rows: Rows, predicate: str | None, bytes_max: int) -> bool:
    """Whether the parts say that they are small, and the columns and the filter are simple."""
    sizes = [part.in_memory_bytes for part in parts]
    known = [size for size in sizes if size]
    return (
        len(known) == len(sizes)
        and sum(known) <= bytes_max
        and not _has_extensions(rows.schema)
        and not _CALL.search(predicate or "")
    )


def rows_to_hold(parts: Sequence[Part], rows: Rows, keys: Sequence[str], base: pa.Schema) -> Rows:
    """What is held for a read of `rows`: all columns, or the keys and what the filter may name."""
    if rows.predicate is None:
        return Rows(schema=rows.schema, tombstones=True)
    size = sum(part.in_memory_bytes or 0 for part in parts) // max(1, len(parts))
    whole = size <= _WHOLE_BYTES_MAX and not _has_extensions(rows.schema)
    wanted = {*keys, *(rows.columns if whole else ())}
    fields = [f for f in base if f.name in wanted or may_name(rows.predicate, f.name)]
    return Rows(schema=pa.schema(fields), tombstones=True)


def _has_extensions(schema: pa.Schema) -> bool:
    return any(isinstance(kind, pa.BaseExtensionType) for kind in schema.types)


def may_name(predicate: str | None, column: str) -> bool:
    """Whether the filter may read the column.

    Judged by the text: it may be true too often, and is never false too often. Only Lance knows.
    """
    if predicate is None:
        return False
    return column.lower() in predicate.lower() or not column.isidentifier()


def match_filter(where: str, table: pa.Table, predicate: str) -> Mask:
    """Which rows match a filter that may name any of their columns (see `match_rows`)."""
    named = [name for name in table.column_names if may_name(predicate, name)]
    return match_rows(where, table.select(named), predicate)


class HeldRows:
    """All rows of some parts, held in memory, and which of them win."""

    def __init__(
        self,
        where: str,
        keys: Sequence[str],
        rows: Rows,
        shards: Sequence[OpenShard],
        held: Rows,
        threads: int,
    ) -> None:
        """Read the columns `held`; `rows` is what is wanted in the end, with the filter.

        Raises what a scan raises.
        """
        self._keys = list(keys)
        self._wanted = Rows(schema=rows.schema)
        self._threads = threads
        self._distinct = 0
        self._shards = [shard for shard in shards if shard.parts]
        self._parts = [part for shard in self._shards for part in reversed(shard.parts)]
        tables = map_parts(lambda part: part.read_all(held), self._parts, threads)
        self._stacked, self._starts = _stack([tables[id(part)] for part in self._parts])
        self._matched: Mask | None = None
        if rows.predicate is not None:
            self._matched = match_filter(where, self._stacked, rows.predicate)

    def find_candidates(self) -> pa.Table:
        """The keys of all rows that match; a newer row of the same key may not."""
        keys = self._stacked.select(self._keys)
        return keys if self._matched is None else keys.filter(pa.array(self._matched))

    def collect_keys(self, only: KeySet | None = None) -> KeySet:
        """The keys of all rows, or of those in the set: they hide the base's."""
        keys = self._stacked.select(self._keys)
        if only is not None:
            keys = keys.filter(pa.array(only.contains(keys.columns)))
        return KeySet(keys.columns)

    def find_shared(self, hidden: KeySet) -> SharedKey | None:
        """A key that two shards have, among the keys of `read_winners` and `hidden`; else None."""
        if self._distinct == hidden.count:
            return None
        keys = self._stacked.select(self._keys)
        tables = {}
        for shard, start, end in self._list_spans():
            mine = keys.slice(start, end - start)
            tables[shard.read.shard_id] = [mine.filter(pa.array(hidden.contains(mine.columns)))]
        return find_shared_key(tables, self._keys)

    def read_winners(self, only: KeySet | None = None) -> Batches:
        """Winners that match, of all keys or those in `only`. Raises what a fold raises.

        Payload that is not held is read as it is taken, and raises what a scan raises.
        """
        judged = self._stacked.select([*self._keys, layout.TOMBSTONE])
        asked = None if only is None else only.contains(judged.columns[: len(self._keys)])
        found = [np.empty(0, dtype=np.int64)]
        self._distinct = 0
        for shard, start, end in self._list_spans():
            rows, numbers = judged.slice(start, end - start), np.arange(start, end)
            if asked is not None:
                numbers = np.flatnonzero(asked[start:end])
                rows, numbers = rows.take(pa.array(numbers)), numbers + start
            won, distinct = find_shard_winners(shard.read.shard_id, rows, self._keys)
            self._distinct += distinct
            found.append(numbers[won])
        chosen = np.concatenate(found)
        return self._read_payload(
            chosen if self._matched is None else chosen[self._matched[chosen]]
        )

    def _list_spans(self) -> Iterator[tuple[OpenShard, int, int]]:
        """Each shard with where its rows begin and end."""
        first = 0
        for shard in self._shards:
            last = first + len(shard.parts)
            yield shard, int(self._starts[first]), int(self._starts[last])
            first = last

    def _read_payload(self, won: Numbers) -> Batches:
        """The rows with these ascending numbers."""
        names = self._wanted.columns
        if not set(names) <= set(self._stacked.column_names):
            yield from self._read_left_out(won)
            return
        held = self._stacked.select(names)
        step = max(1, _BATCHES_BYTES * len(held) // max(1, held.nbytes))
        for start in range(0, len(held), step):
            some = held.slice(start, step)
            mask = np.zeros(len(some), dtype=bool)
            mask[won[slice(*np.searchsorted(won, (start, start + step)))] - start] = True
            kept = some if mask.all() else some.filter(pa.array(mask))
            yield from (batch for batch in kept.to_batches() if batch.num_rows)

    def _read_left_out(self, won: Numbers) -> Batches:
        addresses = self._stacked[fold.ROW_ADDRESS].to_numpy()
        ends = np.searchsorted(won, self._starts)
        winners = {
            id(part): np.sort(addresses[won[start:end]])
            for part, start, end in zip(self._parts, ends, ends[1:], strict=False)
        }
        having = [part for part in self._parts if len(winners[id(part)])]
        read = map_in_order(lambda part: part.read_all(self._wanted), having, self._threads)
        for part, whole in read:
            for batch in whole.to_batches():
                kept = fold.keep_winners(batch, winners[id(part)])
                if kept.num_rows:
                    yield kept.select(self._wanted.columns)


def _stack(tables: Sequence[pa.Table]) -> tuple[pa.Table, Numbers]:
    """The tables in one, each in the order of its addresses, and where each begins and ends."""
    starts = np.cumsum([0, *map(len, tables)])
    stacked = pa.concat_tables(tables)
    addresses = stacked[fold.ROW_ADDRESS].to_numpy()
    ascends = addresses[1:] > addresses[:-1]
    ascends[starts[(starts > 0) & (starts < len(stacked))] - 1] = True
    if not ascends.all():
        places = np.repeat(np.arange(len(tables)), np.diff(starts))
        stacked = stacked.take(pa.array(np.lexsort((addresses, places))))
    return stacked, starts
