"""`memwal rescue` over tables: shards whose writer has gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import RenderableType
from rich.text import Text

from memwal.errors import MemWalError, Refused
from memwal.grid import Column, build_table, format_generations, numbers, style_outcome, words
from memwal.jobs.rescue.apply import ShardRescuer
from memwal.jobs.rescue.plan import (
    RescueAction,
    RescueShardReport,
    RescueTableReport,
    ShardRescue,
    _format_epoch,
    choose_shards,
    list_torn,
    report_rescue,
)
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal
from memwal.model import ShardId, TableView
from memwal.ports import Steps, no_steps
from memwal.report import (
    JobReport,
    TableReport,
)
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.store.tables.manifests import require_mem_wal
from memwal.text import count_of, format_age
from memwal.threads import side_by_side

_READERS_MAX = 16

Confirm = Callable[[str, Sequence[ShardRescue]], bool]


@dataclass(frozen=True, kw_only=True)
class RescueOptions(RunOptions):
    """The options of `rescue`.

    `confirm` is called once for each table, with the shards that are about to be claimed.
    """

    confirm: Confirm
    request: RescueRequest = RescueRequest()


def run_rescue(options: RescueOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Rescue the abandoned shards of each table."""

    def rescue(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        require_mem_wal(stores.uri, view.manifest)
        rescuer = ShardRescuer(
            wal=StoredShardWal(
                stores.objects, check=partial(stores.views.field_ids.check_entry, view.version)
            ),
            writers=LanceShardWriters(stores.tables),
            clock=stores.clock,
            request=options.request,
            before_claim=table.before_commit,
            intend=lambda plan: table.intend(
                [*list_torn(plan.shard_id, (entry.position for entry in plan.torn))]
            ),
            steps=steps,
        )
        plans = _plan(rescuer, view, choose_shards(view, options.request.shards))
        due = [
            plan
            for plan in plans.values()
            if isinstance(plan, ShardRescue) and plan.action is RescueAction.RESCUE
        ]
        results: dict[ShardId, RescueShardReport] = {}
        if due and not options.dry_run:
            if not options.confirm(table.resolved.name, due):
                raise Refused("MW-R01", f"{stores.uri}: not confirmed; nothing was claimed")
            table.take_lease("rescue", options)
            results = _run(rescuer, due, progress)
        return report_rescue(table.resolved.name, view, plans, results)

    def is_recorded(table: OpenTable, report: TableReport) -> bool:
        claimed = isinstance(report, RescueTableReport) and report.has_claimed
        return table.lease is not None or claimed

    runner = JobRunner(name="rescue", engine=lambda fanout: None, is_recorded=is_recorded)
    return runner.run_each(options, rescue, progress)


def _plan(
    rescuer: ShardRescuer, view: TableView, shards: Sequence[ShardId]
) -> dict[ShardId, ShardRescue | MemWalError]:
    """The plan for each shard, or the error; shards without a manifest are left out."""

    broken = {b.shard_id: b.error for b in view.broken if isinstance(b.error, MemWalError)}

    def plan(shard: ShardId) -> ShardRescue | MemWalError | None:
        if shard in broken:
            return broken[shard]
        try:
            return rescuer.plan(shard)
        except MemWalError as error:
            return error

    plans = zip(shards, side_by_side(plan, shards, _READERS_MAX), strict=True)
    return {shard: found for shard, found in plans if found is not None}


def _run(
    rescuer: ShardRescuer, due: Sequence[ShardRescue], progress: Progress
) -> dict[ShardId, RescueShardReport]:
    progress.start("shards", len(due))
    results: dict[ShardId, RescueShardReport] = {}
    for done, plan in enumerate(due, start=1):
        progress.say(f"shard {plan.shard_id}: {plan.entries} entries, {count_of(plan.rows, 'row')}")
        result = rescuer.run(plan.shard_id)
        if result is not None:
            results[plan.shard_id] = result
        progress.done(done)
    return results


# ---- what people see


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
