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
    RESCUE,
    RescueTableReport,
    ShardRescue,
    choose_shards,
    format_epoch,
    list_torn,
    refuse_shard,
    report_rescue,
)
from memwal.jobs.rescue.request import RescueRequest
from memwal.jobs.rescue.store import LanceShardWriters, StoredShardWal
from memwal.model import ShardId, TableView
from memwal.ports import Steps, no_steps
from memwal.report import JobReport, TableReport, describe_error
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
            intend=lambda plan: table.intend([*list_torn(plan)]),
            steps=steps,
        )
        plans = _plan(rescuer, view, choose_shards(view, options.request.shards))
        due = [shard for shard, plan in plans.items() if plan.action == RESCUE]
        if due and not options.dry_run:
            if not options.confirm(table.resolved.name, [plans[shard] for shard in due]):
                raise Refused("MW-R01", f"{stores.uri}: not confirmed; nothing was claimed")
            table.take_lease("rescue", options)
            progress.start("shards", len(due))
            for done, shard in enumerate(due, start=1):
                entries, rows = plans[shard].entries, count_of(plans[shard].rows, "row")
                progress.say(f"shard {shard}: {entries} entries, {rows}")
                try:
                    plans[shard] = rescuer.run(shard) or plans[shard]
                except MemWalError as error:  # what became of the others is told all the same
                    plans[shard] = plans[shard].model_copy(update=describe_error(error))
                progress.done(done)
        return report_rescue(table.resolved.name, view, [*plans.values()])

    def is_recorded(table: OpenTable, report: TableReport) -> bool:
        shards = report.shards if isinstance(report, RescueTableReport) else ()
        return table.lease is not None or any(shard.has_claimed for shard in shards)

    runner = JobRunner(name="rescue", engine=lambda fanout: None, is_recorded=is_recorded)
    return runner.run_each(options, rescue, progress)


def _plan(
    rescuer: ShardRescuer, view: TableView, shards: Sequence[ShardId]
) -> dict[ShardId, ShardRescue]:
    """The plan for each shard that has a manifest, and for all that can't be read."""
    broken = {ShardId(b.shard_id): b.error for b in view.broken}

    def plan(shard: ShardId) -> ShardRescue | None:
        if shard in broken:
            return refuse_shard(shard, broken[shard])
        try:
            return rescuer.plan(shard)
        except MemWalError as error:
            return refuse_shard(shard, error)

    every = list(dict.fromkeys((*shards, *broken)))
    plans = zip(every, side_by_side(plan, every, _READERS_MAX), strict=True)
    return {shard: found for shard, found in plans if found is not None}


# ---- what people see


SHARDS: tuple[Column[ShardRescue], ...] = (
    words("shard", lambda shard: shard.shard_id),
    words("outcome", lambda shard: style_outcome(shard.outcome)),
    numbers("WAL rows", lambda shard: shard.rows),
    numbers("silent for", lambda shard: format_age(shard.idle_seconds)),
    numbers("epoch", format_epoch),
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
