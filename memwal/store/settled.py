"""Generations that an earlier MemWAL index had merged, and that were collected since.

When a table's MemWAL is initialised again, the new index knows no progress, and a shard that goes
on looks as if its first generations were missing. They are settled where one of these proves it:

- The version just before the index was taken away is retained, says that they were merged, and
  nothing since, up to the version that made the new index, restored or overwrote the table.
- `_maintenance/settled.json` says so. A job that has seen the former proof stores it there, before
  that version expires, and so does a quiesce that found nothing left.

What can't be read proves nothing. A generation that is still listed is judged by its age
(`memwal.rows.lineage`), whatever stands here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from memwal.errors import MemWalError, Missing
from memwal.format import layout
from memwal.model import ShardId, ShardView, TableView
from memwal.ports import Objects
from memwal.store.table import LanceTables
from memwal.store.table_manifests import TableManifests

REWINDING = ("Restore", "Overwrite")
"""Operations by which a user turns time back."""

_FORMAT = 1
# Versions between the loss of an index and the making of the next, which are read one by one.
_BETWEEN_MAX = 100

Record = Mapping[ShardId, tuple[int, int]]
"""By shard: the highest settled generation, and a manifest version that had none of them."""


@dataclass(frozen=True, slots=True)
class SettledGenerations:
    """What is known of one table's."""

    _objects: Objects
    _tables: LanceTables
    _manifests: TableManifests

    def find(self, view: TableView, made_at: int | None) -> dict[ShardId, int]:
        """The highest settled generation of each shard for which one is proven.

        `made_at` is the version that made the MemWAL index; None when no retained one shows it.
        """
        found = {} if made_at is None else self._find_in_history(made_at)
        recorded = self._read()
        for shard in view.shards:
            generation, version = recorded.get(shard.shard_id, (0, 0))
            known = shard.manifest.version >= version
            if known and generation > found.get(shard.shard_id, 0):
                found[shard.shard_id] = generation
        return found

    def keep(self, shards: Iterable[ShardView]) -> None:
        """Store what is settled of these shards, as far as it is not stored yet."""
        settled = [shard for shard in shards if shard.settled_generation]
        recorded = self._read() if settled else {}
        new = {
            shard.shard_id: (shard.settled_generation, shard.manifest.version)
            for shard in settled
            if shard.settled_generation > recorded.get(shard.shard_id, (0, 0))[0]
        }
        if new:
            shown = {
                shard: {"generation": generation, "manifest_version": version}
                for shard, (generation, version) in {**recorded, **new}.items()
            }
            document = {"format": _FORMAT, "shards": shown}
            self._objects.put(layout.SETTLED, json.dumps(document, indent=1).encode())

    def _find_in_history(self, made_at: int) -> dict[ShardId, int]:
        """What the former index had merged, where it was taken away and nothing else happened."""
        try:
            for version in range(made_at - 1, max(0, made_at - _BETWEEN_MAX), -1):
                if read_operation(self._tables, version + 1) in (None, *REWINDING):
                    break
                state = self._manifests.read(version).mem_wal
                if state is not None:
                    return dict(state.merged)
        except MemWalError:
            pass
        return {}

    def _read(self) -> Record:
        try:
            document = json.loads(self._objects.get(layout.SETTLED))
            if document["format"] != _FORMAT:
                return {}
            return {
                ShardId(shard): (_count(entry["generation"]), _count(entry["manifest_version"]))
                for shard, entry in document["shards"].items()
                if layout.is_shard_folder(shard)
            }
        except (Missing, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}


def mark_settled(view: TableView, found: Mapping[ShardId, int]) -> TableView:
    """The view with it; not for a shard that the present index knows, nor what is still listed."""
    shards = (
        s
        if s.merged_generation
        else replace(s, settled_generation=min(found.get(s.shard_id, 0), _first_above(s) - 1))
        for s in view.shards
    )
    return replace(view, shards=tuple(shards))


def _first_above(shard: ShardView) -> int:
    listed = (g.generation for g in shard.manifest.flushed_generations)
    return min(listed, default=shard.manifest.current_generation)


def read_operation(tables: LanceTables, version: int) -> str | None:
    """What kind of commit made a version (`Restore`, `Update`, …); None when unknown."""
    try:
        transaction = tables.base(version).read_transaction(version)
    except (OSError, ValueError, MemWalError):
        return None
    return None if transaction is None else type(transaction.operation).__name__


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value <= layout.U64_MAX:
        raise ValueError(f"{value!r} is no count")
    return value
