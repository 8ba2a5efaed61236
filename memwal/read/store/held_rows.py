"""Generations that are small enough to be held in memory.

To open and scan a small generation costs more than its rows do: with many of them, a scan for keys
and another for payload take twice as long as one for both. With a filter, and generations that are
not that small, only what it may name is held, and payload is read where something is left. Lance
judges the filter here too, in one scan of a copy in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from memwal.format import layout
from memwal.model import SharedKey
from memwal.read.store.sources import Batches, Part, Rows, match_rows
from memwal.read.store.threads import map_in_order, map_parts
from memwal.read.store.winners import OpenShard, find_shard_winners
from memwal.rows import fold
from memwal.rows.keyset import KeySet, Mask, find_shared_key

# What looks like a call of a function: an index may answer one otherwise than a scan does
# (contains_tokens).
_CALL = re.compile(r"\b(?!(?:in|and|or|not|between|like|when|then|else)\b)\w+\s*\(", re.IGNORECASE)

# A generation is read whole up to this size on average: more payload takes longer to read than it
# takes to come back for it.
_WHOLE_BYTES_MAX = 256 * 1024
# So much is taken out of what is held at once.
_BATCHES_BYTES = 8 * 1024 * 1024

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
