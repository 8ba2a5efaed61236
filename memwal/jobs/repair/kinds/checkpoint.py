"""A checkpoint that has lost its tag, or whose record can't be read.

Evidence: the record, and the version that it names. Gate: for a tag, that this version is there and
is still the one of the checkpoint, by its time of commit; for a record, that no newer memwal wrote
it. Cure: the tag is made again; a record is moved into quarantine, as garbage refuses to work
beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memwal.format import layout
from memwal.jobs.repair.model import Action, Damage, Evidence, MoveAway, Tag
from memwal.jobs.verify.plan import FileFault

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
    return replace(
        found,
        action=Action.MEND,
        evidence=f"version {checkpoint.version}, which its record names, is there",
        effects=(Tag(key=checkpoint.key, version=checkpoint.version),),
    )


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
