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

from memwal.errors import Refused
from memwal.format import layout
from memwal.rows.keyset import KeySet, Mask, Places, alias_keys

ROW_ADDRESS = "_rowaddr"
ANCHORS_MAX = 64
_ANCHORS_ASKED = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Folded:
    """The outcome of folding generations, oldest first.

    `winners[i]` are the ascending row addresses (uint64) of generation i's live winners, and
    `reach[i]` how many of its rows, in address order, have to be read to see them all;
    `tombstones` the key columns of deleted keys; `anchors` the keys (a sample) of the first
    generation that no generation of the fold deletes: any other merger's fold of a part of these
    generations has to write them too (see `is_guarded` in the merge plan). `columns` are the key
    columns of all rows, and `live` the places of the winners there.
    """

    winners: tuple[np.ndarray[tuple[int], np.dtype[np.uint64]], ...]
    reach: tuple[int, ...]
    tombstones: pa.Table
    anchors: pa.Table
    columns: pa.Table
    live: Places

    @property
    def live_keys(self) -> pa.Table:
        """The key columns of the live winners; made anew each time, as few ask for them."""
        return _take_rows(self.columns, self.live).rename_columns(self.tombstones.column_names)

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
    ordered = [_sort(table) for table in tables]
    columns = pa.concat_tables([alias_keys(table, keys) for table in ordered])
    check_keys(columns, keys)
    addresses = [table[ROW_ADDRESS].cast(pa.uint64()).to_numpy() for table in ordered]
    dead = np.concatenate([find_tombstones(table) for table in ordered])
    newest = _find_newest(columns)
    live = newest[~dead[newest]]
    starts = np.cumsum([0, *(len(table) for table in ordered)])
    ends = np.searchsorted(live, starts)
    places = [live[ends[i] : ends[i + 1]] - starts[i] for i in range(len(ordered))]
    return Folded(
        winners=tuple(mine[at] for mine, at in zip(addresses, places, strict=True)),
        reach=tuple(int(at[-1]) + 1 if len(at) else 0 for at in places),
        tombstones=_take_rows(columns, newest[dead[newest]]).rename_columns(list(keys)),
        anchors=_find_anchors(columns, dead, len(ordered[0])).rename_columns(list(keys)),
        columns=columns,
        live=live,
    )


def keep_newest(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The last row of each key, in the rows' order. Raises Refused when a key is NULL."""
    columns = alias_keys(table, keys)
    check_keys(columns, keys)
    newest = _find_newest(columns)
    return table if len(newest) == len(table) else table.take(pa.array(newest))


def check_keys(columns: pa.Table, keys: Sequence[str]) -> None:
    """Raise Refused when a key is NULL. `columns` are those of the key, by any names."""
    for key, column in zip(keys, columns.columns, strict=True):
        if column.null_count:
            raise Refused("MW-K01", f"{column.null_count} rows have NULL in the key column {key!r}")


def _sort(table: pa.Table) -> pa.Table:
    """The table in address order."""
    flat = table[ROW_ADDRESS].cast(pa.uint64()).to_numpy()
    if len(flat) > 1 and not bool(np.all(flat[1:] > flat[:-1])):
        return table.take(pa.array(np.argsort(flat, kind="stable")))
    return table


def find_tombstones(table: pa.Table) -> Mask:
    """Which rows are tombstones: none where the writer knew no deletes."""
    if layout.TOMBSTONE not in table.column_names:
        return np.zeros(len(table), dtype=bool)
    dead: Mask = pc.fill_null(table[layout.TOMBSTONE], False).to_numpy()
    return dead


def _find_newest(columns: pa.Table) -> Places:
    """The places, ascending, of the last row of each key. No key is NULL."""
    if columns.num_columns == 1 and pa.types.is_integer(columns.column(0).type):
        return _find_newest_integers(columns.column(0).to_numpy())
    places = pa.array(np.arange(len(columns), dtype=np.int64))
    grouped = columns.append_column("place", places).group_by(columns.column_names)
    return np.sort(grouped.aggregate([("place", "max")])["place_max"].to_numpy())


def _find_newest_integers(values: np.ndarray) -> Places:
    """The same for one column of integers: sorting takes a tenth of what hashing takes."""
    count = len(values)
    if not count:
        return np.empty(0, dtype=np.int64)
    # Unsigned differences are right for all integers: what overflows comes round.
    offsets = values.astype(np.uint64) - values.min().astype(np.uint64)
    bits = np.uint64(count.bit_length())
    if int(offsets.max()).bit_length() + int(bits) <= 64:
        # A key and its place in one number: to sort these is faster than to find keys' order.
        packed = offsets << bits | np.arange(count, dtype=np.uint64)
        packed.sort()
        order = packed & ~(~np.uint64(0) << bits)
        offsets = packed >> bits
    else:
        order = np.argsort(offsets)
        offsets = offsets[order]
    starts = np.flatnonzero(np.concatenate([[True], offsets[1:] != offsets[:-1]]))
    newest = np.zeros(count, dtype=bool)
    # An order that was found need not be stable: of a key's places the highest is taken.
    newest[np.maximum.reduceat(order, starts)] = True
    return np.flatnonzero(newest)


def _find_anchors(columns: pa.Table, dead: Mask, first_rows: int) -> pa.Table:
    """Keys of the first `first_rows` rows that no row deletes, at most ANCHORS_MAX of them."""
    deleted = KeySet(_take_rows(columns, np.flatnonzero(dead)).columns)
    found = columns.slice(0, 0)
    # Bit by bit, since the first few rows mostly have enough of them.
    for start in range(0, first_rows, _ANCHORS_ASKED):
        some = columns.slice(start, min(_ANCHORS_ASKED, first_rows - start))
        kept = some.filter(pa.array(~deleted.contains(some.columns)))
        found = pa.concat_tables([found, kept.take(pa.array(_find_newest(kept)))])
        if len(found) >= ANCHORS_MAX:
            break
    return found.slice(0, ANCHORS_MAX).combine_chunks()


def _take_rows(columns: pa.Table, places: Places) -> pa.Table:
    return columns.take(pa.array(places)).combine_chunks()


def keep_winners(
    batch: pa.RecordBatch, winners: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> pa.RecordBatch:
    """The batch's rows whose `_rowaddr` is a winner; the batch itself, uncopied, if all are."""
    wins = find_winning(batch, winners)
    return batch if wins.all() else batch.filter(pa.array(wins))


def find_winning(
    rows: pa.RecordBatch | pa.Table, winners: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> Mask:
    """For each of the rows whether its `_rowaddr` is a winner."""
    addresses = rows.column(ROW_ADDRESS).to_numpy()
    places = np.searchsorted(winners, addresses)
    wins = np.zeros(len(addresses), dtype=bool)
    inside = places < len(winners)
    wins[inside] = winners[places[inside]] == addresses[inside]
    return wins
