"""A hint at the newest version that can't be read, or points beyond it.

Evidence: the listing of what is there. Gate: the shard's newest manifest is not itself in doubt.
Cure: the hint says the newest version that is there. A writer that moves on meanwhile overwrites
it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.repair.model import Action, Damage, Evidence, Replace

NAME = "hint"


def find(evidence: Evidence) -> Iterator[Damage]:
    """Hints with a problem, of the table and of shards whose manifests are sound."""
    doubtful = {s.shard_id for s in evidence.shards if s.view is None or s.newer}
    for hint in evidence.hints:
        digest = evidence.digests.get(hint.path)
        if hint.problem is None or digest is None or hint.shard_id in doubtful:
            continue
        yield Damage(
            kind=NAME,
            shard_id=hint.shard_id,
            path=hint.path,
            action=Action.MEND,
            finding=hint.problem,
            evidence=f"version {hint.newest} is the newest that is there",
            effects=(
                Replace(
                    path=hint.path, data=layout.encode_version_hint(hint.newest), digest=digest
                ),
            ),
            checks=("hints",),
        )
