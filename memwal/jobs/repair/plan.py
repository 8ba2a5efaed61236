"""Chooses what is mended, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from memwal.jobs.repair.kinds import KINDS
from memwal.jobs.repair.model import (
    Action,
    Damage,
    Evidence,
    PutManifest,
    PutSentinel,
    RaiseProgress,
    ReleaseClaim,
)
from memwal.jobs.verify.plan import Check
from memwal.model import ShardId

OTHER = "other"
"""The kind of what `verify` finds and no kind of damage names."""


def find_damage(evidence: Evidence) -> list[Damage]:
    """All that is damaged, in the order of mending; what a backup has is fetched from there."""
    found = [damage for find in KINDS.values() for damage in find(evidence)]
    told = {name for damage in found for name in damage.checks}
    for check in evidence.checks:
        if check.ok is False and check.name not in told:
            found.append(
                Damage(
                    kind=OTHER,
                    path=check.name,
                    action=Action.LEAVE,
                    finding=check.detail,
                    evidence="no kind of repair mends it",
                    checks=(check.name,),
                )
            )
    return found


def was_looked_for(damage: Damage, checks: Sequence[Check]) -> bool:
    """Whether these checks tell if there is such damage: none that would report it was not made."""
    made = {check.name: check.error is None and not check.refused for check in checks}
    failed = any(check.error is not None for check in checks)
    return all(made.get(name, not failed) for name in damage.checks)


def hold_losses(damages: Sequence[Damage], *, asked: bool) -> list[Damage]:
    """The damages, where none that would lose rows is mended; `asked`: a backup has none of them.

    Neither is its shard claimed for another one: a replay would end at what waits, and a writer
    could put its rows in that place.
    """
    waiting = {damage.shard_id for damage in damages if damage.loses_rows}
    return [
        _hold(damage, asked=asked)
        if damage.loses_rows or (damage.fences and damage.shard_id in waiting)
        else damage
        for damage in damages
    ]


def _hold(damage: Damage, *, asked: bool) -> Damage:
    why = "its shard has damage that waits"
    if damage.loses_rows:
        advice = "give --from BACKUP, or --accept-loss if there is none"
        if asked:
            advice = "the backups there do not mend it; restore one, or give --accept-loss"
        why = f"loses rows: {advice}; {damage.evidence}"
    return replace(damage, action=Action.LEAVE, evidence=why, fences=False, effects=())


def choose_next(damages: Sequence[Damage], tried: Sequence[Damage]) -> list[Damage]:
    """What to mend before the table is looked at again.

    Of each shard, one damage that changes its manifest, or those that change its WAL: the next one
    is judged by what is then. The same goes for merge progress.
    """
    return list(_choose(damages, {_name(damage) for damage in tried}))


def _choose(damages: Sequence[Damage], tried: set[tuple[str, ...]]) -> Iterator[Damage]:
    taken: set[ShardId | None] = set()
    in_wal: set[ShardId | None] = set()
    for damage in damages:
        if not damage.effects or _name(damage) in tried:
            continue
        if any(isinstance(effect, PutSentinel) for effect in damage.effects):
            if damage.shard_id in taken:
                continue
            in_wal.add(damage.shard_id)
            yield damage
            continue
        if any(isinstance(effect, PutManifest | RaiseProgress) for effect in damage.effects):
            claimed = None if isinstance(damage.effects[0], RaiseProgress) else damage.shard_id
            if claimed in taken | in_wal:
                continue
            taken.add(claimed)
        yield damage


def _name(damage: Damage) -> tuple[str, ...]:
    """What is tried once; the evidence is another one after something came from a backup."""
    return damage.kind, damage.path, damage.finding, damage.evidence


def frees_lease(damage: Damage) -> bool:
    """Whether it has to be mended before a lease can be taken."""
    return any(isinstance(effect, ReleaseClaim) for effect in damage.effects)
