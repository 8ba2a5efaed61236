"""Assets and their events, through which a DAG announces which tables moved, and how far.

There is one asset for each table and step. Events are added through an alias, one for each table
that moved; a plain outlet would announce every table at every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias, timezone

GROUP = "memwal"
INGESTED = "ingested"
MERGED = "merged"
INDEXED = "indexed"
COLLECTED = "collected"


def build_asset(step: str, table: str) -> Asset:
    """What stands for "rows came into `table`", or "it was merged", "indexed" or "collected"."""
    return Asset(name=f"memwal {step} {table}", uri=f"memwal://{step}/{quote(table, safe='')}",
                 group=GROUP, extra={"table": table})  # fmt: skip


def build_alias(step: str) -> AssetAlias:
    """Through which the events of a step are added."""
    return AssetAlias(name=f"memwal_{step}", group=GROUP)


def add_events(
    step: str, summaries: Iterable[Any], outlet_events: Any, part: str | None = None
) -> list[str]:
    """Add one event for each table that moved; returns the names of the tables.

    `part` names the job that counts, where the summaries are of several jobs on each table.
    `extra` holds {"table", "version", "watermark": {shard: generation}, "watermark_shards", "at"}.
    A watermark of very many shards is cut; `watermark_shards` is their number.
    """
    moved: dict[str, dict[str, Any]] = {}
    for summary in summaries:
        if isinstance(summary, Mapping) and not summary.get("dry_run"):
            for table in summary.get("tables") or []:
                jobs = [table] if part is None else table.get("jobs") or []
                for result in jobs:
                    if result.get("progress") and part in (None, result.get("job")):
                        moved[str(table["table"])] = result
    for name, table in moved.items():
        outlet_events[build_alias(step)].add(
            build_asset(step, name),
            extra={
                "table": name,
                "version": table.get("version_after"),
                "watermark": table.get("watermark") or {},
                "watermark_shards": table.get("watermark_shards", 0),
                "at": timezone.utcnow().isoformat(timespec="seconds"),
            },
        )
    return list(moved)


def find_triggering_tables(triggering_asset_events: Any) -> list[str]:
    """The tables of the events that started a run, each once, however many events piled up."""
    names: dict[str, None] = {}
    for events in (triggering_asset_events or {}).values():
        for event in events:
            table = (event.extra or {}).get("table")
            if table:
                names[str(table)] = None
    return list(names)
