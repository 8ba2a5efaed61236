"""Generations that are small enough to be held in memory.

To open and scan a small generation costs more than its rows do: with many of them, a scan for keys
and another for payload take twice as long as one for both. With a filter, and generations that are
not that small, only what it may name is held, and payload is read where something is left. Lance
judges the filter here too, in one scan of a copy in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from memwal.format import layout
from memwal.model import SharedKey
from memwal.read.store.sources import Batches, Part, Rows, match_rows
from memwal.read.store.threads import map_in_order, map_parts
from memwal.read.store.verdict import OpenShard, fold_shard, list_parts
from memwal.rows import fold
from memwal.rows.keyset import KeySet, Mask, find_shared_key

# What looks like a call of a function: an index may answer one otherwise than a scan does
# (contains_tokens).
_CALL = re.compile(r"\b(?!(?:in|and|or|not|between|like|when|then|else)\b)\w+\s*\(", re.IGNORECASE)

# A generation is read whole up to this size on average: more payload takes longer to read than it
# takes to come back for it.
_WHOLE_BYTES_MAX = 256 * 1024

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
    """The rows of whole parts, and who wins among them."""

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
        self._shards = [shard for shard in shards if shard.parts]
        self._threads = threads
        self._distinct = 0
        self._tables = map_parts(lambda part: part.read_all(held), list_parts(shards), threads)
        parts = [part for shard in self._shards for part in reversed(shard.parts)]
        stacked = pa.concat_tables([self._tables[id(part)] for part in parts])
        self._stacked_keys = stacked.select(self._keys)
        self._matched: Mask | None = None
        if rows.predicate is not None:
            self._matched = match_filter(where, stacked, rows.predicate)

    def find_candidates(self) -> pa.Table:
        """The keys of all rows that match; a newer row of the same key may not."""
        if self._matched is None:
            return self._stacked_keys
        return self._stacked_keys.filter(pa.array(self._matched))

    def collect_keys(self, only: KeySet | None = None) -> KeySet:
        """The keys of all rows, or of those in the set: they hide the base's."""
        keys = self._stacked_keys
        if only is not None:
            keys = keys.filter(pa.array(only.contains(keys.columns)))
        return KeySet(keys.columns)

    def find_shared(self, hidden: KeySet) -> SharedKey | None:
        """A key that two shards have, among those that `read_winners` and `hidden` are of."""
        if self._distinct == hidden.count:
            return None
        tables = {
            shard.read.shard_id: [
                table.filter(pa.array(hidden.contains([table[key] for key in self._keys])))
                for table in (self._tables[id(part)] for part in shard.parts)
            ]
            for shard in self._shards
        }
        return find_shared_key(tables, self._keys)

    def read_winners(self, only: KeySet | None = None) -> Batches:
        """Winners that match, of all keys or of those in the set. Raises what a fold raises.

        Payload that is not held is read as it is taken, and raises what a scan raises.
        """
        of_keys = None if only is None else only.contains(self._stacked_keys.columns)
        found: list[_Piece] = []
        self._distinct = start = 0
        for shard in self._shards:
            pieces = []
            for part in reversed(shard.parts):
                table = self._tables[id(part)]
                mask = slice(start, start + len(table))
                start += len(table)
                numbers = np.arange(len(table))
                if of_keys is not None:
                    numbers = np.flatnonzero(of_keys[mask])
                if len(numbers):
                    matched = None if self._matched is None else self._matched[mask]
                    piece = _Piece(part=part, table=table, numbers=numbers, matched=matched)
                    pieces.append(piece)
            found += self._fold(shard, pieces)
        return self._read_payload(found)

    def _fold(self, shard: OpenShard, pieces: Sequence[_Piece]) -> Iterator[_Piece]:
        """The pieces with winners that match, left to these."""
        if not pieces:
            return
        names = [*self._keys, fold.ROW_ADDRESS, layout.TOMBSTONE]
        chosen = [piece.take(names) for piece in pieces]
        folded = fold_shard(shard.read.shard_id, chosen, self._keys)
        self._distinct += folded.distinct_keys
        for piece, rows, won in zip(pieces, chosen, folded.winners, strict=True):
            numbers = piece.numbers[np.isin(rows[fold.ROW_ADDRESS].to_numpy(), won)]
            if piece.matched is not None:
                numbers = numbers[piece.matched[numbers]]
            if len(numbers):
                yield replace(piece, numbers=numbers)

    def _read_payload(self, found: Sequence[_Piece]) -> Batches:
        names = self._wanted.columns
        if all(set(names) <= set(piece.table.column_names) for piece in found):
            for piece in found:
                yield from piece.take(names).to_batches()
            return
        read = map_in_order(lambda p: p.part.read_all(self._wanted), found, self._threads)
        for piece, whole in read:
            won = np.sort(piece.table[fold.ROW_ADDRESS].to_numpy()[piece.numbers])
            for batch in whole.to_batches():
                kept = fold.keep_winners(batch, won)
                if kept.num_rows:
                    yield kept.select(names)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Piece:
    """Some rows of a part by their ascending numbers; `matched` is a mask over all its rows."""

    part: Part
    table: pa.Table
    numbers: Numbers
    matched: Mask | None

    def take(self, columns: Sequence[str]) -> pa.Table:
        """The rows, in these columns."""
        table = self.table.select(columns)
        return table if len(self.numbers) == len(table) else table.take(pa.array(self.numbers))
