"""Generations that are small enough to be held in memory.

To open and scan a small generation costs more than its rows do: with many of them, a scan for keys
and another for payload take twice as long as one for both. With a filter, and generations that are
not that small, only what it may name is held, and payload is read where something is left. Lance
judges the filter here too, in one scan of a copy in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from memwal.format import layout
from memwal.model import ShardId, SharedKey
from memwal.read.store_beside import in_turn
from memwal.read.store_sources import Batches, Part, Rows, judged
from memwal.rows import fold
from memwal.rows.keyset import KeySet, Mask, find_shared_key

# What looks like a call of a function: an index may answer one otherwise than a scan does
# (contains_tokens).
_CALL = re.compile(r"\b(?!(?:in|and|or|not|between|like|when|then|else)\b)\w+\s*\(", re.IGNORECASE)

# A generation is read whole up to this size on average: more payload takes longer to read than it
# takes to come back for it.
_WHOLE_BYTES_MAX = 256 * 1024

Fold = Callable[[Sequence[pa.Table]], fold.Folded]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]


def may_hold(parts: Iterable[Part], rows: Rows, predicate: str | None, bytes_max: int) -> bool:
    """Whether the parts say that they are small, and the columns and the filter are simple."""
    sizes = [part.in_memory_bytes for part in parts]
    known = [size for size in sizes if size]
    return (
        len(known) == len(sizes)
        and sum(known) <= bytes_max
        and not any(isinstance(field.type, pa.BaseExtensionType) for field in rows.schema)
        and not _CALL.search(predicate or "")
    )


def held_rows(parts: Sequence[Part], rows: Rows, keys: Sequence[str], base: pa.Schema) -> Rows:
    """What is held for a read of `rows`: all columns, or the keys and what the filter may name."""
    if rows.predicate is None:
        return Rows(schema=rows.schema, tombstones=True)
    size = sum(part.in_memory_bytes or 0 for part in parts) // max(1, len(parts))
    plain = not any(isinstance(field.type, pa.BaseExtensionType) for field in rows.schema)
    wanted = {*keys, *(rows.columns if plain and size <= _WHOLE_BYTES_MAX else ())}
    fields = [f for f in base if f.name in wanted or may_name(rows.predicate, f.name)]
    return Rows(schema=pa.schema(fields), tombstones=True)


def may_name(predicate: str | None, column: str) -> bool:
    """Whether the filter may read the column.

    Told by the text, so that it is too often true, and never too seldom; Lance alone knows.
    """
    if predicate is None:
        return False
    return column.lower() in predicate.lower() or not column.isidentifier()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeldShard:
    """A shard's parts with their rows, oldest first, and how their keys are folded."""

    shard_id: ShardId
    parts: Sequence[Part]
    tables: Sequence[pa.Table]
    fold: Fold


class Held:
    """The rows of whole parts, and who wins among them."""

    def __init__(
        self, where: str, keys: Sequence[str], rows: Rows, shards: Sequence[HeldShard], threads: int
    ) -> None:
        """`rows` is what is wanted in the end, with the filter. Raises Usage for a bad filter."""
        self._keys = list(keys)
        self._wanted = Rows(schema=rows.schema)
        self._shards = shards
        self._threads = threads
        self._distinct = 0
        stacked = pa.concat_tables([table for shard in shards for table in shard.tables])
        self._stacked_keys = stacked.select(self._keys)
        self._matched: Mask | None = None
        if (predicate := rows.predicate) is not None:
            named = [n for n in stacked.column_names if may_name(predicate, n)]
            self._matched = judged(where, stacked.select(named), predicate)

    def candidates(self) -> pa.Table:
        """The keys of all rows that match; a newer row of the same key may not."""
        if self._matched is None:
            return self._stacked_keys
        return self._stacked_keys.filter(pa.array(self._matched))

    def hidden(self, only: KeySet | None = None) -> KeySet:
        """The keys of all rows, or of those in the set: they hide the base's."""
        keys = self._stacked_keys
        if only is not None:
            keys = keys.filter(pa.array(only.contains(keys.columns)))
        return KeySet(keys.columns)

    def shared(self, hidden: KeySet) -> SharedKey | None:
        """A key that two shards have, of those that `live` and `hidden` were asked about last."""
        if self._distinct == hidden.count:
            return None
        tables = {
            shard.shard_id: [
                table.filter(pa.array(hidden.contains([table[key] for key in self._keys])))
                for table in shard.tables
            ]
            for shard in self._shards
        }
        return find_shared_key(tables, self._keys)

    def live(self, only: KeySet | None = None) -> Batches:
        """Winners that match, of all keys or of those in the set. Raises what a fold raises.

        Payload that is not held is read as it is taken, and raises what a scan raises.
        """
        of_keys = None if only is None else only.contains(self._stacked_keys.columns)
        found: list[_Piece] = []
        self._distinct = start = 0
        for shard in self._shards:
            pieces = []
            for part, table in zip(shard.parts, shard.tables, strict=True):
                mask = slice(start, start + len(table))
                start += len(table)
                numbers = _numbers(len(table), None if of_keys is None else of_keys[mask])
                if len(numbers):
                    matched = None if self._matched is None else self._matched[mask]
                    piece = _Piece(part=part, table=table, numbers=numbers, matched=matched)
                    pieces.append(piece)
            found += self._winners(shard, pieces)
        return self._shown(found)

    def _winners(self, shard: HeldShard, pieces: Sequence[_Piece]) -> Iterator[_Piece]:
        """The pieces with winners that match, left to these."""
        if not pieces:
            return
        names = [*self._keys, fold.ROW_ADDRESS, layout.TOMBSTONE]
        chosen = [_chosen(piece.table.select(names), piece.numbers) for piece in pieces]
        decided = shard.fold(chosen)
        self._distinct += decided.distinct_keys
        for piece, rows, won in zip(pieces, chosen, decided.winners, strict=True):
            numbers = piece.numbers[np.isin(rows[fold.ROW_ADDRESS].to_numpy(), won)]
            if piece.matched is not None:
                numbers = numbers[piece.matched[numbers]]
            if len(numbers):
                yield replace(piece, numbers=numbers)

    def _shown(self, found: Sequence[_Piece]) -> Batches:
        names = self._wanted.columns
        if all(set(names) <= set(piece.table.column_names) for piece in found):
            for piece in found:
                yield from _chosen(piece.table.select(names), piece.numbers).to_batches()
            return
        pieces = {id(piece.part): piece for piece in found}
        parts = [piece.part for piece in found]
        for part, whole in in_turn(lambda p: p.whole(self._wanted), parts, self._threads):
            won = np.sort(pieces[id(part)].addresses())
            for batch in whole.to_batches():
                kept = fold.keep_winners(batch, won)
                if kept.num_rows:
                    yield kept.select(names)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Piece:
    """Some rows of a part by their numbers, and which of all its rows match the filter."""

    part: Part
    table: pa.Table
    numbers: Numbers
    matched: Mask | None

    def addresses(self) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The rows' addresses."""
        found: np.ndarray[tuple[int], np.dtype[np.uint64]]
        found = self.table[fold.ROW_ADDRESS].to_numpy()[self.numbers]
        return found


def _numbers(rows: int, mask: Mask | None) -> Numbers:
    return np.arange(rows) if mask is None else np.flatnonzero(mask)


def _chosen(table: pa.Table, numbers: Numbers) -> pa.Table:
    """The rows of these ascending numbers."""
    return table if len(numbers) == len(table) else table.take(pa.array(numbers))
