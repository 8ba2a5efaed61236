"""Describes a checkpoint for reports."""

from __future__ import annotations

from memwal.format import layout
from memwal.model import Checkpoint
from memwal.report import CheckpointReport
from memwal.text import iso_time


def describe_checkpoint(
    found: Checkpoint, now_nanos: int, *, tagged: bool = True, fate: str | None = None
) -> CheckpointReport:
    """The report of a checkpoint; `fate` overrides its state when this run makes or drops it."""
    state = "kept" if tagged else "untagged"
    if not found.ready:
        state = "unfinished"
    if found.is_expired(now_nanos):
        state = "expired"
    return CheckpointReport(
        name=found.name,
        state=fate or state,
        version=found.version,
        generations=found.generations,
        cut={shard.shard_id: shard.generation for shard in found.shards},
        holder=found.holder,
        created_at=iso_time(found.created_at_nanos),
        expires_at=iso_time(found.expires_at_nanos),
        tag=layout.checkpoint_tag(found.key),
    )
