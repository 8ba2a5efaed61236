"""A checkpoint that has lost its tag or a generation, or whose tag or record can't be read.

Evidence: the record, and the version that it names. Gate: for a tag, that this version is there and
is still the one of the checkpoint, by its time of commit; for a generation, that the shard lists
one of the same number and as many rows, as it does once it was flushed again (before that, that
this look has it flushed); for a record, that no newer memwal wrote it. Cure: the tag is made again,
after one that can't be read, or names another version, was moved into quarantine;
the record names the folder that the rows are in now; a record that can't be read is moved into
quarantine, as garbage refuses to work beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from memwal.format import layout
from memwal.jobs.repair.kinds import generation
from memwal.jobs.repair.model import (
    Action,
    Damage,
    Evidence,
    Flush,
    MoveAway,
    PutCheckpoint,
    Tag,
)
from memwal.jobs.verify.plan import FileFault
from memwal.model import FlushedGeneration, ShardId

NAME = "checkpoint"


def find(evidence: Evidence) -> Iterator[Damage]:
    """What is wrong with checkpoints that are in force."""
    for fault in evidence.checkpoint_faults:
        found = Damage(
            kind=NAME,
            path=fault.path,
            action=Action.LEAVE,
            finding=fault.problem,
            evidence="",
            checks=("checkpoints",),
        )
        if fault.path.startswith(f"{layout.MEM_WAL}/"):
            yield _judge_cut(evidence, fault, found)
            continue
        lost_tag = fault.path == layout.checkpoint_tag_path(fault.name)
        yield (_judge_tag if lost_tag else _judge_record)(evidence, fault, found)


def _judge_tag(evidence: Evidence, fault: FileFault, found: Damage) -> Damage:
    checkpoint = next(c for c in evidence.checkpoints if c.key == fault.name)
    times = {m.version: m.timestamp_nanos for m in evidence.history}
    at_nanos = times.get(checkpoint.version)
    if at_nanos != checkpoint.version_at_nanos:
        why = "is gone" if at_nanos is None else "is another one: the table was written again since"
        return replace(
            found,
            evidence=f"version {checkpoint.version} {why}; drop the checkpoint",
            lost=(f"checkpoint {checkpoint.name!r} can't be read any more",),
        )
    torn = evidence.digests.get(fault.path)
    aside = () if torn is None else (MoveAway(path=fault.path, digest=torn),)
    return replace(
        found,
        action=Action.MEND,
        evidence=f"version {checkpoint.version}, which its record names, is there",
        effects=(*aside, Tag(key=checkpoint.key, version=checkpoint.version)),
    )


def _judge_cut(evidence: Evidence, fault: FileFault, found: Damage) -> Damage:
    """A generation that it needs: after a set-back, the shard lists one with the same rows."""
    checkpoint = next(c for c in evidence.checkpoints if c.key == fault.name)
    digest = evidence.digests.get(layout.checkpoint_path(checkpoint.key))
    found = replace(found, checks=(*found.checks, "base table's files"))
    now = {
        (shard.shard_id, g.generation): g
        for shard in evidence.shards
        if shard.view is not None
        for g in shard.view.manifest.flushed_generations
        if all(f.error is None for f in shard.listed if f.generation == g.generation)
    }
    cuts = []
    gone = replace(
        found,
        evidence="no generation with the same rows is listed; drop the checkpoint",
        lost=(f"checkpoint {checkpoint.name!r} can't be read any more",),
        objects=(fault.path,),
    )
    if digest is None:
        return gone
    if _is_flushed_again(evidence, fault.path):
        return replace(
            found,
            action=Action.MEND,
            evidence="its generation is flushed again; the record then names the new folder",
        )
    for cut in checkpoint.shards:
        pending = tuple(_find_again(now, cut.shard_id, g, fault.path) for g in cut.pending)
        cuts.append(replace(cut, pending=tuple(g for g in pending if g is not None)))
        if None in pending:
            return gone
    return replace(
        found,
        action=Action.MEND,
        evidence="the shard's manifest lists the same rows in another folder",
        effects=(PutCheckpoint(checkpoint=replace(checkpoint, shards=tuple(cuts)), digest=digest),),
    )


def _is_flushed_again(evidence: Evidence, path: str) -> bool:
    """Whether mending the generation in that folder flushes it again, with all of its rows."""
    return any(
        damage.path == path and any(isinstance(effect, Flush) for effect in damage.effects)
        for damage in generation.find(evidence)
    )


def _find_again(
    now: Mapping[tuple[ShardId, int], FlushedGeneration],
    shard_id: ShardId,
    wanted: FlushedGeneration,
    damaged: str,
) -> FlushedGeneration | None:
    """The generation itself if it is not the damaged one, else the one that was flushed again."""
    if f"{layout.shard_folder(shard_id)}/{wanted.path}" != damaged:
        return wanted
    again = now.get((shard_id, wanted.generation))
    if again is None or again.path == wanted.path:
        return None
    return again if again.physical_rows == wanted.physical_rows else None


def _judge_record(evidence: Evidence, fault: FileFault, found: Damage) -> Damage:
    digest = evidence.digests.get(fault.path)
    if fault.is_newer or digest is None:
        return replace(found, evidence="a newer memwal may have written it: use that")
    return replace(
        found,
        action=Action.SALVAGE,
        evidence="nothing else says what it kept: it is put aside",
        lost=(
            f"checkpoint {fault.name!r}: its tag goes on keeping a version of the table, and "
            "nothing the generations that were pending then",
        ),
        effects=(MoveAway(path=fault.path, digest=digest),),
    )
