"""Merge progress that a commit lowered.

Evidence: the retained versions. Rows of generations that a version had stay in all that follow, if
no restore or overwrite is among them. Gate: no version that may have been one has expired, and
since it fell, progress has stayed as low: a merge that began there again has folded older rows over
newer ones, and raising it would call that whole. Then the next merges fold the rest again, in
order.

Cure: a commit of the MemWAL index alone, with the former progress.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from memwal.jobs.repair.model import Damage, Evidence, RaiseProgress
from memwal.jobs.verify.plan import find_raised
from memwal.model import ShardId

NAME = "progress"


def find(evidence: Evidence) -> Iterator[Damage]:
    """The falls that nothing has put right since."""
    raised: dict[ShardId, int] = {}
    for before, after in pairwise(evidence.history):
        if after.version in evidence.rewound or before.mem_wal is None or after.mem_wal is None:
            continue
        former, now = before.mem_wal.merged, after.mem_wal.merged
        low = {shard: g for shard, g in former.items() if now.get(shard, 0) < g}
        if not low or find_raised(evidence.history, after.version, former):
            continue
        for shard, generation in low.items():
            fell_to = now.get(shard, 0)
            if after.version > before.version + 1:
                why = "a version in between has expired, which may have been a restore"
            elif _has_stayed(evidence, after.version, shard, fell_to):
                raised[shard] = max(generation, raised.get(shard, 0))
                continue
            else:
                why = "merges have built on it since: `memwal merge` folds the rest again, in order"
            yield _make(
                f"version {after.version} lowered shard {shard} from {generation} to {fell_to}", why
            )
    if raised:
        fell = (f"shard {shard} from {generation}" for shard, generation in raised.items())
        yield _make(
            f"merge progress fell: {', '.join(fell)}",
            "an earlier version has these generations, and no restore or overwrite followed",
            RaiseProgress(version=evidence.view.version, merged=raised),
        )


def _has_stayed(evidence: Evidence, since: int, shard: ShardId, at: int) -> bool:
    """Whether each version since then has that progress."""
    states = (m.mem_wal for m in evidence.history if m.version >= since)
    return all(state is not None and state.merged.get(shard, 0) == at for state in states)


def _make(finding: str, why: str, *effects: RaiseProgress) -> Damage:
    return Damage(
        kind=NAME,
        path="the MemWAL index's merge progress",
        finding=finding,
        evidence=why,
        effects=effects,
        checks=("merge progress",),
    )
