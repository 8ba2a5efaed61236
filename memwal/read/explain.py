"""`read --explain`: where each part of a read comes from, as a document."""

from __future__ import annotations

from typing import Any

from memwal.errors import MemWalError
from memwal.jobs.index_catchup.store import LanceIndexTable
from memwal.model import FlushedGeneration, ShardId
from memwal.read.plan import ReadRequest, ShardRead
from memwal.read.plan_indexes import (
    IndexedRead,
    ReadFacts,
    differences,
    gap_generations,
    indexed_reads,
    wanted_indexes,
)
from memwal.read.store_sources import index_names
from memwal.read.table import OpenedRead, ReadableTable
from memwal.store.table import LanceTables


def explain(table: ReadableTable, request: ReadRequest) -> dict[str, Any]:
    """The sources of the read, in the order in which they win, and the indexes that it uses.

    Opens everything that the read would open, and asks Lance for its plans. Raises what a read
    raises.
    """
    return table.opened(request, lambda opened: _explained(table.tables, opened))


def _explained(tables: LanceTables, opened: OpenedRead) -> dict[str, Any]:
    view, plan = opened.view, opened.plan
    base_plan, plans = opened.read.plan_texts()
    indexes = LanceIndexTable(tables).facts(plan.version)
    own = opened.read.own_indexes()
    for index, _ in wanted_indexes(plan, indexes):
        for shard in plan.shards:
            for generation in gap_generations(index, shard, view.mem_wal, indexes):
                own |= _own(tables, shard.shard_id, generation)
    facts = ReadFacts(indexes=indexes, base_plan=base_plan, plans=plans, own=own)
    reads = indexed_reads(plan, view.mem_wal, facts)
    return {
        "way": opened.read.way,
        "base": {
            "version": plan.version,
            "rows": view.rows,
            "fragments": len(indexes.fragments),
            "lance_plan": base_plan,
        },
        "shards": [_shard(shard, plans) for shard in plan.shards],
        "pruned": [
            {
                "shard_id": shard.shard_id,
                "reason": shard.reason,
                "generations": [g.generation for g in shard.generations],
            }
            for shard in plan.pruned
        ],
        "indexes": [_index(read) for read in reads],
        "pylance_differs": list(differences(reads)),
    }


def _own(
    tables: LanceTables, shard_id: ShardId, generation: FlushedGeneration
) -> dict[tuple[ShardId, int], frozenset[str]]:
    """The indexes of a merged generation; nothing where it can't be looked at any more."""
    try:
        names = index_names(tables.generation(shard_id, generation))
    except (MemWalError, OSError, ValueError):
        return {}
    return {(shard_id, generation.generation): names}


def _shard(shard: ShardRead, plans: dict[tuple[ShardId, int], str | None]) -> dict[str, Any]:
    return {
        "shard_id": shard.shard_id,
        "merged_generation": shard.merged_generation,
        "generations": [
            {
                "generation": g.generation,
                "path": g.path,
                "rows": g.physical_rows,
                "in_memory_bytes": g.in_memory_bytes,
                "lance_plan": plans.get((shard.shard_id, g.generation)),
            }
            for g in shard.generations
        ],
        "skipped_as_merged": [g.generation for g in shard.skipped],
    }


def _index(read: IndexedRead) -> dict[str, Any]:
    return {
        "name": read.name,
        "kind": read.kind,
        "column": read.column,
        "purpose": read.purpose,
        "caught_up": dict(read.caught_up),
        "answers": [
            {
                "source": answer.source,
                "shard_id": answer.shard_id,
                "rows": answer.rows,
                "answered_by": answer.by,
                "by_the_spec": answer.spec,
                "why": answer.why,
            }
            for answer in read.answers
        ],
    }
