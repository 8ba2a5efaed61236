"""`memwal rescue` over tables: shards whose writer has gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from memwal.errors import MemWalError, Refused, Usage
from memwal.jobs.rescue.apply import RescuedShard, ShardRescuer
from memwal.jobs.rescue.plan import RescueAction, RescueLimits, ShardRescue
from memwal.jobs.rescue.report import RescueShardReport, RescueTableReport
from memwal.jobs.rescue.store import LanceShardWriters
from memwal.jobs.rescue.store_evidence import StoredShardWal
from memwal.model import ShardId, TableView
from memwal.ports import Steps, no_steps
from memwal.report import DONE, NOTHING_TO_DO, JobReport, TableReport, sum_up
from memwal.run.fanout import Fanout
from memwal.run.options import RunOptions
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable

_READERS_MAX = 16

Confirm = Callable[[str, Sequence[ShardRescue]], bool]


@dataclass(frozen=True, kw_only=True)
class RescueOptions(RunOptions):
    """What the job takes. No `shards` means all of them.

    `confirm` is asked once a table, with the shards that are about to be claimed.
    """

    confirm: Confirm
    shards: Sequence[ShardId] = ()
    limits: RescueLimits = field(default_factory=RescueLimits)


def run_rescue(options: RescueOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """Rescue the abandoned shards of each table."""

    def rescue(table: OpenTable, stores: Stores, view: TableView, fanout: Fanout) -> TableReport:
        return _rescue(table, stores, view, options, progress, steps)

    runner = JobRunner(
        name="rescue",
        engine=lambda fanout: None,
        is_recorded=lambda table, report: table.lease is not None or _claimed(report),
    )
    return runner.run_each(options, rescue, progress)


def _claimed(report: TableReport) -> bool:
    return isinstance(report, RescueTableReport) and any(
        s.writer_epoch_before != s.writer_epoch_after for s in report.shards
    )


def _rescue(
    table: OpenTable,
    stores: Stores,
    view: TableView,
    options: RescueOptions,
    progress: Progress,
    steps: Steps,
) -> TableReport:
    rescuer = ShardRescuer(
        wal=StoredShardWal(stores.objects),
        writers=LanceShardWriters(stores.tables),
        clock=stores.clock,
        limits=options.limits,
        before_claim=table.before_commit,
        steps=steps,
    )
    planned = _planned(rescuer, _chosen(view, stores, options))
    due = _due(planned.values())
    results: dict[ShardId, RescuedShard] = {}
    if due and not options.dry_run:
        if not options.confirm(table.resolved.name, due):
            raise Refused(f"{stores.uri}: not confirmed; nothing was claimed")
        table.take_lease("rescue", options)
        results = _run(rescuer, due, progress)
    parts = [_part(shard, plan, results.get(shard)) for shard, plan in planned.items()]
    return _report(table, view, parts, planned)


def _report(
    table: OpenTable,
    view: TableView,
    parts: Sequence[RescueShardReport],
    planned: dict[ShardId, ShardRescue | MemWalError],
) -> RescueTableReport:
    broken = tuple(
        _failed(b.shard_id, b.error)
        for b in view.broken
        if isinstance(b.error, MemWalError) and b.shard_id not in planned
    )
    outcome, code = sum_up((*parts, *broken), NOTHING_TO_DO)
    errors = [f"shard {part.shard_id}: {part.error}" for part in (*parts, *broken) if part.error]
    texts = [
        f"shard {plan.shard_id}: {text}"
        for plan in planned.values()
        if isinstance(plan, ShardRescue)
        for text in plan.warnings
    ]
    return RescueTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=view.version,
        version_after=view.version,
        shards=(*parts, *broken),
        warnings=(*view.warnings, *texts),
    )


def _chosen(view: TableView, stores: Stores, options: RescueOptions) -> list[ShardId]:
    there = [shard.shard_id for shard in view.shards]
    broken = {shard.shard_id for shard in view.broken}
    for shard in options.shards:
        if shard not in there and shard not in broken:
            raise Usage(f"{stores.uri}: the table has no shard {shard}")
    return list(dict.fromkeys(options.shards)) or there


def _planned(
    rescuer: ShardRescuer, shards: Sequence[ShardId]
) -> dict[ShardId, ShardRescue | MemWalError]:
    """The plan for each shard, or why it can't be made; shards without a manifest are left out."""

    def plan(shard: ShardId) -> ShardRescue | MemWalError | None:
        try:
            return rescuer.plan(shard)
        except MemWalError as error:
            return error

    with ThreadPoolExecutor(_READERS_MAX) as pool:
        found = zip(shards, pool.map(plan, shards), strict=True)
        return {shard: plan_ for shard, plan_ in found if plan_ is not None}


def _due(plans: Iterable[ShardRescue | MemWalError]) -> list[ShardRescue]:
    return [
        plan
        for plan in plans
        if isinstance(plan, ShardRescue) and plan.action is RescueAction.RESCUE
    ]


def _run(
    rescuer: ShardRescuer, due: Sequence[ShardRescue], progress: Progress
) -> dict[ShardId, RescuedShard]:
    progress.start("shards", len(due))
    results: dict[ShardId, RescuedShard] = {}
    for done, plan in enumerate(due, start=1):
        progress.say(f"shard {plan.shard_id}: {plan.entries} entries, {plan.rows} rows")
        result = rescuer.run(plan.shard_id)
        if result is not None:
            results[plan.shard_id] = result
        progress.done(done)
    return results


def _part(
    shard: ShardId, plan: ShardRescue | MemWalError, result: RescuedShard | None
) -> RescueShardReport:
    if isinstance(plan, MemWalError):
        return _failed(shard, plan)
    error = plan.error
    outcome = NOTHING_TO_DO if plan.action is RescueAction.NOTHING else DONE
    if result is not None:
        plan, error, outcome = result.plan, result.error, result.outcome
    elif error is not None:
        outcome = error.outcome
    return RescueShardReport(
        outcome=outcome,
        error=None if error is None else str(error),
        exit_code=0 if error is None else error.exit_code,
        shard_id=shard,
        action=plan.action.value,
        entries=plan.entries,
        rows=plan.rows,
        bytes=plan.size_bytes,
        idle_seconds=plan.idle_seconds,
        last_sign=None if plan.sign is None else plan.sign.what,
        generations=() if result is None else result.generations,
        writer_epoch_before=None if result is None else result.epoch_before,
        writer_epoch_after=None if result is None else result.epoch_after,
    )


def _failed(shard: str, error: MemWalError) -> RescueShardReport:
    return RescueShardReport(
        outcome=error.outcome,
        error=str(error),
        exit_code=error.exit_code,
        shard_id=shard,
        action=RescueAction.REFUSE.value,
    )
