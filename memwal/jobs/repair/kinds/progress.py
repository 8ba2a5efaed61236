"""Merge progress that a commit lowered.

Evidence: the retained versions. Rows of generations that a version had stay in all that follow, if
no restore or overwrite is among them. Gate: no version that may have been one has expired, and
since it fell, progress has stayed as low: a merge that began there again has folded older rows over
newer ones, and raising it would call that whole. Then the next merges fold the rest again, in
order.

Cure: a commit of the MemWAL index alone, with the former progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from memwal.jobs.repair.model import Action, Damage, Evidence, RaiseProgress
from memwal.jobs.verify.plan import find_raised
from memwal.model import ShardId, VersionManifest

NAME = "progress"
_CHECKS = ("merge progress",)


def find(evidence: Evidence) -> Iterator[Damage]:
    """The falls that nothing has put right since."""
    raised: dict[ShardId, int] = {}
    for before, after in pairwise(evidence.history):
        if after.version in evidence.rewound or before.mem_wal is None or after.mem_wal is None:
            continue
        low = _find_fallen(before.mem_wal.merged, after.mem_wal.merged)
        if not low or find_raised(evidence.history, after.version, before.mem_wal.merged):
            continue
        for shard, generation in low.items():
            fell_to = after.mem_wal.merged.get(shard, 0)
            finding = f"version {after.version} lowered it from {generation} to {fell_to}"
            if after.version > before.version + 1:
                why = "a version in between has expired, which may have been a restore"
                yield _make(shard, finding, Action.LEAVE, why)
                continue
            if _has_stayed(evidence, after.version, shard, fell_to):
                raised[shard] = max(generation, raised.get(shard, 0))
                continue
            yield _make(
                shard,
                finding,
                Action.LEAVE,
                "merges have built on it since: `memwal merge` folds the rest again, in order",
            )
    for shard, generation in raised.items():
        now = evidence.view.mem_wal.merged.get(shard, 0)
        yield _make(
            shard,
            f"merge progress fell from {generation} to {now}",
            Action.MEND,
            f"an earlier version has generation {generation}, and no restore or overwrite followed",
            (RaiseProgress(version=evidence.view.version, merged=raised),),
        )


def _find_fallen(before: Mapping[ShardId, int], after: Mapping[ShardId, int]) -> dict[ShardId, int]:
    return {shard: g for shard, g in before.items() if after.get(shard, 0) < g}


def _has_stayed(evidence: Evidence, since: int, shard: ShardId, at: int) -> bool:
    return all(
        _merged(manifest, shard) == at for manifest in evidence.history if manifest.version >= since
    )


def _merged(manifest: VersionManifest, shard: ShardId) -> int | None:
    return None if manifest.mem_wal is None else manifest.mem_wal.merged.get(shard, 0)


def _make(
    shard: ShardId,
    finding: str,
    action: Action,
    evidence: str,
    effects: tuple[RaiseProgress, ...] = (),
) -> Damage:
    return Damage(
        kind=NAME,
        shard_id=shard,
        path="the MemWAL index's merge progress",
        action=action,
        finding=finding,
        evidence=evidence,
        effects=effects,
        checks=_CHECKS,
    )
