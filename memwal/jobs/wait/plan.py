"""Chooses what `memwal wait` waits for, and tells how far each shard has got. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from memwal.errors import Usage
from memwal.format.layout import find_shard
from memwal.indexes import covering_indexes
from memwal.model import MemWalState, ShardId, TableView, VersionManifest
from memwal.text import count_of

_NAMED_MAX = 10


class Until(Enum):
    """What has to be true of every generation up to the target.

    MERGED: its rows are in the base table. INDEXED: it is merged, and every index has caught up
    that has to before the garbage job may take it. COLLECTED: it is merged, the shard's manifest
    no longer lists it, and its folder is gone.
    """

    MERGED = "merged"
    INDEXED = "indexed"
    COLLECTED = "collected"


def choose_target(view: TableView, named: Mapping[str, int]) -> Mapping[ShardId, int]:
    """The generation to wait for, by shard: those named, or each shard's highest flushed one.

    A shard may be named by the first characters of its id. Raises Usage for one that the table does
    not have, and the error of a shard whose manifest is needed and can't be read.
    """
    broken = {ShardId(b.shard_id): b.error for b in view.broken}
    there = set(view.shard_ids)
    asked: dict[ShardId, int] = {}
    for text, generation in named.items():
        shard = find_shard(text, there, view.uri)
        if shard in asked:
            raise Usage(f"--generation names shard {shard} twice")
        asked[shard] = generation
    for shard in asked or broken:
        if shard in broken:
            raise broken[shard]
    if asked:
        return asked
    highest = {
        s.shard_id: max(
            (s.merged_generation, *(g.generation for g in s.manifest.flushed_generations))
        )
        for s in view.shards
    }
    return {shard: generation for shard, generation in highest.items() if generation > 0}


def find_merged(state: MemWalState, shard: ShardId) -> int:
    """The generation up to which the shard is merged."""
    return state.merged.get(shard, 0)


def find_indexed(manifest: VersionManifest, state: MemWalState, shard: ShardId) -> int:
    """The generation up to which the shard is merged and every index has caught up."""
    return state.caught_up_to(shard, covering_indexes(manifest, state))


def find_collected(merged: int, left: Iterable[int]) -> int:
    """The generation up to which all are merged and gone; `left` are listed or have a folder."""
    return min(merged, min(left, default=merged + 1) - 1)


def find_missing(
    target: Mapping[ShardId, int], reached: Mapping[ShardId, int]
) -> dict[ShardId, int]:
    """The shards that have not reached their target, and how far each is."""
    return {s: reached.get(s, 0) for s, wanted in target.items() if reached.get(s, 0) < wanted}


def describe_missing(
    until: Until, target: Mapping[ShardId, int], missing: Mapping[ShardId, int]
) -> str:
    """Describe in one line how far the shards have got."""
    done = len(target) - len(missing)
    text = f"{until.value}: {done} of {count_of(len(target), 'shard')}"
    named = [f"shard {s} at {g} of {target[s]}" for s, g in missing.items()]
    more = [f"and {len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return "; ".join([text, *named[:_NAMED_MAX], *more])
