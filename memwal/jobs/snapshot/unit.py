"""The unit that reads manifests of some shards for a snapshot, as sent to an executor."""

from __future__ import annotations

from dataclasses import dataclass

from memwal.jobs.snapshot.ports import Found
from memwal.model import ShardId
from memwal.run.stores import open_stores
from memwal.run.units import TableUnit


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestsUnit(TableUnit):
    """Read the latest manifests of some shards of one table."""

    shard_ids: tuple[ShardId, ...]


def run_manifests_unit(unit: ManifestsUnit) -> tuple[Found, ...]:
    """Read the manifests in threads of this process; an unreachable store fails the unit."""
    stores = open_stores(unit.uri, unit.storage_options)
    return tuple(stores.views.read_shards(unit.shard_ids))
