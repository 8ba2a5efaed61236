"""Finds what is damaged, and says what to do about what is not mended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memwal.jobs.repair.kinds import KINDS
from memwal.jobs.repair.model import RESTORE, Damage, Evidence
from memwal.jobs.verify.plan import Check

OTHER = "other"
"""The kind of what `verify` finds and no kind of damage names."""

_INDEX = "a repair does not mend it: drop the index, and create it again from the rows"
_ADVICE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "indexes open": (_INDEX, ()),
    "index catch-up claims": (_INDEX, ()),
    "tags": ("a repair does not mend it: delete the tag", ()),
    "newest fence sentinel": ("the next writer that opens the shard puts another one", ()),
    "WAL continuous above the replay position": (
        f"{RESTORE}. The last entry, if it is torn: `memwal rescue --drop-torn`",
        ("the rows of these entries and of those behind them, as far as no generation has them",),
    ),
}
"""By check: what to do, and what is lost by then."""
_OTHERWISE = (RESTORE, ("what was written since that backup",))


def find_damage(evidence: Evidence) -> list[Damage]:
    """All that is damaged, in the order of mending."""
    found = [damage for find in KINDS.values() for damage in find(evidence)]
    told = {name for damage in found for name in damage.checks}
    for check in evidence.checks:
        if check.ok is False and check.name not in told:
            advice, lost = _ADVICE.get(check.name, _OTHERWISE)
            found.append(
                Damage(
                    kind=OTHER,
                    path=check.name,
                    finding=check.detail,
                    evidence=advice,
                    lost=lost,
                    checks=(check.name,),
                )
            )
    return found


def was_looked_for(damage: Damage, checks: Sequence[Check]) -> bool:
    """Whether these checks tell if there is such damage: none that would report it was not made."""
    made = {check.name: check.error is None and not check.refused for check in checks}
    failed = any(check.error is not None for check in checks)
    return all(made.get(name, not failed) for name in damage.checks)
