"""`memwal merge` over tables: plan here, a unit a shard on the engine, one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memwal.clock import SystemClock
from memwal.config import Settings
from memwal.errors import MemWalError, Usage
from memwal.jobs.merge import plan_shared as merge_shared
from memwal.jobs.merge.apply import check_shard_lineage
from memwal.jobs.merge.apply_run import ShardMerge
from memwal.jobs.merge.plan import (
    MergeLimits,
    MergeRequest,
    check_shard,
    check_table,
    foresee,
    wanted,
)
from memwal.jobs.merge.unit import (
    MergeUnit,
    MergeUnitResult,
    as_one,
    lost_merge_unit,
    run_merge_unit,
)
from memwal.jobs.status.apply import view_warnings
from memwal.model import ShardId, ShardView, TableView
from memwal.ports import Clock
from memwal.report import (
    DONE,
    FAILED,
    NOTHING_TO_DO,
    JobReport,
    MergeTableReport,
    Part,
    PlannedCommit,
    PlannedMergeReport,
    PlannedShard,
    ShardReport,
    TableReport,
    sum_up,
)
from memwal.run.engine import EngineChoice
from memwal.run.fanout import Fanout
from memwal.run.open import (
    OpenTable,
    Progress,
    RunOptions,
    check_lance_version,
    chosen_limits,
    error_of,
    failed_report,
    job_report,
    open_tables,
)
from memwal.run.policy import policy_to_store, policy_warnings, store_policy
from memwal.run.records import RunRecorder
from memwal.run.stores import Stores
from memwal.store.lineage import Lineage


@dataclass(frozen=True, kw_only=True)
class MergeOptions(RunOptions):
    """What `merge` takes besides."""

    shards: Sequence[ShardId] = ()
    request: MergeRequest = MergeRequest()
    limits: Settings = Settings()


def run_merge(options: MergeOptions, progress: Progress) -> JobReport:
    """Merge pending generations of each table, or with `dry_run` tell what that would do."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    recorder = RunRecorder("merge", options, progress)
    with open_tables(
        options,
        lambda stores: stores.views.table(pending_sizes=True),
        recorder.failed,
        warn=progress.warn,
    ) as tables:
        return _run(tables, options, progress, recorder, clock, started)


def _run(
    tables: Sequence[OpenTable],
    options: MergeOptions,
    progress: Progress,
    recorder: RunRecorder,
    clock: Clock,
    started: float,
) -> JobReport:
    for table in tables:
        _plan_merge(table, options)
    if options.dry_run:
        reports: list[TableReport] = [_foreseen(table, options) for table in tables]
        return job_report(
            "merge",
            reports,
            clock.monotonic_seconds() - started,
            opened=tables,
            dry_run=True,
        )
    choice = _merge_units(tables, options, progress)
    reports = [recorder.write(t, _merged(t), view=t.view, engine=choice) for t in tables]
    return job_report(
        "merge",
        reports,
        clock.monotonic_seconds() - started,
        opened=tables,
        engine=choice,
    )


def _plan_merge(table: OpenTable, options: MergeOptions) -> None:
    """Sort a table's shards into work, nothing to do, refused and broken."""
    view = table.view
    if view is None:
        return
    try:
        check_table(view)
        _check_asked_shards(view, options.shards)
        policy = policy_to_store(table)
        if policy is not None and not options.dry_run:
            store_policy(table, policy, options)
    except MemWalError as error:
        table.error = error
        return
    for broken in view.broken:
        if not options.shards or broken.shard_id in options.shards:
            code = getattr(broken.error, "exit_code", 1)
            table.parts.append(_shard_part(broken.shard_id, 0, FAILED, str(broken.error), code))
    for shard in view.shards:
        if options.shards and shard.shard_id not in options.shards:
            continue
        try:
            check_shard(shard, options.request)
            if wanted(shard, options.request):
                table.work.append(shard)
                continue
            table.parts.append(_shard_part(shard.shard_id, shard.merged_generation, NOTHING_TO_DO))
        except MemWalError as error:
            table.parts.append(
                _shard_part(
                    shard.shard_id,
                    shard.merged_generation,
                    error.outcome,
                    str(error),
                    error.exit_code,
                )
            )


