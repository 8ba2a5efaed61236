"""What `memwal rescue` reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import MemWalError
from memwal.format import layout
from memwal.grid import Column, build_table, format_generations, numbers, style_outcome, words
from memwal.jobs.rescue.plan import RescueAction, ShardRescue
from memwal.model import ShardId, TableView
from memwal.report import (
    DONE,
    NOTHING_TO_DO,
    AuditItem,
    Part,
    TableReport,
    describe_error,
    join_errors,
    sum_up,
)
from memwal.text import format_age


class RescueShardReport(Part):
    """One shard. `action` is rescue, nothing or refuse; of a dry run, what would be done.

    `entries`, `rows` and `bytes` are what was in the WAL only; `rows` counts versions of rows.
    `torn_positions` are entries that are dropped; `torn_kept` is where their bytes are by then,
    below the table's folder. `generations` are the numbers that hold them now. The epochs differ by
    one for each claim.
    """

    shard_id: str
    action: str
    entries: int = 0
    rows: int = 0
    bytes: int = 0
    idle_seconds: float | None = None
    last_sign: str | None = None
    torn_positions: tuple[int, ...] = ()
    torn_kept: str | None = None
    generations: tuple[int, ...] = ()
    writer_epoch_before: int | None = None
    writer_epoch_after: int | None = None


class RescueTableReport(TableReport):
    """One table of a rescue."""

    shards: tuple[RescueShardReport, ...] = ()
    warnings: tuple[str, ...] = ()

    SUMMARISED: ClassVar = ("generations", "rows")

    @property
    def has_claimed(self) -> bool:
        """Whether a shard was claimed, be it in vain."""
        return any(s.writer_epoch_before != s.writer_epoch_after for s in self.shards)

    def audited(self) -> Iterable[AuditItem]:
        """The shards that were claimed, and the torn entries that were to be replaced."""
        for shard in self.shards:
            claimed = shard.writer_epoch_before != shard.writer_epoch_after
            numbers = shard.generations
            if claimed or shard.generations:
                yield AuditItem(
                    action="rescue",
                    kind="shard",
                    path=layout.shard_folder(ShardId(shard.shard_id)),
                    shard_id=shard.shard_id,
                    bytes=shard.bytes,
                    generations=(min(numbers), max(numbers)) if numbers else None,
                    reason=f"{shard.entries} entries, silent for {format_age(shard.idle_seconds)} "
                    f"({shard.last_sign}); epoch {_format_epoch(shard)}",
                    done=shard.outcome == DONE,
                )
            if shard.torn_kept:
                shard_id, positions = ShardId(shard.shard_id), shard.torn_positions
                yield from list_torn(shard_id, positions, done=claimed)

    @property
    def generations(self) -> int:
        """How many generations the run left to be merged."""
        return sum(len(shard.generations) for shard in self.shards)

    @property
    def rows(self) -> int:
        """Rows in them, all versions counted."""
        return sum(shard.rows for shard in self.shards if shard.generations)


def report_rescue(
    name: str,
    view: TableView,
    plans: Mapping[ShardId, ShardRescue | MemWalError],
    results: Mapping[ShardId, RescueShardReport],
) -> RescueTableReport:
    """One table: what came of each planned shard, and those of the view that can't be read."""
    shards = [results.get(shard) or report_shard(shard, plan) for shard, plan in plans.items()]
    shards += [
        report_shard(broken.shard_id, broken.error)
        for broken in view.broken
        if isinstance(broken.error, MemWalError) and broken.shard_id not in plans
    ]
    outcome, code = sum_up(shards)
    warnings = [
        f"shard {plan.shard_id}: {text}"
        for plan in plans.values()
        if isinstance(plan, ShardRescue)
        for text in plan.warnings
    ]
    return RescueTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error=join_errors({f"shard {s.shard_id}": s.error for s in shards}),
        version_before=view.version,
        version_after=view.version,
        shards=tuple(shards),
        warnings=(*view.warnings, *warnings),
    )


def report_shard(
    shard_id: str, plan: ShardRescue | MemWalError, error: MemWalError | None = None, **done: Any
) -> RescueShardReport:
    """One shard: its plan, or why there is none; `done` and `error` tell of a rescue that began."""
    if isinstance(plan, MemWalError):
        action = RescueAction.REFUSE.value
        return RescueShardReport(shard_id=shard_id, action=action, **describe_error(plan))
    does = plan.action is RescueAction.RESCUE
    return RescueShardReport(
        **describe_error(error or plan.error, DONE if does else NOTHING_TO_DO),
        shard_id=shard_id,
        action=plan.action.value,
        entries=plan.entries,
        rows=plan.rows,
        bytes=plan.size_bytes,
        idle_seconds=plan.idle_seconds,
        last_sign=None if plan.sign is None else plan.sign.what,
        torn_positions=tuple(sorted(entry.position for entry in plan.torn)),
        torn_kept=layout.torn_folder(ShardId(shard_id)) if plan.torn and done else None,
        **done,
    )


def list_torn(
    shard_id: ShardId, positions: Iterable[int], *, done: bool | None = None
) -> Iterable[AuditItem]:
    """Torn entries that a rescue replaces, as lines of the audit trail."""
    for position in positions:
        kept = layout.torn_entry_path(shard_id, position)
        yield AuditItem(
            action="replace",
            kind="wal_entry",
            path=layout.wal_entry_path(shard_id, position),
            shard_id=shard_id,
            reason=f"torn; its bytes are in {kept}",
            done=done,
        )


SHARDS: tuple[Column[RescueShardReport], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: style_outcome(shard.outcome)),
    numbers("WAL rows", lambda shard: shard.rows),
    numbers("silent for", lambda shard: format_age(shard.idle_seconds)),
    numbers("epoch", lambda shard: _format_epoch(shard)),
    numbers("generations", lambda shard: format_generations(shard.generations)),
)


def show_table(report: RescueTableReport) -> list[RenderableType]:
    """Render a line for each shard, where torn bytes are kept, and the generations to merge."""
    if not report.shards:
        return [Text("  no shards yet", style="dim")]
    parts: list[RenderableType] = [build_table(report.shards, SHARDS)]
    parts += [
        Text(f"  shard {shard.shard_id}: the bytes of what was torn are in {shard.torn_kept}")
        for shard in report.shards
        if shard.torn_kept
    ]
    if report.generations:
        parts.append(Text(f"  generations to be merged: {report.generations} (memwal merge)"))
    return parts


def _format_epoch(shard: RescueShardReport) -> str:
    before, after = shard.writer_epoch_before, shard.writer_epoch_after
    return "-" if before is None else f"{before} -> {after}"
