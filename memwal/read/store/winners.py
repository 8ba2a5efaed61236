"""Which rows win among generations, from their keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.errors import Refused
from memwal.model import ShardId, SharedKey
from memwal.read.plan.sources import ReadPlan, ShardRead
from memwal.read.store.sources import Batches, Part, Rows, match_rows
from memwal.read.store.threads import map_parts
from memwal.rows import fold
from memwal.rows.keyset import KeySet, Mask, find_shared_key


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
    """Which rows are the newest of their keys.

    `winners` are the addresses of the newest rows, deletes left out, by the part's identity.
    `shared` is a key that two shards have, if there is one.
    """

    def __init__(
        self, shards: Sequence[OpenShard], keys: Sequence[pa.Field], tables: Mapping[int, pa.Table]
    ) -> None:
        """`tables` have the rows to judge, by the identity of the part that they are of.

        `keys` are the key's columns in the base. Raises Refused for a NULL in one of them.
        """
        self.winners: dict[int, Any] = {}
        self._hidden: KeySet | None = None
        self.shared: SharedKey | None = None
        self._keys = [key.name for key in keys]
        distinct = 0
        for shard in shards:
            oldest_first = [part for part in reversed(shard.parts) if id(part) in tables]
            if not oldest_first:
                continue
            mine = [tables[id(part)] for part in oldest_first]
            decided = fold_shard(shard.read.shard_id, mine, self._keys)
            distinct += decided.live_rows + len(decided.tombstones)
            for part, winners in zip(oldest_first, decided.winners, strict=True):
                self.winners[id(part)] = winners
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
        return len(self.winners.get(id(part), ())) > 0

    def hides_all(self, keys: int) -> bool:
        """Whether all of the `keys` keys in `only` are in a generation."""
        return self._hidden is not None and self._hidden.count >= keys

    def keep_winners(self, part: Part, batches: Iterable[pa.RecordBatch]) -> Batches:
        """A generation's rows without superseded and deleted ones."""
        if not self._keys:
            yield from batches
        elif self.has_winners(part):
            for batch in batches:
                batch = fold.keep_winners(batch, self.winners[id(part)])
                if batch.num_rows:
                    yield batch

    def keep_visible(self, batches: Iterable[pa.RecordBatch]) -> Batches:
        """The base's rows without those whose key is in a generation."""
        if self._hidden is None:
            return iter(batches)
        return self._hidden.outside(batches, self._keys)


def key_rows(keys: Sequence[pa.Field]) -> Rows:
    """What tells which rows win."""
    return Rows(schema=pa.schema(keys), tombstones=True)


def find_rows(
    parts: Sequence[Part], keys: Sequence[pa.Field], only: KeySet, threads: int
) -> dict[int, pa.Table]:
    """The key columns of rows with keys in `only`, by the identity of each part that has any.

    All parts' keys are searched at once: most lookups are for few keys in many small tables.
    """
    rows = key_rows(keys)
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
    try:
        return fold.fold(tables, keys)
    except Refused as error:
        raise error.at(f"shard {shard_id}") from None


def list_parts(shards: Sequence[OpenShard]) -> list[Part]:
    """The parts of all shards."""
    return [part for shard in shards for part in shard.parts]


def may_name(predicate: str | None, column: str) -> bool:
    """Whether the filter may read the column.

    Judged by the text: it may be true too often, and is never false too often. Only Lance knows.
    """
    if predicate is None:
        return False
    return column.lower() in predicate.lower() or not column.isidentifier()


def filter_rows(where: str, table: pa.Table, predicate: str | None, wanted: Mask) -> pa.Table:
    """Of the wanted rows those that match a filter that may name any of their columns.

    See `match_rows`.
    """
    if predicate is not None and wanted.any():
        named = table.select([name for name in table.column_names if may_name(predicate, name)])
        wanted[wanted] = match_rows(where, named.filter(pa.array(wanted)), predicate)
    return table.filter(pa.array(wanted))
