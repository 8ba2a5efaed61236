"""Old shard manifests: all but the newest go, but names that a stalled writer may try stay taken.

A commit is put-if-absent of the next version, so a writer that believes version v to be the latest
must never find v + 1 free. And to find the latest version, everybody starts at the version hint and
goes upwards. A shard's manifests stay, without a gap, from the lowest of these versions on:

1. the last manifest that the present epoch's own writer wrote: it goes on from there;
2. the one that was the latest when the grace began: readers, claims and drops that are under way
   started there or later;
3. the version hint's target, where everybody else starts;
4. the first of the newest few, in case writes of the hint have failed;
5. the lowest that is cited by a record of what was merged before the MemWAL was initialised again,
   if a retained version names the record and may need it. While there is no such record yet, all
   manifests stay.

Everything below goes, lowest first, so that any version that is left leads upwards to the latest.
Some of the names stay taken, by a stopper: a file of a few bytes that is no manifest. These are

6. every version after an earlier epoch's own last manifest, up to the first one of a later epoch.
   The writer of the earlier epoch may be stalled anywhere in between; it fails at the next name,
   looks again, and finds itself fenced;
7. version 1, where Lance up to 13 starts when the hint points at nothing.

A stopper can't be read. So when a stalled writer writes the hint late, and it leads to a stopper or
to nothing, pylance lists the manifests or fails; an old manifest would let it go on from an old
state. The next garbage run, or whoever commits next, writes such a hint anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memwal.format import layout
from memwal.jobs.garbage.model import (
    Action,
    GarbageLimits,
    Item,
    ShardEvidence,
    StoredManifest,
    past_version,
)
from memwal.jobs.garbage.survey import ShardSurvey, Survey
from memwal.model import ShardId, ShardManifest, StoredFile
from memwal.text import count_of

NAME = "shard_manifest"

_STOPS = "a writer that stalled before it must not find the name free: stays as a stopper"


def find_items(survey: Survey) -> Iterator[Item]:
    """Each shard's manifests but the newest few, ascending; all its stoppers as one item.

    A version hint that leads to no manifest is an item too, to be overwritten.
    """
    for shard in survey.shards:
        if shard.found.astray and shard.shut is None:
            yield Item(
                kind=NAME,
                shard_id=shard.shard_id,
                path=layout.version_hint_path(shard.shard_id),
                bytes=0,
                action=Action.KEEP,
                reason="leads to no manifest: is written anew, else pylance may not open the shard",
                in_order=True,
                replacement=layout.encode_version_hint(shard.manifest.version),
            )
        yield from _find_manifests(shard, survey.limits)
        if shard.found.stoppers:
            yield Item(
                kind=NAME,
                shard_id=shard.shard_id,
                path=layout.manifest_folder(shard.shard_id),
                bytes=sum(s.size_bytes for s in shard.found.stoppers),
                action=Action.KEEP,
                reason="kept for good: a stalled writer could try "
                + count_of(len(shard.found.stoppers), "old name"),
            )


def may_delete(item: Item) -> bool:
    """Whether it is a shard manifest's file, or a version hint that is only overwritten."""
    match item.path.split("/"):
        case [layout.MEM_WAL, shard, "manifest", name] if layout.is_shard_folder(shard):
            if item.path == layout.version_hint_path(ShardId(shard)):
                return item.action is Action.KEEP and item.kind == NAME
            return layout.parse_shard_manifest_name(name) is not None and item.kind == NAME
    return False


def _find_manifests(shard: ShardSurvey, limits: GarbageLimits) -> Iterator[Item]:
    floor, why_floor = _find_floor(shard, limits)
    stopped = _find_stopped(shard)
    lowest = find_lowest(shard.found.manifests, shard.manifest.version)
    stopped_upto = max((s.version for s in shard.found.stoppers), default=0)
    newest = shard.manifest.version + 1 - limits.numbered_kept_min
    candidates = (m for m in shard.found.manifests if m.version < newest)
    for stored in sorted(candidates, key=lambda m: m.version):
        held = shard.shut
        if held is None and stored.version >= floor:
            held = why_floor
        # Names are stopped only when all below them go, so a gap above is left by a killed run.
        if held is None and stopped_upto < stored.version < lowest:
            held = "versions above it are missing"
        # Names are stopped highest first: if that run was killed, the names below are due as well.
        stops = held is None and (stored.version in stopped or stored.version < stopped_upto)
        path = layout.shard_manifest_path(shard.shard_id, stored.version)
        file = StoredFile(
            path=path, size_bytes=stored.size_bytes, modified_at_nanos=stored.modified_at_nanos
        )
        yield Item(
            kind=NAME,
            shard_id=shard.shard_id,
            path=path,
            bytes=stored.size_bytes,
            action=Action.DELETE if held is None and not stops else Action.KEEP,
            reason=held or (_STOPS if stops else "nothing starts from a version as old as this"),
            stages=() if held else ((file,),),
            in_order=True,
            replacement=layout.encode_stopper(stored.modified_at_nanos) if stops else None,
        )