def _check_asked_shards(view: TableView, asked: Sequence[ShardId]) -> None:
    known = {s.shard_id for s in view.shards} | {b.shard_id for b in view.broken}
    for shard in asked:
        if shard not in known:
            raise Usage(f"{view.uri}: the table has no shard {shard}")


def _shard_part(
    shard_id: str, merged: int, outcome: str, error: str | None = None, code: int = 0
) -> ShardReport:
    return ShardReport(
        shard_id=shard_id,
        from_generation=merged,
        to_generation=merged,
        outcome=outcome,
        error=error,
        exit_code=code,
    )


def _foreseen(table: OpenTable, options: MergeOptions) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return failed_report(table.resolved.name, error_of(table))
    parts: list[Part] = list(table.parts)
    limits = chosen_limits(MergeLimits, table, options.limits)
    if not options.request.reinitialised_allowed:
        stores.views.lineage(view, table.work)
    for shard in table.work:
        parts.append(_foreseen_shard(stores, view, shard, options, limits))
    outcome, code = sum_up(parts)
    return PlannedMergeReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error=_errors(parts),
        version_before=view.version,
        version_after=view.version,
        shards=tuple(_as_planned(part) for part in parts),
        warnings=(*view_warnings(view), *policy_warnings(table.resolved, view)),
    )


def _as_planned(part: Part) -> PlannedShard:
    if isinstance(part, PlannedShard):
        return part
    return PlannedShard(
        **part.model_dump(include={"outcome", "error", "shard_id"}),
        exit_code=part.exit_code,
        from_generation=getattr(part, "from_generation", 0),
        to_generation=getattr(part, "to_generation", 0),
        generations=0,
        in_memory_bytes=0,
        physical_rows=0,
    )


def _foreseen_shard(
    stores: Stores,
    view: TableView,
    shard: ShardView,
    options: MergeOptions,
    limits: MergeLimits,
) -> Part:
    try:
        check_shard_lineage(stores.views, view, shard, options.request)
        commits = foresee(shard, options.request, limits)
    except MemWalError as error:
        return _shard_part(
            shard.shard_id, shard.merged_generation, error.outcome, str(error), error.exit_code
        )
    generations = [g for commit in commits for g in commit.generations]
    rows = [g.physical_rows for g in generations]
    sizes = [g.in_memory_bytes for g in generations]
    planned, before = [], shard.merged_generation
    for commit in commits:
        planned.append(
            PlannedCommit(
                from_generation=before,
                to_generation=commit.mark,
                generations=len(commit.generations),
                in_memory_bytes=commit.in_memory_bytes,
            )
        )
        before = commit.mark
    return PlannedShard(
        shard_id=shard.shard_id,
        outcome=DONE,
        from_generation=shard.merged_generation,
        to_generation=before,
        generations=len(generations),
        in_memory_bytes=None if None in sizes else sum(s or 0 for s in sizes),
        physical_rows=None if None in rows else sum(r or 0 for r in rows),
        commits=tuple(planned),
    )


def _merge_units(
    tables: Sequence[OpenTable], options: MergeOptions, progress: Progress
) -> EngineChoice:
    owners: list[OpenTable] = []
    units: list[MergeUnit] = []
    size = 0
    for table in tables:
        try:
            if table.work:
                # Units read their own fresh views, so the plan may be older than the lease.
                table.take_lease("merge", options)
        except MemWalError as error:
            table.error = error
            continue
        for unit in _units_of(table, options):
            owners.append(table)
            units.append(unit)
        size += _in_memory_bytes(table, options)
    what = "shards" if all(len(u.shard_ids) == 1 for u in units) else "groups of shards"
    with Fanout(options, progress) as fanout:
        if not units:
            progress.say(f"engine: {fanout.choice.name} ({fanout.choice.reason})")
        results = fanout.run(
            run_merge_unit, units, what=what, in_memory_bytes=size, lost=lost_merge_unit
        )
        results = [
            _one_by_one(fanout, progress, unit)
            if result.died and len(unit.shard_ids) > 1
            else result
            for unit, result in zip(units, results, strict=True)
        ]
    for owner, result in zip(owners, results, strict=True):
        owner.parts.extend(map(_as_report, result.merges))
        owner.unit_requests.append(result.requests)
        if result.trace:
            progress.trace(result.trace)
    return fanout.choice


