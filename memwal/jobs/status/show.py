"""What `memwal status`, `runs`, `wait` and `lease break` show."""

from __future__ import annotations

import json

from rich.console import RenderableType
from rich.text import Text

from memwal.grid import STYLE, count_text, generations_text, grid_of, size_text
from memwal.report import (
    NOTHING_TO_DO,
    LeaseReport,
    LeaseTableReport,
    RunRecord,
    RunsTableReport,
    ShardStatusReport,
    StatusTableReport,
    WaitTableReport,
)

_DUE_LINES_MAX = 5
_ERROR_CHARACTERS_MAX = 160


def _unflushed(shard: ShardStatusReport) -> Text:
    text = Text(count_text(shard.unflushed_wal_entries))
    return text.append(" abandoned?", style="yellow") if shard.abandoned else text


def status_parts(report: StatusTableReport) -> list[RenderableType]:
    """One table of `status`."""
    shards = grid_of(
        "shard", "status", "epoch", "manifest", "merged", "pending", "rows", "bytes", "WAL entries",
        "unflushed", "oldest pending",
    )  # fmt: skip
    for shard in report.shards:
        if shard.error:
            shards.add_row(shard.shard_id, Text("broken", style="red"))
            continue
        shards.add_row(
            shard.shard_id,
            shard.status,
            count_text(shard.writer_epoch),
            count_text(shard.manifest_version),
            str(shard.merged_generation),
            generations_text(shard.pending_generations),
            count_text(shard.pending_rows),
            ("about " if shard.sizes_estimated else "") + size_text(shard.pending_bytes),
            count_text(shard.wal_entries),
            _unflushed(shard),
            shard.oldest_pending_flushed_at or "-",
        )
    key = ", ".join(report.primary_key) or "none"
    parts: list[RenderableType] = [
        Text(f"  {count_text(report.rows)} base rows, primary key: {key}"),
        shards if report.shards else Text("  no shards yet", style="dim"),
    ]
    if report.policy is not None:
        parts.append(Text(f"  row-merge policy: {json.dumps(report.policy)}"))
    if report.indexes:
        indexes = grid_of("index", "unindexed rows", "lag (generations)")
        for index in report.indexes:
            lag = "not recorded" if index.lag_generations is None else str(index.lag_generations)
            indexes.add_row(index.name, count_text(index.unindexed_rows), lag)
        parts.append(indexes)
    if report.snapshot is not None:
        taken = report.snapshot.taken_at or "never taken"
        parts.append(Text(f"  snapshot: {taken}, {report.snapshot.num_shards} shards"))
    if report.lease is not None and report.lease.state in ("held", "broken"):
        parts.append(_lease(report.lease))
    parts += _storage(report)
    parts += _due(report)
    return parts


def lease_parts(report: LeaseTableReport) -> list[RenderableType]:
    """The table of `lease break`."""
    if report.outcome == NOTHING_TO_DO or report.lease is None:
        return [Text("  nobody holds the lease", style="dim")]
    return [_lease(report.lease)]


def _lease(lease: LeaseReport) -> Text:
    why = f": {lease.reason}" if lease.reason else f" for {lease.job}"
    return Text(
        f"  lease: {lease.state} by {lease.holder}{why}, since {lease.acquired_at} until "
        f"{lease.expires_at}"
    )


def _storage(report: StatusTableReport) -> list[RenderableType]:
    if report.storage is None:
        return []
    names = ("base", "pending", "WAL", "reclaimable")
    sizes = [(n, getattr(report.storage, f"{n.lower()}_bytes")) for n in names]
    text = "  storage: " + ", ".join(f"{name} {size_text(size)}" for name, size in sizes)
    if report.reclaimable is not None and report.reclaimable.generations:
        text += f" ({report.reclaimable.generations} generations)"
    return [Text(text)]


def _due(report: StatusTableReport) -> list[RenderableType]:
    """Whether a merge is due: one line, or a few where shards are many."""
    if not report.due:
        return [Text("  not due", style="dim")]
    lines = [f"  due: {reason}" for reason in report.due_reasons[:_DUE_LINES_MAX]]
    more = len(report.due_reasons) - len(lines)
    if more > 0:
        lines.append(f"  and {more} more: --json has them")
    return [Text(line, style="yellow") for line in lines]


def runs_parts(report: RunsTableReport) -> list[RenderableType]:
    """One table of `runs`."""
    parts: list[RenderableType] = []
    if report.runs:
        grid = grid_of("finished", "job", "outcome", "seconds", "engine", "backlog")
        grid.add_column("what", overflow="fold")
        for run in report.runs:
            grid.add_row(
                run.finished_at[:19].replace("T", " "),
                run.job,
                Text(run.outcome, style=STYLE.get(run.outcome, "red")),
                f"{run.seconds:.2f}",
                run.engine or "-",
                _backlog_text(run),
                _what_text(run),
            )
        parts.append(grid)
    else:
        parts.append(Text("  no runs recorded", style="dim"))
    if report.unreadable:
        text = f"  {report.unreadable} run records can't be read"
        parts.append(Text(text, style="yellow"))
    return parts


def wait_parts(report: WaitTableReport) -> list[RenderableType]:
    """The table of `wait`."""
    if report.reached:
        return [Text(f"  {report.until}: {len(report.target)} shards", style="green")]
    grid = grid_of("shard", report.until, "wanted")
    for shard, generation in report.missing.items():
        grid.add_row(shard, str(generation), str(report.target.get(shard, 0)))
    return [grid] if report.missing else []


def _backlog_text(run: RunRecord) -> str:
    before, after = run.backlog.generations_before, run.backlog.generations_after
    if before is None:
        return "?"
    return str(before) if after is None else f"{before} -> {after}"


def _what_text(run: RunRecord) -> str:
    """What went wrong, or else the numbers that are not 0."""
    if run.error:
        text = run.error
        return text if len(text) <= _ERROR_CHARACTERS_MAX else text[:_ERROR_CHARACTERS_MAX] + "…"
    said = []
    for name, value in run.summary.items():
        if value:
            label = name.replace("_", " ")
            said.append(f"{label} {size_text(value) if 'bytes' in name else count_text(value)}")
    return ", ".join(said)
