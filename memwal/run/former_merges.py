"""Records what a table has merged: first the name, in a commit; the record last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from memwal.errors import LostRace, MemWalError
from memwal.model import ShardId, TableView
from memwal.ports import Clock
from memwal.rows.former_merges import SettledRecord, SettledShard, find_settled
from memwal.run.options import RunOptions
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.former_merges import SettledRecords, StoredProofs

_READERS_MAX = 16


class Proofs(Protocol):
    """The records of one table."""

    def find(self, view: TableView) -> list[SettledRecord]:
        """Those that count for the view, newest first."""
        ...

    def name(self, view: TableView, record_id: str, kept: Sequence[SettledRecord]) -> None:
        """Commit the name of a record that is to come, and forget all of the view's but `kept`.

        The commit may land on whatever is the latest version. Raises LostRace, StoreUnavailable.
        """
        ...

    def follows(self, view: TableView, record_id: str) -> bool:
        """Whether the version right after the view's is the commit of that name."""
        ...

    def put(self, record: SettledRecord) -> None:
        """Store the record."""
        ...


def keep_proof(view: TableView, proofs: Proofs, clock: Clock, *, renewed: bool = True) -> None:
    """Record what is settled of the view's shards, unless a record says so.

    `renewed`: of the manifests that there are now, since garbage may collect those before.

    Lance lets the commit land on top of a restore that came in between: a version that has not the
    rows would name the record then. So that is looked at before there is a record.
    Raises LostRace when the table has moved on, and what the ports raise.
    """
    settled = find_settled(view.shards)
    known = proofs.find(view)
    if not settled or any(_has_all(record, settled, renewed=renewed) for record in known):
        return
    record_id = clock.new_id()
    proofs.name(view, record_id, _find_needed(known))
    if not proofs.follows(view, record_id):
        raise LostRace(f"{view.uri}: somebody else committed to the table meanwhile")
    proofs.put(SettledRecord(record_id=record_id, version=view.version, shards=settled))


def _has_all(
    record: SettledRecord, settled: Mapping[ShardId, SettledShard], *, renewed: bool
) -> bool:
    if renewed:
        return settled.items() <= record.shards.items()
    had = {shard: found.generation for shard, found in record.shards.items()}
    return all(had.get(shard, 0) >= found.generation for shard, found in settled.items())


def _find_needed(known: Sequence[SettledRecord]) -> list[SettledRecord]:
    """Without those of which a newer one says as much. The one to come may never be stored."""
    needed: list[SettledRecord] = []
    for record in known:
        if not any(_has_all(newer, record.shards, renewed=False) for newer in needed):
            needed.append(record)
    return needed


def record_merged(stores: Stores, view: TableView, *, renewed: bool = True) -> None:
    """Record it of all shards. Raises what `keep_proof` does, Unsupported as any first write."""
    stores.prove_store()
    records = SettledRecords(stores.objects, stores.shard_manifests, _READERS_MAX)
    proofs = StoredProofs(records=records, tables=stores.tables, manifests=stores.table_manifests)
    keep_proof(view, proofs, stores.clock, renewed=renewed)


def record_former(
    table: OpenTable, options: RunOptions, warn: Callable[[str], None], *, renewed: bool = True
) -> None:
    """Record what former MemWAL indexes had merged, before the versions that show it expire.

    Where that fails it is said, and a later run does it: until then garbage keeps these versions,
    and the manifests that show it.
    """
    if table.view is None or table.stores is None:
        return
    shards = tuple(shard for shard in table.view.shards if shard.settled_generation)
    if not shards or not options.acts:
        return
    try:
        table.before_commit()
        record_merged(table.stores, replace(table.view, shards=shards), renewed=renewed)
    except MemWalError as error:
        warn(
            f"{table.resolved.name}: what was merged before its MemWAL was initialised again could "
            f"not be recorded: {error}; the next run tries again"
        )
