"""The result of a look at a table, with its plan."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

from memwal.jobs.garbage.kinds import wal_entry
from memwal.jobs.garbage.look import Look
from memwal.jobs.garbage.model import Action, Evidence, GarbagePlan, Sweep
from memwal.jobs.garbage.plan import plan_garbage
from memwal.model import Checkpoint, ShardId
from memwal.rows.former_merges import is_unrecorded


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """The result of a look at a table. That many `expirable` versions are to expire first.

    `shards` are those that were looked at; None for all. `sweep` lets a later look leave out shards
    that can't have changed; None if it has to look at all. Neither `never_merged` shards nor
    `untagged` checkpoints would survive an expiry: while there are any, no version expires.
    """

    look: Look
    plan: GarbagePlan
    shards: Set[ShardId] | None = None
    sweep: Sweep | None = None
    expirable: int = 0
    never_merged: tuple[str, ...] = ()
    untagged: tuple[Checkpoint, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether a run that acts would do anything."""
        plan = self.plan
        goes = plan.drops or plan.deletes or plan.has_mends or self.expirable
        return bool(goes) or self.has_unrecorded

    @property
    def has_unrecorded(self) -> bool:
        """Whether any shard has settled generations that are not recorded yet."""
        view = self.look.view
        return view is not None and any(map(is_unrecorded, view.shards))


def add_before(after: Seen, before: Seen) -> Seen:
    """Add to a look at some shards what the look before kept in the others, now left alone."""
    looked = after.shards or frozenset()
    others = [i for i in before.plan.items if i.shard_id is not None and i.shard_id not in looked]
    kept = (replace(i, replacement=None) for i in others if i.action is Action.KEEP)
    broken = (b for b in before.plan.broken if b.shard_id not in looked)
    plan = replace(
        after.plan,
        items=(*after.plan.items, *kept),
        broken=(*after.plan.broken, *broken),
    )
    return replace(after, plan=plan)


def find_deciding(look: Look, evidence: Evidence) -> Mapping[ShardId, int]:
    """The position in each shard from which on WAL entries decide about what goes."""
    return wal_entry.find_deciding(plan_garbage(replace(look, evidence=evidence)), evidence)
