"""`memwal read`: the merging read of one table, as a document or as a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from memwal.clock import SystemClock
from memwal.config import ResolvedTable
from memwal.errors import Usage
from memwal.model import Consistency
from memwal.read.explain import explain
from memwal.read.output import check_file, write_file
from memwal.read.plan.request import (
    Nearest,
    ReadRequest,
    Search,
    parse_nearest,
    parse_search,
)
from memwal.read.report import ReadDocument, ReadTable
from memwal.read.table import (
    OpenedRead,
    ReadableTable,
    open_table,
    parse_keys,
)
from memwal.report import DONE
from memwal.rows.json_values import rows_to_json
from memwal.rows.memory import Memory
from memwal.run.policy_choice import check_stored
from memwal.run.stores import check_lance_version


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The command line's options, with texts as they were typed."""

    table: ResolvedTable
    columns: str | None = None
    filter: str | None = None
    limit: int | None = None
    version: int | None = None
    merged_only: bool | None = None
    checkpoint: str | None = None
    keys: Sequence[str] = ()
    nearest: str | None = None
    k: int | None = None
    metric: str | None = None
    nprobes: int | None = None
    search: str | None = None
    operator: str | None = None
    phrase: bool = False
    with_wal: bool = False
    consistency: Consistency = "latest"
    explain: bool = False
    output: Path | None = None
    holes_allowed: bool = False
    reinitialised_allowed: bool = False
    untested_lance_allowed: bool = False


def open_configured(table: ResolvedTable, consistency: Consistency) -> ReadableTable:
    """Open a table for reading, with its settings. Raises as `open_table` does."""
    return open_table(
        table.find_uri(),
        table.storage_options,
        consistency=consistency,
        memory_bytes_max=table.settings.memory_bytes_max,
    )


def run_read(options: ReadOptions, run_id: str = "") -> ReadDocument:
    """Run the read; returns its document. Raises as `memwal.read.table.ReadableTable.read` does."""
    check_lance_version(options.untested_lance_allowed)
    if options.explain and (options.with_wal or options.output is not None):
        raise Usage("--explain reads no rows: neither --with-wal nor --output go with it")
    if options.output is not None:
        check_file(options.output)
    clock = SystemClock()
    began = clock.monotonic_seconds()
    table = open_configured(options.table, options.consistency)
    request = _build_request(table, options)
    if options.explain:
        if options.table.policy is not None and options.checkpoint is None:
            check_stored(options.table, table.at(options.version).policy_text)
        plan = explain(table, request)
        found = {**plan.pop("shards_from"), "version": plan["base"]["version"], "explain": plan}
    else:
        opened, reader = table.open_reader(request, with_wal=options.with_wal)
        if options.checkpoint is None:  # a checkpoint has the policy of its time, if any
            check_stored(options.table, opened.view.policy_text)
        found = _write_rows(opened, reader, options.output, table.tables.memory)
    found |= {"checkpoint": options.checkpoint, "merged_only": bool(options.merged_only)}
    table_read = ReadTable(table=options.table.name, outcome=DONE, error=None, **found)
    return ReadDocument(
        job="read",
        outcome=DONE,
        seconds=round(clock.monotonic_seconds() - began, 3),
        run_id=run_id,
        tables=[table_read],
    )


def _write_rows(
    opened: OpenedRead, reader: pa.RecordBatchReader, output: Path | None, memory: Memory
) -> dict[str, Any]:
    rows = None if output is not None else rows_to_json(reader)
    count = write_file(reader, output, memory) if output is not None else len(rows or ())
    return {
        "version": opened.plan.version,
        **opened.shards_from,
        "schema": [{"name": f.name, "type": str(f.type)} for f in reader.schema],
        "num_rows": count,
        "rows": rows,
        "output": None if output is None else str(output),
        "limit": opened.plan.limit,
        "expired_before": opened.plan.expired_before,
        "generations": opened.plan.generations,
        "shards": len(opened.plan.shards),
        "pruned_shards": len(opened.plan.pruned),
    }


def split_names(text: str | None) -> tuple[str, ...] | None:
    """The names in `a,b`; None for none given."""
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _build_request(table: ReadableTable, options: ReadOptions) -> ReadRequest:
    columns, keys = split_names(options.columns), None
    if options.keys:
        version = options.version
        if options.checkpoint is not None:
            version = table.find_checkpoint(options.checkpoint).version
        keys = table.check_keys(parse_keys(options.keys, table.schema(version)), version)
    return ReadRequest(
        columns=columns,
        filter=options.filter,
        limit=options.limit,
        keys=keys,
        nearest=_parse_nearest(options),
        search=_parse_search(options),
        version=options.version,
        merged_only=options.merged_only,
        checkpoint=options.checkpoint,
        holes_allowed=options.holes_allowed,
        reinitialised_allowed=options.reinitialised_allowed,
        consistency=options.consistency,
    )


def _parse_nearest(options: ReadOptions) -> Nearest | None:
    names = ("k", "metric", "nprobes")
    how: Any = {name: getattr(options, name) for name in names}
    if options.nearest is not None:
        return parse_nearest("--nearest", options.nearest, **how)
    if any(value is not None for value in how.values()):
        raise Usage("--k, --metric and --nprobes go with --nearest")
    return None


def _parse_search(options: ReadOptions) -> Search | None:
    if options.search is None:
        if options.operator is not None or options.phrase:
            raise Usage("--operator and --phrase go with --search")
        return None
    return parse_search("--search", options.search, options.operator, phrase=options.phrase)
