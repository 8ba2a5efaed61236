"""One commit for the folds of several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from memwal.jobs.merge.plan.shard import CommitShape
from memwal.jobs.merge.ports import CommitStats
from memwal.jobs.merge.store.commit import count_bytes_read, delete_keys, run_commit, upsert
from memwal.model import ShardId, SharedKey
from memwal.rows.keyset import KeySet, find_shared_key, group_batches

# Of two concurrent commits that both insert this many keys or more, Lance refuses one.
_COMPARED_MIN = 200
_LOOKED_AT_TIMES = 4


@dataclass(kw_only=True, slots=True, eq=False)
class SharedMember:
    """One shard's part: the rows to write, in the base's schema, and the keys to delete.

    `live_found` and `dead_found` say how many of either the base has, once it `is_counted`.
    """

    rows: pa.Table
    tombstones: pa.Table
    live_found: int = 0
    dead_found: int = 0
    is_counted: bool = False


def share_folds(
    members: Mapping[ShardId, SharedMember],
    keys: Sequence[str],
    base: Any,
    before: Any,
    base_rows: int,
) -> LanceSharedFold | SharedKey | None:
    """Join the members; None when a shard's keys have another type than the base's.

    If two shards have the same key, that is returned instead: Lance would not notice, and its rows
    have no order. `base` and `before` are two handles of one version, as a commit moves its handle
    on.
    """
    schema = pa.schema([pa.field(key, base.schema.field(key).type) for key in keys])
    try:
        parts = {
            shard: [_bare(part, schema) for part in (member.rows, member.tombstones)]
            for shard, member in members.items()
        }
    except pa.ArrowException:
        return None  # a shard's writer had another type for the key
    every = pa.concat_tables([part for of_shard in parts.values() for part in of_shard])
    known = KeySet(every.columns)
    if known.count != len(every):
        return find_shared_key(parts, keys)
    return LanceSharedFold(
        members=members, base=base, before=before, every=every, keys=known, base_rows=base_rows
    )


@dataclass(kw_only=True, eq=False)
class LanceSharedFold:
    """The SharedFold port over Lance. The rows of all members are held in memory.

    `every` has the keys of all members, each once; `keys` is the set of them.
    """

    members: Mapping[ShardId, SharedMember]
    base: Any
    before: Any
    every: pa.Table
    keys: KeySet
    base_rows: int
    _bytes_read: int = 0

    @property
    def bytes_read(self) -> int:
        """Bytes read from the base for this commit so far."""
        self._bytes_read += count_bytes_read((self.base, self.before))
        return self._bytes_read

    def commit(
        self, shape: CommitShape, marks: Mapping[ShardId, int]
    ) -> Mapping[ShardId, CommitStats]:
        """Upsert all winners and set all marks in one commit (see the port)."""
        members = self.members.values()
        rows = pa.concat_tables([member.rows for member in members])
        dead = pa.concat_tables([_bare(m.tombstones, self.every.schema) for m in members])
        keys, marks = self.every.column_names, {shard: marks[shard] for shard in self.members}
        if len(rows) or not len(dead):
            total = upsert(
                self.base, keys, lambda: rows, join=shape.join, deletes=dead, marks=marks
            )
        else:
            total = delete_keys(self.base, keys, dead, join=shape.join, marks=marks)
        return self._count_by_shard(total)

    def _count_by_shard(self, total: CommitStats) -> Mapping[ShardId, CommitStats]:
        """Split the commit's statistics by shard.

        Lance's own counts are enough where all rows were new, or none; else the keys of the version
        before the commit are scanned.
        """
        live = {shard: len(member.rows) for shard, member in self.members.items()}
        dead = {shard: len(member.tombstones) for shard, member in self.members.items()}
        updated, deleted = dict.fromkeys(live, 0), dict.fromkeys(live, 0)
        mixed = total.rows_inserted > 0 and total.rows_updated > 0
        if mixed or 0 < total.rows_deleted < sum(dead.values()):
            expected = (total.rows_updated, total.rows_deleted)
            if not self._is_counted or self._sum_found() != expected:
                self._count_found()
            updated = {shard: member.live_found for shard, member in self.members.items()}
            deleted = {shard: member.dead_found for shard, member in self.members.items()}
        if not mixed and total.rows_updated:
            updated = live
        if total.rows_deleted in (0, sum(dead.values())):
            deleted = dead if total.rows_deleted else dict.fromkeys(live, 0)
        return {
            shard: CommitStats(
                rows_inserted=live[shard] - updated[shard],
                rows_updated=updated[shard],
                rows_deleted=deleted[shard],
            )
            for shard in self.members
        }

    def inserts_many(self) -> bool:
        """See the port; False, without a scan, where the base is much larger than the merge."""
        live = sum(len(member.rows) for member in self.members.values())
        if live < _COMPARED_MIN or self.base_rows > _LOOKED_AT_TIMES * live:
            return False
        if not self._is_counted:
            self._count_found()
        return live - self._sum_found()[0] >= _COMPARED_MIN

    @property
    def _is_counted(self) -> bool:
        return all(member.is_counted for member in self.members.values())

    def _sum_found(self) -> tuple[int, int]:
        members = self.members.values()
        return sum(m.live_found for m in members), sum(m.dead_found for m in members)

    def _count_found(self) -> None:
        """Count how many of each member's keys the base has, in one scan of its keys."""
        names = self.every.column_names
        members = self.members.values()
        sizes = [size for m in members for size in (len(m.rows), len(m.tombstones))]
        parts = np.repeat(np.arange(len(sizes)), sizes)[self.keys.sort_rows(self.every.columns)]
        held = np.zeros(self.keys.count, dtype=bool)  # the base may have a key several times

        def scan() -> None:
            batches = self.before.scanner(columns=names).to_batches()
            for group in group_batches(batches):
                columns = [pa.chunked_array([b.column(name) for b in group]) for name in names]
                numbers = self.keys.number(columns)
                held[numbers[numbers >= 0]] = True

        run_commit(scan)
        found = np.bincount(parts[held], minlength=len(sizes))
        for place, member in enumerate(members):
            member.live_found, member.dead_found = map(int, found[2 * place : 2 * place + 2])
            member.is_counted = True


def _bare(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The key columns alone, cast to `schema` and with its metadata."""
    return pa.table([table[f.name].cast(f.type) for f in schema], schema=schema)