def _find_floor(shard: ShardSurvey, limits: GarbageLimits) -> tuple[int, str]:
    """The version from which on all manifests stay, and why."""
    found, latest = shard.found, shard.manifest.version
    newest = max(1, latest + 1 - limits.numbered_kept_min)
    reasons = [(newest, f"among the newest {limits.numbered_kept_min}")]
    if shard.past is None:
        return 0, "no manifest is older than the grace"
    reasons.append((shard.past.version, "the latest when the grace began, or newer"))
    cited = 0 if shard.unrecorded else shard.cited_version
    if cited is not None:
        reasons.append((cited, "shows what was merged before the MemWAL was initialised again"))
    most, versions = limits.numbered_deletes_max, sorted(m.version for m in found.manifests)
    if most < len(versions):
        reasons.append((versions[most], f"{most} go first: left to the next run"))
    if found.history is not None:
        if found.history.hinted is None:
            return 0, "the version hint can't be read: a writer may start anywhere"
        reasons.append((found.history.hinted, "the version hint's target, or newer"))
        own = found.history.ends[-1].last_own
        reasons.append((own, "the last of the present epoch's writer, or newer"))
        floor, why = min(reasons)
        for end in found.history.ends[-2::-1]:
            # An epoch's end stays whole, so that the next run can tell what comes after it.
            if end.last_own < floor <= (end.next_first or 0):
                floor, why = end.last_own, "at the end of an epoch"
        return floor, why
    if has_collectable(found, latest, min(reasons)[0]):
        return 0, "what the manifests say was not read"
    return min(reasons)


def _find_stopped(shard: ShardSurvey) -> set[int]:
    """The versions whose names have to stay taken, by a stopper."""
    history = shard.found.history
    if history is None:
        return set()
    ends = ((e.last_own, e.next_first) for e in history.ends)
    between = (range(own + 1, first + 1) for own, first in ends if first is not None)
    return {1, *(version for versions in between for version in versions)}


# ---- what has to be read


def find_lowest(manifests: Sequence[StoredManifest], latest: int) -> int:
    """The lowest version of the gapless run of stored versions that ends at `latest`.

    `latest + 1` when the latest one is not stored.
    """
    stored = {m.version for m in manifests}
    lowest = latest
    while lowest - 1 in stored:
        lowest -= 1
    return lowest if latest in stored else latest + 1


def find_top(
    manifests: Sequence[StoredManifest], latest: int, cutoff_nanos: int, kept_min: int
) -> int:
    """The version below which manifests could go, as far as the listing alone tells."""
    return min(past_version(manifests, cutoff_nanos) or 0, latest + 1 - kept_min)


def has_collectable(found: ShardEvidence, latest: int, top: int) -> bool:
    """Whether any manifest below version `top` could go."""
    stopped_upto = max((s.version for s in found.stoppers), default=0)
    lowest = find_lowest(found.manifests, latest)
    return lowest < top or any(m.version < min(stopped_upto, top) for m in found.manifests)


def is_drop(before: ShardManifest, after: ShardManifest) -> bool:
    """Whether a manifest differs from the one before at most by listing fewer generations.

    That is what a drop writes; a writer's own claims, flushes and updates of the last position it
    has seen change something else.
    """
    left = {g.path for g in before.flushed_generations}
    return (
        before.writer_epoch == after.writer_epoch
        and before.current_generation == after.current_generation
        and before.replay_after_wal_entry_position == after.replay_after_wal_entry_position
        and before.wal_entry_position_last_seen == after.wal_entry_position_last_seen
        and {g.path for g in after.flushed_generations} <= left
    )
