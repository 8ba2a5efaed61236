"""A hint at the newest version that can't be read, or points beyond it.

Evidence: the listing of what is there. Gate: the shard's newest manifest is not itself in doubt;
and for the table, no commit was begun from its newest version: if one was, the version that it made
may be what the hint points at, and is lost.
Cure: the hint says the newest version that is there. A writer that moves on meanwhile overwrites
it.
"""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.repair.model import Damage, Evidence, Replace
from memwal.jobs.verify.plan import Hint

NAME = "hint"
# A hint is written unchecked: so many versions above the newest are looked for in a backup.
_VERSIONS_MAX = 1000


def find(evidence: Evidence) -> Iterator[Damage]:
    """Hints with a problem, of the table and of shards whose manifests are sound."""
    doubtful = {shard.shard_id for shard in evidence.shards}
    for hint in evidence.hints:
        digest = evidence.digests.get(hint.path)
        if hint.problem is None or digest is None or hint.shard_id in doubtful:
            continue
        ahead = hint.found is not None and hint.found > hint.newest
        if hint.shard_id is None and ahead and hint.newest in evidence.committed:
            yield _tell_lost(hint, hint.problem)
            continue
        data = layout.encode_version_hint(hint.newest)
        yield Damage(
            kind=NAME,
            shard_id=hint.shard_id,
            path=hint.path,
            finding=hint.problem,
            evidence=f"version {hint.newest} is the newest that is there",
            effects=(Replace(path=hint.path, data=data, digest=digest),),
            checks=("hints",),
        )


def _tell_lost(hint: Hint, problem: str) -> Damage:
    last = min(hint.found or 0, hint.newest + _VERSIONS_MAX)
    gone = [layout.table_manifest_names(v) for v in range(hint.newest + 1, last + 1)]
    return Damage(
        kind=NAME,
        path=hint.path,
        finding=problem,
        evidence=f"a commit was begun from version {hint.newest}, so one that followed may be "
        "gone, which only a backup can have: give --from BACKUP, or restore one. If none followed, "
        "delete the hint",
        lost=(f"what was committed after version {hint.newest}",),
        checks=("hints",),
        objects=tuple(f"{layout.VERSIONS}/{name}" for names in gone for name in names),
    )
