"""Plans what may be dropped or deleted in a table's MemWAL tier, and why the rest stays. Pure.

Each kind of garbage documents what holds it in its own module (`memwal/jobs/garbage/kinds/`). Each
candidate carries its reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from memwal.errors import Refused, Usage
from memwal.format import layout
from memwal.format.layout import SYSTEM_INDEXES
from memwal.jobs.garbage.kinds import KINDS
from memwal.jobs.garbage.kinds.orphan import find_refusal
from memwal.jobs.garbage.model import (
    Action,
    GarbageLimits,
    GarbagePlan,
    Sweep,
    SweptShard,
    UntilGrace,
)
from memwal.jobs.garbage.request import GarbageRequest
from memwal.jobs.garbage.survey import ShardSurvey, Survey
from memwal.model import GRACE_SECONDS, BrokenShard, Checkpoint, Cursor, ShardId, TableView
from memwal.text import format_duration

if TYPE_CHECKING:
    from memwal.config import Settings

RETENTION_SECONDS_MIN = 86_400.0
_GRACE_SECONDS_MIN = 600.0
_PASS = "pass --allow-short-retention if that does no harm"
Chosen = TypeVar("Chosen")


@dataclass(frozen=True, kw_only=True)
class Permission:
    """Whether a job may delete from a table, and by which times."""

    deletes: bool
    retention_seconds: float | None
    grace_seconds: float
    wal: bool


def permit(request: GarbageRequest, settings: Settings) -> Permission:
    """Tell what may be deleted from a table with these settings; whoever deletes asks this first.

    A configured retention permits deleting by it, and the request may keep more than configured.
    To delete sooner takes `execute` and `allow_short_retention`. Where no retention is configured,
    all deleting takes `execute`. Raises Refused for times that are too short, Usage for none.
    """
    configured, grace = settings.retention, settings.grace or GRACE_SECONDS
    asked = Permission(
        deletes=request.execute,
        retention_seconds=_choose(request.retention_seconds, configured),
        grace_seconds=_choose(request.grace_seconds, grace),
        wal=_choose(request.wal, configured is not None),
    )
    retention = asked.retention_seconds
    for name, seconds in ("retention", retention), ("grace", asked.grace_seconds):
        if seconds is not None and not 0 <= seconds < math.inf:
            raise Usage(f"{name}_seconds {seconds:g}: expected a number of seconds, 0 or more")
    if not request.allow_short_retention:
        _refuse_short(asked, settings)
    keeps = (
        configured is not None
        and retention is not None
        and retention >= configured
        and asked.grace_seconds >= grace
        and not request.adopt_orphans
    )
    return replace(asked, deletes=request.execute or keeps)


def _refuse_short(asked: Permission, settings: Settings) -> None:
    retention, least = asked.retention_seconds, settings.retention or RETENTION_SECONDS_MIN
    if retention is not None and retention < least:
        raise Refused(
            "MW-G01",
            f"a retention of {format_duration(retention)} is shorter than {format_duration(least)}:"
            f" readers and time travel lose versions that they may still use; {_PASS}",
        )
    least = settings.grace or _GRACE_SECONDS_MIN
    if asked.grace_seconds < least:
        raise Refused(
            "MW-G01",
            f"a grace of {format_duration(asked.grace_seconds)} is shorter than "
            f"{format_duration(least)}: readers that hold an older shard manifest would find "
            f"generations gone; {_PASS}",
        )


def _choose(asked: Chosen | None, configured: Chosen) -> Chosen:
    return configured if asked is None else asked


def find_expirable(survey: Survey, retention_seconds: float) -> frozenset[int]:
    """Versions of main older than the retention, some of which tags and branches may still hold.

    The latest version, detached ones and those that can't be read are left out.
    """
    cutoff = survey.now_nanos - round(retention_seconds * 1e9)
    return frozenset(
        v.version
        for v in survey.evidence.versions
        if v.on_main
        and v.version != survey.version
        and not layout.is_detached(v.version)
        and v.problem is None
        and v.timestamp_nanos < cutoff
    )


def find_cursor(survey: Survey, cursors: Sequence[Cursor]) -> Cursor | None:
    """The cursor that stands at the oldest version, of those that somebody still moves.

    Whoever follows the changes from there needs it and all versions after it.
    """
    since = survey.now_nanos - round(survey.limits.cursor_age_seconds * 1e9)
    moved = (c for c in cursors if c.moved_at_nanos >= since)
    return min(moved, key=lambda c: c.version, default=None)


def find_checkpoints_of(survey: Survey, versions: Set[int]) -> tuple[Checkpoint, ...]:
    """The kept checkpoints that were made of these versions of main."""
    kept = (c for c in survey.evidence.checkpoints if survey.is_kept(c))
    return tuple(c for c in kept if c.version in versions)


def find_never_merged(view: TableView) -> tuple[str, ...]:
    """Shards with work that no merge has recorded yet, and shards that can't be read.

    The merger takes them only while a retained version shows that the MemWAL index existed when
    they were flushed, so no version may be expired until they are merged: live rows would be
    refused.
    """
    waiting = [s.shard_id for s in view.shards if s.pending and s.merged_generation == 0]
    return (*waiting, *(b.shard_id for b in view.broken))


def is_sweep_old(sweep: Sweep, limits: GarbageLimits, now_nanos: int) -> bool:
    """Whether the last full sweep is too old, or lies in the future, as with a wrong clock."""
    ends_nanos = sweep.swept_at_nanos + round(limits.sweep_seconds * 1e9)
    return not sweep.swept_at_nanos <= now_nanos < ends_nanos


def is_sweep_due(sweep: Sweep, survey: Survey) -> bool:
    """Whether all shards have to be looked at, because the remembered sweep can't be built on.

    The survey is one without shards. Lower progress than remembered means that the table was
    restored or initialised again; the same version number with another timestamp, that it was
    created anew.
    """
    if survey.view is None or survey.unreadable is not None or survey.limits.adopt_orphans:
        return True
    merged = survey.view.mem_wal.merged
    same = (
        v.timestamp_nanos == sweep.version_at_nanos
        for v in survey.evidence.versions
        if v.on_main and v.version == sweep.version
    )
    return not (
        sweep.version <= survey.version
        and all(same)
        and sweep.wal >= survey.limits.wal
        and not survey.view.settled_ids
        and all(merged.get(s, 0) >= was.merged_generation for s, was in sweep.shards.items())
    )


def choose_shards(sweep: Sweep, survey: Survey) -> frozenset[ShardId]:
    """The shards in which something may have become garbage since they were last looked at."""
    gates = survey.gates
    known = dict.fromkeys(survey.view.mem_wal.merged if survey.view else (), SweptShard())
    known.update(sweep.shards)
    return frozenset(
        shard_id
        for shard_id, was in known.items()
        if 0 < was.waits_since_nanos <= survey.cutoff_nanos
        or gates.held(shard_id, was.next_generation) is None
    )


def note_sweep(
    before: Sweep | None,
    survey: Survey,
    plan: GarbagePlan,
    done: Set[str] = frozenset(),
) -> Sweep | None:
    """The sweep to remember after a look; None for a small table, or one initialised again.

    Without `before`, the look was at all shards; with it, at some, and the rest is taken over.
    `done` are the paths that this run has dropped or deleted. A shard that can't be read, or in
    which something else was still to happen, is due again at the next look.
    """
    objects = sum(shard.objects for shard in survey.evidence.shards.values())
    newest = [v for v in survey.evidence.versions if v.on_main and v.version == survey.version]
    if survey.view is None or survey.view.settled_ids or not newest:
        return None
    if before is None and objects < survey.limits.sweep_objects_min:
        return None
    going = [i for i in plan.items if i.action is not Action.KEEP or i.is_mend]
    waiting = (i for i in plan.items if isinstance(i.reason, UntilGrace))
    since = {i.shard_id: survey.now_nanos for i in (*waiting, *going)}
    since |= {i.shard_id: 1 for i in going if i.path not in done}
    shards = {} if before is None else dict(before.shards)
    for shard_id in survey.evidence.shards:
        shards.pop(shard_id, None)
    shards |= {ShardId(b.shard_id): SweptShard(waits_since_nanos=1) for b in plan.broken}
    for shard in survey.shards:
        if shard.found.problem is None:
            shards[shard.shard_id] = SweptShard(
                next_generation=_find_next(shard, done),
                waits_since_nanos=since.get(shard.shard_id, 0),
                merged_generation=survey.gates.merged(shard.shard_id),
            )
    return Sweep(
        swept_at_nanos=survey.now_nanos if before is None else before.swept_at_nanos,
        version=survey.version,
        version_at_nanos=newest[0].timestamp_nanos,
        wal=survey.limits.wal and (before is None or before.wal),
        shards=shards,
    )


def _find_next(shard: ShardSurvey, dropped: Set[str]) -> int:
    """The lowest generation that may go once the gates let it; else the current one.

    Of a shard that may not be touched (`ShardSurvey.shut`) that is always the current one.
    """
    manifest, folder = shard.manifest, layout.shard_folder(shard.shard_id)
    listed = {g.path: g.generation for g in manifest.flushed_generations}
    left = [number for path, number in listed.items() if f"{folder}/{path}" not in dropped]
    held = [
        f.generation
        for f in shard.found.folders
        if f.name not in listed and shard.gates.held(shard.shard_id, f.generation) is not None
    ]
    last = manifest.current_generation
    return last if shard.shut else min((n for n in (*left, *held) if 0 < n < last), default=last)


def plan_garbage(survey: Survey) -> GarbagePlan:
    """Plan what to drop and delete, and why the rest stays; items are grouped by shard."""
    shards = dict.fromkeys((*(s.shard_id for s in survey.shards), *survey.evidence.shards))
    place = {shard_id: number for number, shard_id in enumerate(shards)}
    items = [item for kind in KINDS for item in kind.find_items(survey)]
    items.sort(key=lambda i: len(place) if i.shard_id is None else place[i.shard_id])
    return GarbagePlan(
        items=tuple(items),
        refusal=find_refusal(survey),
        broken=_find_broken(survey),
        problems=survey.evidence.problems,
        warnings=() if survey.view is None else _find_warnings(survey.view),
    )


def _find_broken(survey: Survey) -> tuple[BrokenShard, ...]:
    """Shards that can't be read."""
    broken = {str(b.shard_id): b for b in (survey.view.broken if survey.view else ())}
    for found in (
        [s.found for s in survey.shards] if survey.view else survey.evidence.shards.values()
    ):
        if found.problem is not None:
            broken[found.shard_id] = BrokenShard(shard_id=found.shard_id, error=found.problem)
    return tuple(broken.values())


def _find_warnings(view: TableView) -> tuple[str, ...]:
    there = {entry.name for entry in view.manifest.indexes} | SYSTEM_INDEXES
    return tuple(
        f"maintained index {name!r} is gone from the table: it holds no generation back"
        for name in sorted(set(view.mem_wal.maintained_indexes) - there)
    )
