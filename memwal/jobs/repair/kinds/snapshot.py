"""A shard snapshot that can't be read, or contradicts the manifests that it was made from.

Evidence: the manifests of all shards. Gate: each can be read, and none is in doubt. Cure: the
snapshot is taken again, as `memwal snapshot` does it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.jobs.repair.model import Damage, Evidence, TakeSnapshot

NAME = "snapshot"
_CHECK = "shard snapshot"


def find(evidence: Evidence) -> Iterator[Damage]:
    """The table's snapshot, if the check of it failed."""
    if (check := evidence.broken(_CHECK)) is None:
        return
    doubtful = ", ".join(shard.shard_id for shard in evidence.shards)
    yield Damage(
        kind=NAME,
        path="the MemWAL index's shard snapshot",
        finding=check.detail,
        evidence=f"the shards' manifests have to be mended first: {doubtful}"
        if doubtful
        else "taken again from the manifests of all shards",
        effects=() if doubtful else (TakeSnapshot(),),
        checks=(_CHECK,),
    )
