"""Cuts a merging read into tasks. Pure.

A task reads a few fragments of the base, or a few generations. Small ones share a task, since
starting a task costs as much as reading some megabytes. None is split, so the largest fragment
makes the largest task.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from typing import TypeVar

from memwal.model import FlushedGeneration, ShardId
from memwal.read.plan.sources import ReadPlan, ShardRead

T = TypeVar("T")

GenerationRead = tuple[ShardId, FlushedGeneration | None]
"""A generation of a shard; None stands for its unflushed rows, which are newer than any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadTask:
    """What one task reads: fragments of the base by id, or generations; if it `searches`, all."""

    fragments: tuple[int, ...] = ()
    generations: tuple[GenerationRead, ...] = ()
    searches: bool = False


def plan_tasks(
    plan: ReadPlan,
    fragments: Sequence[tuple[int, int | None]],
    task_bytes: int,
    *,
    whole_shards: bool = False,
    unflushed: Mapping[ShardId, int] | None = None,
) -> tuple[ReadTask, ...]:
    """The tasks of a read, generations first: they may be collected once they are merged.

    `fragments` are the base's, with their sizes in bytes; one that is not known (None) counts as
    `task_bytes`, which is about what a task reads at most, unless one fragment or generation alone
    is larger. With `whole_shards`, a shard's generations stay together, in one task of their own.
    `unflushed` has the sizes of the shards' unflushed rows, which are read like a generation.
    """
    if plan.search is not None or plan.nearest is not None:
        return (ReadTask(searches=True),)
    sizes = unflushed or {}
    shards = [list_sources(shard, sizes) for shard in plan.shards]
    if whole_shards:
        return (
            *(ReadTask(generations=found) for found in shards if found),
            *(ReadTask(fragments=found) for found in _pack(fragments, task_bytes)),
        )
    generations = [
        (one, sizes[one[0]] if one[1] is None else one[1].in_memory_bytes)
        for shard in shards
        for one in shard
    ]
    return (
        *(ReadTask(generations=found) for found in _pack(generations, task_bytes)),
        *(ReadTask(fragments=found) for found in _pack(fragments, task_bytes)),
    )


def list_sources(
    shard: ShardRead, unflushed: Container[ShardId] = ()
) -> tuple[GenerationRead, ...]:
    """The sources of a shard's pending rows, newest first."""
    first = ((shard.shard_id, None),) if shard.shard_id in unflushed else ()
    return (*first, *((shard.shard_id, g) for g in shard.generations))


def _pack(items: Sequence[tuple[T, int | None]], task_bytes: int) -> Iterator[tuple[T, ...]]:
    """Pack adjacent items into groups of about the same size."""
    sizes = [task_bytes if size is None else size for _, size in items]
    groups = max(1, ceil(sum(sizes) / task_bytes))
    aim = sum(sizes) / groups
    seen, places = 0, []
    for size in sizes:
        # An item's middle decides its group, which keeps groups even, whatever the sizes.
        places.append(int((seen + size / 2) / aim) if aim else 0)
        seen += size
    for _, found in groupby(zip(places, items, strict=True), key=lambda pair: pair[0]):
        yield tuple(item for _, (item, _) in found)
