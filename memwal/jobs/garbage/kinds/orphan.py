"""Decides about what belongs to no live shard: leftovers, lost snapshots, orphaned shards. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from memwal.format import layout
from memwal.jobs.garbage.kinds.ingest import ingests
from memwal.jobs.garbage.model import (
    Action,
    Evidence,
    GarbageLimits,
    GarbagePlan,
    Item,
    Kind,
    ShardEvidence,
    cutoff_nanos,
    newest_of,
    size_of,
    unreadable_text,
)
from memwal.model import BrokenShard, ShardId, StoredFile


def kept_stranger(shard_id: ShardId, other: StoredFile) -> Item:
    """Something below a shard that nobody here knows."""
    return Item(
        kind=Kind.ORPHAN,
        shard_id=shard_id,
        path=other.path,
        size_bytes=other.size_bytes,
        action=Action.KEEP,
        reason="neither a generation, nor a manifest, nor a WAL entry: left alone",
    )


def leftovers(evidence: Evidence, limits: GarbageLimits, now_nanos: int) -> Iterator[Item]:
    """What runs that were killed had staged."""
    cutoff = now_nanos - round(limits.leftover_age_seconds * 1e9)
    for file in evidence.leftovers:
        old = file.modified_at_nanos <= cutoff
        yield Item(
            kind=Kind.ORPHAN,
            shard_id=None,
            path=file.path,
            size_bytes=file.size_bytes,
            action=Action.DELETE if old else Action.KEEP,
            reason=(
                "staged by a run that was killed" if old else "may be staged by a run that goes on"
            ),
            stages=((file,),) if old else (),
        )


def snapshots(evidence: Evidence, unreadable: str | None, cutoff: int) -> Iterator[Item]:
    """External shard snapshots, most of which lost their index entry to a merge."""
    for found in evidence.snapshots:
        named = next((v for v in evidence.versions if found.index_uuid in v.index_uuids), None)
        if unreadable is not None:
            why: str | None = unreadable
        elif named is not None:
            why = f"{named.name} names it"
        elif found.file.modified_at_nanos > cutoff:
            why = "younger than the grace"
        else:
            why = None
        yield Item(
            kind=Kind.ORPHAN,
            shard_id=None,
            path=found.file.path,
            size_bytes=found.file.size_bytes,
            action=Action.DELETE if why is None else Action.KEEP,
            reason=why or "a shard snapshot whose index entry no retained version has",
            stages=() if why else ((found.file,),),
        )


# ---- a table whose MemWAL index is gone


def plan_adoption(
    version: int, evidence: Evidence, limits: GarbageLimits, now_nanos: int
) -> GarbagePlan:
    """What to delete of a table whose latest version has no MemWAL index: whole shards.

    Not while any retained version has one. Restoring that version brings its progress back, and a
    writer that starts a removed shard at generation 1 under old progress would lose its rows.
    """
    cutoff = cutoff_nanos(limits, now_nanos)
    unreadable = unreadable_text(evidence, version)
    holding = next((v for v in evidence.versions if v.merged is not None), None)
    if not limits.adopt_orphans:
        shut: str | None = (
            "the table has no MemWAL index any more; --adopt-orphans deletes what it left"
        )
    elif unreadable is not None:
        shut = unreadable
    elif holding is not None:
        shut = f"{holding.name} is retained and has the MemWAL index; expire it (--retention) first"
    else:
        shut = None
    items: list[Item] = []
    for found in evidence.shards.values():
        why = shut or _adoption_held(found, cutoff)
        items.append(
            Item(
                kind=Kind.ORPHAN,
                shard_id=found.shard_id,
                path=layout.shard_folder(found.shard_id),
                size_bytes=size_of(found.files),
                action=Action.DELETE if why is None else Action.KEEP,
                reason=why or "the table has no MemWAL index at any retained version",
                stages=() if why else _shard_stages(found),
            )
        )
        items += [kept_stranger(found.shard_id, other) for other in found.others]
    items += leftovers(evidence, limits, now_nanos)
    items += snapshots(evidence, unreadable, cutoff)
    items += ingests(evidence, limits, now_nanos)
    broken = tuple(
        BrokenShard(shard_id=s.shard_id, error=s.problem)
        for s in evidence.shards.values()
        if s.problem is not None
    )
    return GarbagePlan(
        items=tuple(items),
        refusal=None if unreadable is not None and limits.adopt_orphans else shut,
        broken=broken,
        problems=evidence.problems,
    )


def _adoption_held(found: ShardEvidence, cutoff: int) -> str | None:
    if found.problem is not None:
        return f"the shard can't be read: {found.problem}"
    if not found.files:
        return "nothing in it is known"
    if newest_of(found.files) > cutoff:
        return "its newest file is younger than the grace: a writer may be at work"
    return None


def _shard_stages(found: ShardEvidence) -> tuple[tuple[StoredFile, ...], ...]:
    """Manifests last: without them, a writer that comes back would replay what is left of the WAL.

    With them, a killed deletion leaves a shard that lists what is gone: an error, not old rows.
    """
    first: list[StoredFile] = []
    second: list[StoredFile] = []
    wal: list[StoredFile] = []
    last: list[StoredFile] = []
    below = layout.shard_folder(found.shard_id) + "/"
    for file in found.files:
        top, _, rest = file.path.removeprefix(below).partition("/")
        if top == "manifest":
            last.append(file)
        elif top == "wal":
            wal.append(file)
        elif rest.startswith(f"{layout.VERSIONS}/"):
            first.append(file)
        else:
            second.append(file)
    return tuple(tuple(stage) for stage in (first, second, wal, last) if stage)
