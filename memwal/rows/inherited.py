"""Merge progress that came with a copied index and is not of the shards beside it. Pure.

Lance's clones and branches copy the MemWAL index with its progress, and not `_mem_wal/`. A writer
there starts at generation 1, often under the same shard ids: what it flushes up to the inherited
progress counts as merged, is in no read, and would be collected. So does what a writer flushes into
a shard whose folder was deleted.

In a sound shard `current_generation` is above the merged one: a writer raises it past a generation
in the manifest that lists it. And what is merged was flushed before the version that called it so.
A shard that breaks either is a stranger to the progress. `store/shards/inherited.py` finds out, and
every view has such a shard among those that can't be used (`BrokenShard`), so that each job leaves
it alone, and each read refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memwal.errors import Refused
from memwal.model import (
    BrokenShard,
    MemWalState,
    ShardId,
    ShardManifest,
    ShardView,
    TableView,
    VersionManifest,
)
from memwal.text import count_of, name_some

CLOCKS_APART_NANOS = 600 * 10**9
"""How far the clocks of writers and mergers may be apart."""
_NAMED_MAX = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class StrangerShard(BrokenShard):
    """A shard below progress up to `inherited_generation` that is not its own."""

    inherited_generation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where the progress of a version comes from, as far down as it can be traced.

    `merged` is that of the oldest version of which it comes without a gap. `cloned`: Lance made
    that version by copying another table's, or a branch.
    """

    merged: Mapping[ShardId, int]
    at_nanos: int
    version: int
    cloned: bool


def is_below(manifest: ShardManifest, merged_generation: int) -> bool:
    """Whether the shard has not even come to the generation that is called merged."""
    return manifest.current_generation <= merged_generation


def may_hide(shard: ShardView) -> bool:
    """Whether generations that the table lacks may hide below the progress.

    A writer that starts anew lists its first, until it is collected; so do few sound shards.
    """
    listed = shard.manifest.flushed_generations
    return shard.merged_generation > 0 and min((g.generation for g in listed), default=0) == 1


def is_doubtful(
    shard_id: ShardId, flushed_at_nanos: int, state: MemWalState, oldest: VersionManifest | None
) -> bool:
    """Whether a first generation may be younger than its merge, going by the cheapest facts.

    Every merge makes the entry anew; the `oldest` retained version is older than what is not known.
    """
    if oldest is None or is_younger(flushed_at_nanos, state):
        return True
    merged = {} if oldest.mem_wal is None else oldest.mem_wal.merged
    is_old = oldest.timestamp_nanos - flushed_at_nanos > CLOCKS_APART_NANOS
    return merged.get(shard_id, 0) > 0 and not is_old


def is_younger(flushed_at_nanos: int, state: MemWalState) -> bool:
    """Whether a generation may be younger than the MemWAL index entry, which every merge makes."""
    created = state.created_at_millis
    return created is None or flushed_at_nanos > (created + 1) * 10**6


def is_sure(flushed_at_nanos: int, at_nanos: int) -> bool:
    """Whether a generation is younger than its merge by more than clocks are apart."""
    return flushed_at_nanos - at_nanos > CLOCKS_APART_NANOS


def find_untouched(view: TableView) -> dict[ShardId, int]:
    """Progress of shards that have no folder: of a clone, before anybody writes to it."""
    there = set(view.shard_ids)
    return {s: g for s, g in view.mem_wal.merged.items() if g > 0 and s not in there}


def warn_untouched(view: TableView) -> tuple[str, ...]:
    """What an operator should know of a clone that nobody has written to yet."""
    found = find_untouched(view)
    if not found:
        return ()
    some = ", ".join(name_some(sorted(found), _NAMED_MAX, "more"))
    shards = count_of(len(found), "shard")
    return (
        f"the MemWAL index has progress of {shards} without a folder here ({some}): "
        "the table is a clone, a branch, or a copy without _mem_wal. What a writer puts there "
        f"would count as merged and be lost: `memwal init {view.uri} --adopt-clone` first",
    )


def check_progress(view: TableView) -> None:
    """Raise Refused where progress of the view is not that of one of its shards."""
    for shard in view.broken:
        if isinstance(shard, StrangerShard):
            raise shard.error


def refuse_inherited(shard_id: ShardId, merged_generation: int) -> Refused:
    """The error of a shard whose rows hide, or would, below progress that is not its own."""
    return Refused(
        "MW-H06",
        f"shard {shard_id}: the MemWAL index calls generations up to {merged_generation} merged, "
        "and that is not of this shard: the table is a clone, a branch, or a copy without its "
        "_mem_wal, where writers start at generation 1. Their rows are not in the table, and would "
        "be taken for merged. `memwal init TABLE --adopt-clone` lets go of that progress, and "
        "brings the rows back",
    )


def check_claim(
    shard_id: ShardId, manifest: ShardManifest | None, merged: Mapping[ShardId, int]
) -> None:
    """Raise Refused where a writer's first generation would count as merged.

    `manifest` is the shard's latest, None where there is none; `merged` was read before it.
    """
    generation = merged.get(shard_id, 0)
    if generation and (manifest is None or is_below(manifest, generation)):
        raise refuse_inherited(shard_id, generation)
