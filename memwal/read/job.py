"""`memwal read`: the merging read of one table, as a document or as a file."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import MemWalError
from memwal.options import Consistency
from memwal.read.output import check_file, tell_rows
from memwal.read.plan.request import (
    ReadRequest,
    parse_nearest,
    parse_search,
)
from memwal.read.report import ReadDocument, ReadTable
from memwal.read.request import ReadAsked
from memwal.read.table import (
    OpenedRead,
    ReadableTable,
    check_keys,
    parse_keys,
    prune_shards,
)
from memwal.report import DONE
from memwal.run.policy_choice import check_stored
from memwal.run.stores import check_lance_version, open_stores
from memwal.threads import side_by_side

_READERS_MAX = 16


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The options of `read`."""

    table: ResolvedTable
    asked: ReadAsked = ReadAsked()
    untested_lance_allowed: bool = False


def open_configured(table: ResolvedTable, consistency: Consistency) -> ReadableTable:
    """Open a table for reading, with its settings. Raises Usage, Unsupported."""
    return ReadableTable(
        table.find_uri(),
        table.storage_options,
        consistency=consistency,
        memory_bytes_max=table.settings.memory_bytes_max,
    )


def run_read(options: ReadOptions, run_id: str = "") -> ReadDocument:
    """Run the read; returns its document. Raises as `memwal.read.table.ReadableTable.read` does."""
    check_lance_version(options.untested_lance_allowed)
    asked = options.asked
    check_file(asked.output)
    clock = SystemClock()
    began = clock.monotonic_seconds()
    table = open_configured(options.table, asked.consistency)
    request = build_request(table, asked)
    if asked.explain:
        if options.table.policy is not None and asked.checkpoint is None:
            check_stored(options.table, table.at(asked.version).policy_text)
        plan = explain(table, request)
        found = {**plan.pop("shards_from"), "version": plan["base"]["version"], "explain": plan}
    else:
        opened, reader = table.open_reader(request, with_wal=asked.with_wal)
        if asked.checkpoint is None:  # a checkpoint has the policy of its time, if any
            check_stored(options.table, opened.view.policy_text)
        found = _tell_read(opened) | tell_rows(reader, asked.output, table.tables.memory)
        found["unread_wal_entries"] = _count_unread(table, opened, asked)
    found |= {"checkpoint": asked.checkpoint, "merged_only": bool(asked.merged_only)}
    table_read = ReadTable(table=options.table.name, outcome=DONE, error=None, **found)
    return ReadDocument(
        job="read",
        outcome=DONE,
        seconds=round(clock.monotonic_seconds() - began, 3),
        run_id=run_id,
        tables=[table_read],
    )


def _count_unread(table: ReadableTable, opened: OpenedRead, asked: ReadAsked) -> int | None:
    """How many WAL entries of the read's shards hold rows that only `--with-wal` reads."""
    if asked.with_wal or asked.merged_only or asked.checkpoint or asked.version is not None:
        return None
    if asked.consistency == "snapshot":  # asked for where a request for each shard is too many
        return None
    read = {shard.shard_id for shard in opened.plan.shards}
    manifests = [s.manifest for s in opened.view.shards if s.shard_id in read]
    with suppress(MemWalError):  # the rows were read all the same
        return sum(side_by_side(table.wal.count_unflushed, manifests, _READERS_MAX))
    return None


def _tell_read(opened: OpenedRead) -> dict[str, Any]:
    return {
        "version": opened.plan.version,
        **opened.shards_from,
        "limit": opened.plan.limit,
        "expired_before": opened.plan.expired_before,
        "generations": opened.plan.generations,
        "shards": len(opened.plan.shards),
        "pruned_shards": len(opened.plan.pruned),
    }


def build_request(table: ReadableTable, asked: ReadAsked) -> ReadRequest:
    """What a request means for a table. Raises Usage."""
    found: dict[str, Any] = {f.name: getattr(asked, f.name, None) for f in fields(ReadRequest)}
    if asked.columns is not None:
        found["columns"] = tuple(asked.columns)
    if asked.key:
        version = asked.version
        if asked.checkpoint is not None:
            version = table.find_checkpoint(asked.checkpoint).version
        found["keys"] = table.check_keys(parse_keys(asked.key, table.schema(version)), version)
    if asked.nearest is not None:
        how: Any = {name: getattr(asked, name) for name in ("k", "metric", "nprobes")}
        found["nearest"] = parse_nearest("--nearest", asked.nearest, **how)
    if asked.search is not None:
        phrase = asked.phrase
        found["search"] = parse_search("--search", asked.search, asked.operator, phrase=phrase)
    return ReadRequest(**found)


def find_other_shards(table: ResolvedTable, key: Sequence[tuple[str, str]]) -> Set[str]:
    """The shards that can't hold a row of the key, by the table's write spec. Raises Usage."""
    stores = open_stores(table.find_uri(), table.storage_options)
    view = stores.views.table()
    schema = stores.tables.base(view.version).schema
    given = parse_keys([f"{name}={value}" for name, value in key], schema)
    keys = check_keys(given, view.primary_key, schema)
    return prune_shards(view, keys, lambda: schema).keys()


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
