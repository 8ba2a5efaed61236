"""One commit for the folds of several shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from memwal.jobs.merge.plan.shard import CommitShape, Deletes
from memwal.jobs.merge.ports import CommitStats
from memwal.jobs.merge.store.commit import count_bytes_read, run_commit, upsert
from memwal.model import ShardId, SharedKey
from memwal.rows.keyset import KeySet, find_shared_key, key_predicate


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SharedMember:
    """One shard's part: the rows to write, in the base's schema, and the keys to delete."""

    rows: pa.Table
    tombstones: pa.Table


def share_folds(
    members: Mapping[ShardId, SharedMember], keys: Sequence[str], base: Any, before: Any
) -> LanceSharedFold | SharedKey | None:
    """The members as one; None when a shard's keys have another type than the base's.

    A key that two shards insert Lance does not notice, and there is no order between them: it is
    told instead. `base` and `before` are two handles of one version: a commit takes its own along.
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
    if KeySet(every.columns).count != len(every):
        return find_shared_key(parts, keys)
    return LanceSharedFold(members=members, base=base, before=before, every=every)


@dataclass(kw_only=True, eq=False)
class LanceSharedFold:
    """The SharedFold port over Lance. The rows of all members are held in memory.

    `every` are the keys of all members.
    """

    members: Mapping[ShardId, SharedMember]
    base: Any
    before: Any
    every: pa.Table
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
        predicate = None
        if shape.deletes is Deletes.SAME_COMMIT:
            dead = [_bare(m.tombstones, self.every.schema) for m in self.members.values()]
            predicate = key_predicate(pa.concat_tables(dead))
        rows = pa.concat_tables([member.rows for member in self.members.values()])
        total = upsert(
            self.base,
            self.every.column_names,
            lambda: rows,
            join=shape.join,
            deletes=predicate,
            marks={shard: marks[shard] for shard in self.members},
        )
        return self._count_by_shard(total)

    def _count_by_shard(self, total: CommitStats) -> Mapping[ShardId, CommitStats]:
        """What the commit did for each shard.

        Where all rows were new, or none, Lance's own counts tell; else the keys of the version
        that was committed to are looked at.
        """
        live = {shard: len(member.rows) for shard, member in self.members.items()}
        dead = {shard: len(member.tombstones) for shard, member in self.members.items()}
        updated, deleted = dict.fromkeys(live, 0), dict.fromkeys(live, 0)
        mixed = total.rows_inserted > 0 and total.rows_updated > 0
        if mixed or 0 < total.rows_deleted < sum(dead.values()):
            found = self._find_keys()
            for shard, member in self.members.items():
                updated[shard] = self._count_common(member.rows, found)
                deleted[shard] = self._count_common(member.tombstones, found)
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

    def _find_keys(self) -> KeySet:
        """Those of the members' keys that the base had."""
        names = self.every.column_names

        def scan() -> pa.Table:
            batches = self.before.scanner(columns=names).to_batches()
            inside = KeySet(self.every.columns).inside(batches, names)
            found = [batch.select(names) for batch in inside]
            return pa.Table.from_batches(found) if found else self.every.slice(0, 0)

        return KeySet(_bare(run_commit(scan), self.every.schema).columns)

    def _count_common(self, table: pa.Table, found: KeySet) -> int:
        keys = _bare(table, self.every.schema)
        return int(found.contains(keys.columns).sum()) if len(keys) else 0


def _bare(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The key columns by themselves, without what other schemas say of them."""
    return pa.table([table[f.name].cast(f.type) for f in schema], schema=schema)
