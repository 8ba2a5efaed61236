"""Assets and their events, with which a DAG announces which tables moved, and how far.

A table's own asset has the address of its data as its URI; it gets an event when what readers of
the base table see has changed. In addition there is one asset for each table and step, and these
start the shipped DAGs. Events are added through an alias, one for each table that moved, because a
plain outlet would announce every table at every run. Plain assets among a task's outlets only show
what the task makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import SplitResult, quote

from airflow.sdk import Asset, AssetAlias, timezone
from airflow.sdk.exceptions import AirflowRuntimeError

from memwal.config import Config, mask_address
from memwal.errors import Usage
from memwal_airflow.assets.lineage import MERGING, find_address
from memwal_airflow.settings import read_dag_config

GROUP = "memwal"
INGESTED = "ingested"
MERGED = "merged"
INDEXED = "indexed"
COLLECTED = "collected"
BACKED_UP = "backed-up"
TABLES = AssetAlias(name="memwal_tables", group=GROUP)
"""The alias through which a task about many tables adds events to the tables' own assets."""
SOURCES = {
    "merge": INGESTED,
    "index-catchup": MERGED,
    "snapshot": MERGED,
    "compaction": MERGED,
    "garbage": INDEXED,
}
"""The step whose result each job works on."""
_ROWS = ("rows_inserted", "rows_updated", "rows_deleted", "rows_written")


def build_table_asset(table: str) -> Asset:
    """Return the asset of a table's data; `table` is a name or an address. Raises Usage.

    It equals `Asset("s3://lake/orders")`, however the configuration writes the address.
    """
    address = find_address(table, read_dag_config())
    if address is None:
        raise Usage(
            f"table {mask_address(table)!r} has no fixed address: it is not in the configuration, "
            f"or in a namespace; schedule by build_asset({MERGED!r}, {table!r})"
        )
    return Asset(uri=address)


def build_asset(step: str, table: str) -> Asset:
    """Return the asset for one of the steps above of `table`."""
    table = mask_address(table)
    return Asset(name=f"memwal {step} {table}", uri=f"memwal://{step}/{quote(table, safe='')}",
                 group=GROUP, extra={"table": table})  # fmt: skip


def build_alias(step: str) -> AssetAlias:
    """Return the alias through which the events of a step are added."""
    return AssetAlias(name=f"memwal_{step}", group=GROUP)


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check `memwal://STEP/TABLE` for Airflow. Raises ValueError."""
    if not uri.netloc or not uri.path.strip("/"):
        raise ValueError("URI format memwal:// must be memwal://STEP/TABLE")
    return uri


def build_table_alias(table: str) -> AssetAlias:
    """Return the alias through which a task about one table adds events to the table's asset."""
    return AssetAlias(name=f"memwal_table {mask_address(table)}", group=GROUP)


def declare_tables(tables: Iterable[str], config: Config) -> list[Any]:
    """Return the outlets of a task that merges these tables.

    The assets are referred to by their addresses: another DAG may have named one differently, and
    Airflow does not start a task that has a second name for the same asset.
    """
    named = list(tables)
    found = {find_address(table, config): None for table in named}
    alias = build_table_alias(named[0]) if len(named) == 1 else TABLES
    return [alias, *(Asset.ref(uri=address) for address in found if address)]


def find_ports(job: str, tables: Any) -> dict[str, Any]:
    """Return a job's inlets and outlets, as far as its tables are known when the task is made."""
    named = [tables] if isinstance(tables, str) else tables
    if not isinstance(named, list | tuple) or any("{" in str(name) for name in named):
        named = ()
    named = [name for name in named if str(name).strip()]  # the job refuses blank names
    try:
        config = read_dag_config()
    except Usage:  # the job will report it
        return {}
    ports: dict[str, Any] = {}
    if job in SOURCES:
        ports["inlets"] = [build_asset(SOURCES[job], name) for name in named]
    if job in MERGING:
        ports["outlets"] = declare_tables(named, config)
    return ports


