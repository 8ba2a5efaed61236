"""Generations that an earlier MemWAL index of a table had merged, and that were collected. Pure.

They are recorded when a table comes to rest (`run/` and `store/records/` have a file of this name),
or shown by older versions (`store/tables/former_indexes.py`), and fill what would else be holes of
shards of which the present index knows nothing. By a record garbage also deletes what was dropped
then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from memwal.model import ShardId, ShardManifest, ShardView
from memwal.rows.holes import find_holes, first_due


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledShard:
    """A version of the table has all of a shard's generations up to `generation`.

    The digest of its manifest proves that it is still the same shard: if its folder was deleted, a
    shard starts again at generation 1.
    """

    generation: int
    manifest_version: int
    manifest_digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SettledRecord:
    """What was settled of each shard at a version of the table."""

    record_id: str
    version: int
    shards: Mapping[ShardId, SettledShard]


def find_settled(shards: Iterable[ShardView]) -> dict[ShardId, SettledShard]:
    """What the version of these shards has of each, by its own index or by one before."""
    return {
        shard.shard_id: SettledShard(
            generation=min(first_due(shard), shard.manifest.current_generation) - 1,
            manifest_version=shard.manifest.version,
            manifest_digest=digest_manifest(shard.manifest.raw),
        )
        for shard in shards
        if min(first_due(shard), shard.manifest.current_generation) > 1
    }


def digest_manifest(data: bytes) -> str:
    """The SHA-256 digest of a stored manifest, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def needs_proof(shard: ShardView) -> bool:
    """Whether generations are missing of a shard that the MemWAL index knows nothing of."""
    return not shard.merged_generation and any(find_holes(shard))


def is_unrecorded(shard: ShardView) -> bool:
    """Whether only older versions and manifests show what is settled of the shard."""
    return shard.settled_generation > 0 and shard.settled_by is None


def find_proven(
    manifest: ShardManifest,
    record: SettledRecord,
    digest: Callable[[ShardId, int], str | None],
) -> int:
    """Up to which generation a record proves this very shard settled; 0 when it proves nothing.

    `digest` returns the digest of a stored manifest version, None when there is none.
    """
    shard_id, found = manifest.shard_id, record.shards.get(manifest.shard_id)
    if found is None:
        return 0
    known = manifest.version == found.manifest_version and manifest.raw
    now = digest_manifest(manifest.raw) if known else digest(shard_id, found.manifest_version)
    return min(found.generation, _last_gone(manifest)) if now == found.manifest_digest else 0


def settle(shard: ShardView, generation: int, by: int | None = None) -> ShardView:
    """The shard with what is settled of it. `by` is the manifest version that a record cites."""
    upto = min(generation, _last_gone(shard.manifest))
    return replace(shard, settled_generation=upto, settled_by=by)


def _last_gone(manifest: ShardManifest) -> int:
    """The last generation below all listed ones; listed and later ones are never settled."""
    listed = (g.generation for g in manifest.flushed_generations)
    return min(listed, default=manifest.current_generation) - 1
