"""Decides which shards are due for a merge, and tells why. Pure.

A shard is due when any trigger crosses: how many generations are pending, how many bytes, or how
old the oldest of them is. So a quiet shard is never starved by a count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memwal.model import ShardId, ShardStatus, ShardView, TableView

_SHARDS_NAMED_MAX = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class DueLimits:
    """From where on a shard is due. Bytes are in-memory bytes as the writer recorded them."""

    due_generations_min: int = 4
    due_bytes_min: int = 64 * 1024 * 1024
    due_age_seconds_min: float = 300.0


def shard_due(shard: ShardView, limits: DueLimits, now_nanos: int) -> tuple[str, ...]:
    """Why the shard is due, one text a trigger; empty when it is not.

    A SEALED shard never is: no merge would take it. A size or an age that is not known crosses
    nothing; the other triggers still can.
    """
    pending = shard.pending
    if not pending or shard.manifest.status is ShardStatus.SEALED:
        return ()
    reasons = []
    if len(pending) >= limits.due_generations_min:
        reasons.append(f"{len(pending)} pending generations >= {limits.due_generations_min}")
    size = sum(g.in_memory_bytes or 0 for g in pending)
    if size >= limits.due_bytes_min:
        reasons.append(f"{size} pending bytes >= {limits.due_bytes_min}")
    flushed = shard.oldest_pending_flushed_at_nanos
    if flushed is not None:
        age = (now_nanos - flushed) / 1e9
        if age >= limits.due_age_seconds_min:
            reasons.append(
                f"the oldest pending generation is {age:.0f} s old >= "
                f"{limits.due_age_seconds_min:g} s"
            )
    return tuple(reasons)


def due_shards(
    view: TableView, limits: DueLimits, now_nanos: int
) -> Mapping[ShardId, tuple[str, ...]]:
    """The shards that are due, and why.

    No shard of a table without a primary key is: it can't be merged.
    """
    if not view.primary_key:
        return {}
    found = {s.shard_id: shard_due(s, limits, now_nanos) for s in view.shards}
    return {shard: reasons for shard, reasons in found.items() if reasons}


def table_reasons(shards: Mapping[ShardId, Sequence[str]]) -> tuple[str, ...]:
    """The shards' reasons as the table's, a line a shard; bounded, since shards may be many."""
    lines = [f"shard {shard[:8]}…: {'; '.join(reasons)}" for shard, reasons in shards.items()]
    more = len(lines) - _SHARDS_NAMED_MAX
    if more > 0:
        return (*lines[:_SHARDS_NAMED_MAX], f"and {more} more shards")
    return tuple(lines)
