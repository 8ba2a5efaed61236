"""What people see of `memwal status`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import (
    CHECKPOINTS,
    Column,
    build_table,
    describe_lease,
    format_count,
    format_generations,
    format_size,
    numbers,
    words,
)
from memwal.jobs.status.report import IndexStatusReport, ShardStatusReport, StatusTableReport

_DUE_LINES_MAX = 5

SHARDS: tuple[Column[ShardStatusReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("status", lambda shard: shard.status or ""),
    numbers("epoch", lambda shard: shard.writer_epoch),
    numbers("manifest", lambda shard: shard.manifest_version),
    numbers("merged", lambda shard: str(shard.merged_generation)),
    words("pending", lambda shard: format_generations(shard.pending_generations)),
    numbers("rows", lambda shard: shard.pending_rows),
    numbers("bytes", lambda shard: _format_pending_size(shard)),
    numbers("WAL entries", lambda shard: shard.wal_entries),
    numbers("unflushed", lambda shard: _format_unflushed(shard)),
    words("oldest pending", lambda shard: shard.oldest_pending_flushed_at or "-"),
)
INDEXES: tuple[Column[IndexStatusReport], ...] = (
    words("index", lambda index: index.name),
    numbers("unindexed rows", lambda index: index.unindexed_rows),
    numbers("lag (generations)", lambda index: _format_lag(index)),
)


def show_table(report: StatusTableReport) -> list[RenderableType]:
    """The table's shards and indexes, what it stores, and whether a merge is due."""
    return [] if report.version is None else list(_describe(report))


def _describe(report: StatusTableReport) -> Iterator[RenderableType]:
    key = ", ".join(report.primary_key) or "none"
    yield Text(f"  {format_count(report.rows)} base rows, primary key: {key}")
    if report.shards:
        yield build_table(report.shards, SHARDS, cut=_cut_broken)
    else:
        yield Text("  no shards yet", style="dim")
    if report.policy is not None:
        yield Text(f"  row-merge policy: {json.dumps(report.policy)}")
    if report.indexes:
        yield build_table(report.indexes, INDEXES)
    if report.snapshot is not None:
        taken = report.snapshot.taken_at or "never taken"
        shown = "; the shards above are as of then" if report.consistency == "snapshot" else ""
        yield Text(f"  snapshot: {taken}, {report.snapshot.num_shards} shards{shown}")
    if report.lease is not None and report.lease.state in ("held", "broken"):
        yield describe_lease(report.lease)
    if report.checkpoints:
        yield build_table(report.checkpoints, CHECKPOINTS)
    if report.storage is not None:
        yield Text(_format_storage(report))
    yield from _list_due(report)


def _cut_broken(shard: ShardStatusReport) -> tuple[str | Text, ...]:
    """Of a shard that can't be read, nothing else is known."""
    return (shard.shard_id, Text("broken", style="red")) if shard.error else ()


def _format_pending_size(shard: ShardStatusReport) -> str:
    return ("about " if shard.sizes_estimated else "") + format_size(shard.pending_bytes)


def _format_unflushed(shard: ShardStatusReport) -> Text:
    text = Text(format_count(shard.unflushed_wal_entries))
    return text.append(" abandoned?", style="yellow") if shard.abandoned else text


def _format_lag(index: IndexStatusReport) -> str:
    return "not recorded" if index.lag_generations is None else str(index.lag_generations)


def _format_storage(report: StatusTableReport) -> str:
    sizes = (
        f"{name} {format_size(getattr(report.storage, f'{name.lower()}_bytes'))}"
        for name in ("base", "pending", "WAL", "reclaimable")
    )
    text = "  storage: " + ", ".join(sizes)
    if report.reclaimable is not None and report.reclaimable.generations:
        text += f" ({report.reclaimable.generations} generations)"
    if report.storage is not None and report.storage.small_objects:
        text += f"; {report.storage.small_objects:,} manifests and WAL entries"
    return text


def _list_due(report: StatusTableReport) -> Iterator[Text]:
    """Whether a merge is due: one line, or a few where shards are many."""
    if not report.due:
        yield Text("  not due", style="dim")
        return
    for reason in report.due_reasons[:_DUE_LINES_MAX]:
        yield Text(f"  due: {reason}", style="yellow")
    if (more := len(report.due_reasons) - _DUE_LINES_MAX) > 0:
        yield Text(f"  and {more} more: --json has them", style="yellow")
