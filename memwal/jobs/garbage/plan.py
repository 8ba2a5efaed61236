"""Plans what of a table's MemWAL tier may be dropped or deleted, and says why not. Pure.

What holds each kind of garbage is said where it is planned (`memwal/jobs/garbage/kinds/`). Each
candidate carries its reason.
"""

from __future__ import annotations

import math
from collections.abc import Set

from memwal.errors import Refused, Usage
from memwal.format import layout
from memwal.format.layout import SYSTEM_INDEXES
from memwal.jobs.garbage.kinds import KINDS
from memwal.jobs.garbage.kinds.orphan import find_refusal
from memwal.jobs.garbage.look import Look
from memwal.jobs.garbage.model import GarbageLimits, GarbagePlan
from memwal.model import BrokenShard, Checkpoint, TableView

RETENTION_SECONDS_MIN = 86_400.0
GRACE_SECONDS_MIN = 600.0
INGEST_IDLE_SECONDS_MIN = 86_400.0


def check_limits(
    limits: GarbageLimits, *, retention_seconds: float | None, short_allowed: bool
) -> None:
    """Raise Refused for a retention or idle time under a day, or a grace under ten minutes.

    Raises Usage for what is no duration: one below 0, or not finite.
    """
    for name, seconds in (
        ("retention_seconds", retention_seconds),
        ("grace_seconds", limits.grace_seconds),
        ("ingest_idle_seconds", limits.ingest_idle_seconds),
    ):
        if seconds is not None and not 0 <= seconds < math.inf:
            raise Usage(f"{name} {seconds:g}: expected a number of seconds, 0 or more")
    if short_allowed:
        return
    if retention_seconds is not None and retention_seconds < RETENTION_SECONDS_MIN:
        raise Refused(
            "MW-G01",
            f"a retention of {retention_seconds:g} s is shorter than a day: readers and time "
            "travel lose versions that they may still use; pass --allow-short-retention if not",
        )
    if limits.grace_seconds < GRACE_SECONDS_MIN:
        raise Refused(
            "MW-G02",
            f"a grace of {limits.grace_seconds:g} s is shorter than ten minutes: readers that hold "
            "an older shard manifest would find generations gone; pass --allow-short-retention if "
            "there are none",
        )
    if limits.ingest_idle_seconds < INGEST_IDLE_SECONDS_MIN:
        raise Refused(
            "MW-G03",
            f"ingests idle for {limits.ingest_idle_seconds:g} s, less than a day, may be resumed "
            "yet, and could not be any more; pass --allow-short-retention if none will be",
        )


def find_expirable(look: Look, retention_seconds: float) -> frozenset[int]:
    """Versions of main that are older than the retention; tags and branches may hold some."""
    cutoff = look.now_nanos - round(retention_seconds * 1e9)
    return frozenset(
        v.version
        for v in look.evidence.versions
        if v.on_main
        and v.version != look.version
        and not layout.is_detached(v.version)
        and v.problem is None
        and v.timestamp_nanos < cutoff
    )


def find_checkpoints_of(look: Look, versions: Set[int]) -> tuple[Checkpoint, ...]:
    """The checkpoints that are kept, and are of these versions of main."""
    kept = (c for c in look.evidence.checkpoints if look.is_kept(c))
    return tuple(c for c in kept if c.version in versions)


def find_never_merged(view: TableView) -> tuple[str, ...]:
    """Shards with work that no merge has recorded yet, and shards that can't be read.

    The merger takes them only while a retained version shows that the MemWAL index existed when
    they were flushed, so no version may be expired until they are merged: live rows would be
    refused.
    """
    waiting = [s.shard_id for s in view.shards if s.pending and s.merged_generation == 0]
    return (*waiting, *(b.shard_id for b in view.broken))


def plan_garbage(look: Look) -> GarbagePlan:
    """What to drop and delete, and what keeps the rest. A shard's candidates stand together."""
    shards = dict.fromkeys((*(s.shard_id for s in look.shards), *look.evidence.shards))
    place = {shard_id: number for number, shard_id in enumerate(shards)}
    items = [item for kind in KINDS for item in kind.find_items(look)]
    items.sort(key=lambda i: len(place) if i.shard_id is None else place[i.shard_id])
    return GarbagePlan(
        items=tuple(items),
        refusal=find_refusal(look),
        broken=_find_broken(look),
        problems=look.evidence.problems,
        warnings=() if look.view is None else _find_warnings(look.view),
    )


def _find_broken(look: Look) -> tuple[BrokenShard, ...]:
    """Shards that can't be read."""
    broken = {str(b.shard_id): b for b in (look.view.broken if look.view else ())}
    for found in [s.found for s in look.shards] if look.view else look.evidence.shards.values():
        if found.problem is not None:
            broken[found.shard_id] = BrokenShard(shard_id=found.shard_id, error=found.problem)
    return tuple(broken.values())


def _find_warnings(view: TableView) -> tuple[str, ...]:
    there = {entry.name for entry in view.manifest.indexes} | SYSTEM_INDEXES
    return tuple(
        f"maintained index {name!r} is gone from the table: it holds no generation back"
        for name in sorted(set(view.mem_wal.maintained_indexes) - there)
    )
