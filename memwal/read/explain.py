"""`read --explain`: where each part of a read comes from, as a document."""

from __future__ import annotations

from typing import Any

from memwal.read.plan.request import ReadRequest
from memwal.read.table import OpenedRead, ReadableTable


def explain(table: ReadableTable, request: ReadRequest) -> dict[str, Any]:
    """The sources of the read, in the order in which they win, and Lance's plan for each.

    Opens everything that the read would open. Raises what a read raises.
    """
    return table.use_read(request, _explain_opened)


def _explain_opened(opened: OpenedRead) -> dict[str, Any]:
    base_plan, plans = opened.read.explain_plans()
    return {
        "shards_from": opened.shards_from,
        "way": opened.read.way,
        "base": {"version": opened.plan.version, "rows": opened.view.rows, "lance_plan": base_plan},
        "shards": [
            {
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
            for shard in opened.plan.shards
        ],
        "pruned": [
            {
                "shard_id": shard.shard_id,
                "reason": shard.reason,
                "generations": [g.generation for g in shard.generations],
            }
            for shard in opened.plan.pruned
        ],
    }
