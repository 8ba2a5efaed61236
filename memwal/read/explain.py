"""`read --explain`: where each part of a read comes from, as a document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from memwal.errors import MemWalError
from memwal.model import FlushedGeneration, ShardId
from memwal.read.plan.indexes import (
    ReadFacts,
    explain_indexes,
    find_differences,
    find_gap,
    find_wanted_indexes,
)
from memwal.read.plan.request import ReadRequest
from memwal.read.plan.sources import ShardRead
from memwal.read.store.sources import list_indexes
from memwal.read.table import OpenedRead, ReadableTable
from memwal.store.tables.datasets import LanceTables
from memwal.store.tables.indexes import LanceIndexes


def explain(table: ReadableTable, request: ReadRequest) -> dict[str, Any]:
    """The sources of the read, in the order in which they win, and the indexes that it uses.

    Opens everything that the read would open, and asks Lance for its plans. Raises what a read
    raises.
    """
    return table.use_read(request, lambda opened: _explain_opened(table.tables, opened))


def _explain_opened(tables: LanceTables, opened: OpenedRead) -> dict[str, Any]:
    view, plan = opened.view, opened.plan
    base_plan, plans = opened.read.explain_plans()
    indexes = LanceIndexes(tables).facts(plan.version)
    own = opened.read.list_own_indexes()
    for index, _ in find_wanted_indexes(plan, indexes):
        for shard in plan.shards:
            for generation in find_gap(index, shard, view.mem_wal, indexes):
                listed = (shard.shard_id, generation.generation)
                own[listed] = _index_names(tables, shard.shard_id, generation)
    facts = ReadFacts(indexes=indexes, base_plan=base_plan, plans=plans, own=own)
    reads = explain_indexes(plan, view.mem_wal, facts)
    return {
        "shards_from": opened.shards_from,
        "way": opened.read.way,
        "base": {
            "version": plan.version,
            "rows": view.rows,
            "fragments": len(indexes.fragments),
            "lance_plan": base_plan,
        },
        "shards": [_describe(shard, facts) for shard in plan.shards],
        "pruned": [
            {
                "shard_id": shard.shard_id,
                "reason": shard.reason,
                "generations": [g.generation for g in shard.generations],
            }
            for shard in plan.pruned
        ],
        "indexes": [asdict(read) for read in reads],
        "pylance_differs": find_differences(reads),
    }


def _index_names(
    tables: LanceTables, shard_id: ShardId, generation: FlushedGeneration
) -> frozenset[str]:
    """The indexes of a merged generation; none if it can't be read any more."""
    try:
        return list_indexes(tables.generation(shard_id, generation))
    except (MemWalError, OSError, ValueError):
        return frozenset()


def _describe(shard: ShardRead, facts: ReadFacts) -> dict[str, Any]:
    return {
        "shard_id": shard.shard_id,
        "merged_generation": shard.merged_generation,
        "generations": [
            {
                "generation": g.generation,
                "path": g.path,
                "rows": g.physical_rows,
                "in_memory_bytes": g.in_memory_bytes,
                "lance_plan": facts.plans.get((shard.shard_id, g.generation)),
            }
            for g in shard.generations
        ],
        "skipped_as_merged": [g.generation for g in shard.skipped],
    }
