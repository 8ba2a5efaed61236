"""Orders the tables of a backfill: those with the most to merge come first. Pure.

The largest goes first so that no long table is left to run alone at the end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from memwal.errors import Usage
from memwal.format.layout import find_shard
from memwal.jobs.merge.plan import choose_generations
from memwal.jobs.merge.request import MergeBounds
from memwal.model import ShardId, TableView, sum_known


def find_shards(view: TableView, asked: Sequence[str]) -> tuple[ShardId, ...]:
    """The shards asked for that the table has; raises Usage if one stands for several of them."""
    there = set(view.shard_ids)
    named = (s for s in asked if any(shard.startswith(s) for shard in there))
    return tuple(dict.fromkeys(find_shard(shard, there, view.uri) for shard in named))


def check_shards(views: Sequence[TableView | None], asked: Sequence[str]) -> None:
    """Raise Usage for a shard that no table has, unless a table could not be read (None)."""
    if None not in views:
        there = {shard for view in views if view is not None for shard in view.shard_ids}
        for shard in asked:
            if not any(known.startswith(shard) for known in there):
                raise Usage(f"none of the tables has a shard {shard}")


def weigh(view: TableView, shards: Collection[str], request: MergeBounds) -> tuple[float, int]:
    """The bytes and generations to merge. An unknown size may be large; no `shards` means all."""
    chosen = [s for s in view.shards if not shards or s.shard_id in shards]
    sizes = [g.in_memory_bytes for s in chosen for g in choose_generations(s, request)]
    known = sum_known(sizes)
    return (math.inf if known is None else known), len(sizes)