def add_events(step: str, summary: Any, context: Any, part: str | None = None) -> list[str]:
    """Add one event for each table that moved, and return the names of these tables.

    If the summary covers several jobs on each table, `part` names the job that counts. An event's
    `extra` holds {"table", "step", "version_before", "version", "counts": {"rows_updated": …},
    "generation", "watermark": {shard: generation}, "watermark_shards", "at"}. A watermark of very
    many shards is cut; `watermark_shards` is the number of all shards, `generation` the highest
    generation in the cut watermark.
    """
    moved = _find_moved(summary, part)
    events = context["outlet_events"][build_alias(step)]
    for name, result in moved.items():
        events.add(build_asset(step, name), extra=_describe(step, name, result))
    merged = {n: found for n, found in moved.items() if step == MERGED or found.get("merges")}
    _add_table_events(merged, context)
    return list(moved)


def add_events_of_job(job: str, summary: Any, context: Any) -> None:
    """Add an event to the data asset of each table whose base table a job changed."""
    moved = _find_moved(summary, "merge" if job in ("maintain", "backfill") else None)
    merged = {n: found for n, found in moved.items() if job != "ingest" or found.get("merges")}
    _add_table_events(merged, context)


def _add_table_events(merged: Mapping[str, Mapping[str, Any]], context: Any) -> None:
    config, task, events = read_dag_config(), context["task"], context["outlet_events"]
    # Plain outlets only show what the task makes; Airflow would announce them all.
    task.outlets = [outlet for outlet in task.outlets if isinstance(outlet, AssetAlias)]
    for name, result in merged.items():
        address, extra = find_address(name, config), _describe(MERGED, name, result)
        if address is None:
            continue
        alias = build_table_alias(name)
        if alias not in task.outlets:
            alias = TABLES
            task.outlets = list(dict.fromkeys([*task.outlets, alias]))
        try:
            events[alias].add(Asset.ref(uri=address), extra=extra)
        except AirflowRuntimeError:  # no DAG has the asset, so it has no other name
            events[alias].add(Asset(uri=address), extra=extra)


def _find_moved(summary: Any, part: str | None) -> dict[str, Mapping[str, Any]]:
    moved: dict[str, Mapping[str, Any]] = {}
    if isinstance(summary, Mapping) and not summary.get("dry_run"):
        for table in summary.get("tables") or []:
            for result in [table] if part is None else table.get("jobs") or []:
                if result.get("progress") and part in (None, result.get("job")):
                    moved[str(table["table"])] = result
    return moved


def _describe(step: str, name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    marks = table.get("watermark") or {}
    counts = table.get("counts") or {}
    return {
        "table": name,
        "step": step,
        "version_before": table.get("version_before"),
        "version": table.get("version_after"),
        "counts": {kind: counts[kind] for kind in _ROWS if kind in counts},
        "generation": max(marks.values(), default=None),
        "watermark": marks,
        "watermark_shards": table.get("watermark_shards", 0),
        "at": timezone.utcnow().isoformat(timespec="seconds"),
    }


def find_triggering_tables(triggering_asset_events: Any) -> list[str]:
    """Return the tables of the events that started a run, each once even if it has many events."""
    names: dict[str, None] = {}
    for events in (triggering_asset_events or {}).values():
        for event in events:
            # An event made by hand has no `extra`; it is about the asset's own table.
            table = (event.extra or {}).get("table") or (event.asset.extra or {}).get("table")
            if table:
                names[str(table)] = None
    return list(names)


def find_changed_range(triggering_asset_events: Any) -> tuple[int | None, int | None]:
    """Return the versions before and after what the events that started a run tell of.

    Several events make one range; without any that has versions, both are None. An event may be
    lost, or come twice: go on from where you are, if that is before the range.
    """
    extras = [e.extra or {} for es in (triggering_asset_events or {}).values() for e in es]
    since = [x["version_before"] for x in extras if x.get("version_before") is not None]
    until = [x["version"] for x in extras if x.get("version") is not None]
    return min(since, default=None), max(until, default=None)