def _one_by_one(fanout: Fanout, progress: Progress, unit: MergeUnit) -> MergeUnitResult:
    """Merge the shards of a unit that killed its process, so that only the culprit fails.

    On Spark, whose workers die by themselves: a unit that dies in this process takes it along.
    """
    singles = unit.one_by_one()
    progress.start("shards, one by one", len(singles))
    return as_one(unit, fanout.spark().run(run_merge_unit, singles, progress.done, lost_merge_unit))


def _units_of(table: OpenTable, options: MergeOptions) -> list[MergeUnit]:
    view, stores = table.view, table.stores
    if view is None or stores is None:
        return []
    limits = chosen_limits(MergeLimits, table, options.limits)
    lineage = Lineage()
    if not options.request.reinitialised_allowed:
        lineage = stores.views.lineage(view, table.work)  # once a table, for all its units
    return [
        MergeUnit(
            uri=view.uri,
            storage_options=table.resolved.storage_options,
            shard_ids=shard_ids,
            request=options.request,
            limits=limits,
            lease_token=table.lease_token,
            lineage=lineage.part(shard_ids),
        )
        for shard_ids in merge_shared.units(view, table.work, options.request, limits)
    ]


def _in_memory_bytes(table: OpenTable, options: MergeOptions) -> int:
    """The size of a table's work. A generation of unknown size counts as a full commit."""
    limits = chosen_limits(MergeLimits, table, options.limits)
    return sum(
        limits.bytes_per_commit_max if g.in_memory_bytes is None else g.in_memory_bytes
        for shard in table.work
        for g in wanted(shard, options.request)
    )


def _as_report(merge: ShardMerge) -> ShardReport:
    return ShardReport(
        shard_id=merge.shard_id,
        outcome=merge.outcome,
        error=merge.error,
        exit_code=merge.exit_code,
        from_generation=merge.from_generation,
        to_generation=merge.to_generation,
        generations=merge.generations,
        commits=merge.commits,
        commits_shared=merge.commits_shared,
        rows_inserted=merge.rows_inserted,
        rows_updated=merge.rows_updated,
        rows_deleted=merge.rows_deleted,
        bytes_read=merge.bytes_read,
        seconds=round(merge.seconds, 3),
        conflicts=merge.conflicts,
        commits_found_landed=merge.resolved,
        joins=merge.joins,
        warning=merge.warning,
    )


def _merged(table: OpenTable) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return failed_report(table.resolved.name, error_of(table))
    # A lease without work was taken to store the policy, which is a commit as well.
    outcome, code = sum_up(table.parts, DONE if table.lease and not table.work else NOTHING_TO_DO)
    try:
        after = stores.tables.base().version if table.lease or table.work else view.version
    except MemWalError:
        after = None
    shards = sorted(
        (p for p in table.parts if isinstance(p, ShardReport)), key=lambda p: p.shard_id
    )
    return MergeTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error=_errors(table.parts),
        version_before=view.version,
        version_after=after,
        shards=tuple(shards),
        warnings=(
            *view_warnings(view),
            *dict.fromkeys(part.warning for part in shards if part.warning),
        ),
    )


def _errors(parts: Sequence[Part]) -> str | None:
    """What went wrong with any shard, in one line."""
    return "; ".join(f"{getattr(p, 'shard_id', '')}: {p.error}" for p in parts if p.error) or None
