"""Chooses what a checkpoint keeps: the cut of a view. Pure.

The cut has the base at the view's version, and every generation of each shard that was flushed by
then. Those that the version has not merged are recorded with their folders. So whatever becomes of
the shard's manifest, the cut is what a reader of that moment would have read.
"""

from __future__ import annotations

from dataclasses import dataclass

from memwal.errors import Usage
from memwal.model import Checkpoint, CheckpointShard, ShardView, TableView
from memwal.rows.progress import find_holes, refuse_hole

HOLDER_CHARACTERS_MAX = 200
EXPIRES_SECONDS_MAX = 36_500 * 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRequest:
    """What is asked for. With `expires_seconds` None, it is kept until it is dropped."""

    name: str
    holder: str
    expires_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointLimits:
    """How many attempts are made if others commit to the table meanwhile."""

    attempts_max: int = 10


def check_request(request: CheckpointRequest) -> None:
    """Raise Usage for an expiry that keeps nothing, or a holder who can't be shown."""
    seconds = request.expires_seconds
    if seconds is not None and seconds <= 0:
        raise Usage("a checkpoint that expires at once keeps nothing")
    if seconds is not None and not seconds <= EXPIRES_SECONDS_MAX:  # or not a number
        raise Usage("a checkpoint expires within 100 years; without an expiry it stays for good")
    if not request.holder.strip() or len(request.holder) > HOLDER_CHARACTERS_MAX:
        raise Usage(f"a holder has 1 to {HOLDER_CHARACTERS_MAX} characters")


def plan_checkpoint(
    view: TableView, request: CheckpointRequest, *, key: str, now_nanos: int
) -> Checkpoint:
    """The checkpoint of a view, not yet ready.

    Raises Refused if a read of it would miss rows, and the error of a broken shard.
    """
    for broken in view.broken:
        raise broken.error
    for shard in view.shards:
        for hole in find_holes(shard):
            where = f"{view.uri}: no checkpoint of rows that are missing"
            raise refuse_hole(shard, hole).at(where)
    seconds = request.expires_seconds
    return Checkpoint(
        name=request.name,
        key=key,
        version=view.version,
        version_at_nanos=view.manifest.timestamp_nanos,
        created_at_nanos=now_nanos,
        expires_at_nanos=None if seconds is None else now_nanos + round(seconds * 1e9),
        holder=request.holder,
        shards=tuple(_cut(shard) for shard in view.shards),
    )


def _cut(shard: ShardView) -> CheckpointShard:
    return CheckpointShard(
        shard_id=shard.shard_id,
        manifest_version=shard.manifest.version,
        merged_generation=shard.merged_generation,
        generation=max(shard.merged_generation, shard.manifest.current_generation - 1),
        pending=shard.pending,
    )
