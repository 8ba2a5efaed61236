"""Records what a table has merged: commits the record's name first, stores the record last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from memwal.errors import LostRace, MemWalError
from memwal.model import ShardId, TableView
from memwal.ports import Clock
from memwal.rows.progress import SettledRecord, SettledShard, find_settled
from memwal.run.options import RunOptions
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.records.former_merges import SettledRecords, StoredProofs

_READERS_MAX = 16


class Proofs(Protocol):
    """The records of one table."""

    def find(self, view: TableView) -> list[SettledRecord]:
        """The records that are valid for the view, newest first."""
        ...

    def name(self, view: TableView, record_id: str, kept: Sequence[SettledRecord]) -> None:
        """Commit the name of a coming record, and drop the names of all others but `kept`.

        The commit may land on whatever version is the latest. Raises LostRace, StoreUnavailable.
        """
        ...

    def follows(self, view: TableView, record_id: str) -> bool:
        """Whether the version right after the view's is the one that committed that name."""
        ...

    def put(self, record: SettledRecord) -> None:
        """Store the record."""
        ...


def keep_proof(view: TableView, proofs: Proofs, clock: Clock, *, renewed: bool = True) -> None:
    """Record what is settled of the view's shards, unless a record says so already.

    With `renewed`, only a record that names the current manifests counts as saying so, because
    garbage may collect the earlier ones.

    Lance lets the commit land on top of a restore that came in between; a version without the rows
    would then name the record. So the commit's place is checked before the record is stored.
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
    """The known records without those that a newer known record makes redundant.

    The record that is about to be made is not counted: it may never be stored.
    """
    needed: list[SettledRecord] = []
    for record in known:
        if not any(_has_all(newer, record.shards, renewed=False) for newer in needed):
            needed.append(record)
    return needed


def record_merged(stores: Stores, view: TableView, *, renewed: bool = True) -> None:
    """Record what is settled of the view's shards in the real stores.

    Raises what `keep_proof` does, and Unsupported for a store without put-if-absent.
    """
    stores.prove_store()
    records = SettledRecords(stores.objects, stores.shard_manifests, _READERS_MAX)
    proofs = StoredProofs(records=records, tables=stores.tables, manifests=stores.table_manifests)
    keep_proof(view, proofs, stores.clock, renewed=renewed)


def record_former(
    table: OpenTable, options: RunOptions, warn: Callable[[str], None], *, renewed: bool = True
) -> None:
    """Record what former MemWAL indexes had merged, before the versions that show it expire.

    A failure is only a warning: a later run tries again, and until then garbage keeps those
    versions and the manifests that show it.
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
