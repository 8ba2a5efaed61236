"""Newest-wins folding of several generations, decided from key columns alone. Pure (Arrow in, out).

Who wins is the row with the highest (generation, row address) (spec: LSM Tree Merging Read); a
winner that is a tombstone means that the key is deleted. Payload columns are read later, for the
winners only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memwal import layout
from memwal.errors import Refused

ROW_ADDRESS = "_rowaddr"
ANCHORS_MAX = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Folded:
    """The outcome of folding generations, oldest first.

    `winners[i]` are the ascending row addresses (uint64) of generation i's live winners;
    `tombstones` the key columns of deleted keys; `anchors` the keys (a sample) of the first
    generation that no generation of the fold deletes: any other merger's fold of a part of these
    generations has to write them too (see `plan.merge.guard`).
    """

    winners: tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], ...]
    rows_read: tuple[int, ...]
    tombstones: pa.Table
    anchors: pa.Table
    key_bytes: int

    @property
    def live_rows(self) -> int:
        """Rows that the base will hold after the fold."""
        return sum(len(w) for w in self.winners)


def fold(tables: Sequence[pa.Table], keys: Sequence[str]) -> Folded:
    """Fold generations' key tables, oldest generation first.

    Each table has the key columns, `_rowaddr` (uint64) and, if the writer knows deletes,
    `_tombstone` (bool). A writer that did not dedupe within a generation is fine. Raises Refused
    when a key is NULL: such a row can't be matched, and merging it again would double it.
    """
    # Keys go by aliases in here: a key column may be called anything, `_seq` too.
    aliases = [f"key{place}" for place in range(len(keys))]
    stacked = pa.concat_tables(
        [_numbered(table, keys, aliases, number) for number, table in enumerate(tables)]
    )
    for key, alias in zip(keys, aliases, strict=True):
        if stacked[alias].null_count:
            raise Refused(f"{stacked[alias].null_count} rows have NULL in the key column {key!r}")
    stacked = stacked.append_column("_seq", pa.array(np.arange(len(stacked), dtype=np.int64)))
    best = stacked.group_by(aliases).aggregate(
        [("_seq", "max"), ("_generation", "min"), (layout.TOMBSTONE, "max")]
    )
    newest = stacked.take(best["_seq_max"].combine_chunks())
    dead = newest[layout.TOMBSTONE]
    anchored = pc.and_(
        pc.equal(best["_generation_min"], 0), pc.invert(best[f"{layout.TOMBSTONE}_max"])
    )
    live = newest.filter(pc.invert(dead))
    tombstones = newest.filter(dead).select(aliases)
    anchors = best.filter(anchored).select(aliases).slice(0, ANCHORS_MAX)
    return Folded(
        winners=tuple(_addresses(live, number) for number in range(len(tables))),
        rows_read=tuple(len(table) for table in tables),
        tombstones=tombstones.rename_columns(list(keys)).combine_chunks(),
        anchors=anchors.rename_columns(list(keys)).combine_chunks(),
        key_bytes=stacked.nbytes,
    )


def newest_rows(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key, in the rows' order. Raises Refused when a key is NULL."""
    aliases = [f"key{place}" for place in range(len(keys))]
    for key in keys:
        if table[key].null_count:
            raise Refused(f"{table[key].null_count} rows have NULL in the key column {key!r}")
    numbered = pa.table(
        [*(table[key] for key in keys), pa.array(np.arange(len(table), dtype=np.int64))],
        names=[*aliases, "_seq"],
    )
    last = numbered.group_by(aliases).aggregate([("_seq", "max")])["_seq_max"]
    if len(last) == len(table):
        return table
    return table.take(pa.array(np.sort(last.to_numpy())))


def _numbered(
    table: pa.Table, keys: Sequence[str], aliases: Sequence[str], number: int
) -> pa.Table:
    """The table's keys, addresses and tombstones in address order, tagged with its generation."""
    addresses = table[ROW_ADDRESS].cast(pa.uint64())
    tombstones = (
        pc.fill_null(table[layout.TOMBSTONE], False)
        if layout.TOMBSTONE in table.column_names
        else pa.array(np.zeros(len(table), dtype=bool))
    )
    numbered = pa.table(
        [
            *(table[key] for key in keys),
            addresses,
            tombstones,
            pa.array(np.full(len(table), number, dtype=np.int32)),
        ],
        names=[*aliases, ROW_ADDRESS, layout.TOMBSTONE, "_generation"],
    )
    flat = addresses.to_numpy()
    if len(flat) > 1 and not bool(np.all(flat[1:] > flat[:-1])):
        return numbered.take(pa.array(np.argsort(flat, kind="stable")))
    return numbered


def _addresses(live: pa.Table, number: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    mine = live.filter(pc.equal(live["_generation"], number))
    return np.sort(mine[ROW_ADDRESS].to_numpy())


def keep_winners(
    batch: pa.RecordBatch, winners: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> pa.RecordBatch:
    """The batch's rows whose `_rowaddr` is a winner; the batch itself, uncopied, if all are."""
    addresses = batch.column(ROW_ADDRESS).to_numpy()
    places = np.searchsorted(winners, addresses)
    wins = np.zeros(len(addresses), dtype=bool)
    inside = places < len(winners)
    wins[inside] = winners[places[inside]] == addresses[inside]
    return batch if wins.all() else batch.filter(pa.array(wins))
