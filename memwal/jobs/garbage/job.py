"""`memwal garbage` over tables: plan, and with `--execute` expire, drop and delete.

What is done follows from a plan that was made under the lease, from evidence that was read for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from memwal.errors import MemWalError, NotATable
from memwal.invariants import InvariantBroken
from memwal.jobs.garbage.apply import GenerationDropper, as_deletions, in_units, no_steps
from memwal.jobs.garbage.kinds.orphan import plan_adoption
from memwal.jobs.garbage.model import Evidence, GarbageLimits, GarbagePlan, Kind, wal_needed
from memwal.jobs.garbage.plan import (
    check_limits,
    expirable,
    never_merged,
    plan_garbage,
    without_versions,
)
from memwal.jobs.garbage.report import garbage_report
from memwal.jobs.garbage.run import GarbageOptions, GarbageRun
from memwal.jobs.garbage.unit import GarbageUnit, lost_garbage_unit, run_garbage_unit
from memwal.ports import Steps
from memwal.report import JobReport, TableReport
from memwal.run.engines.choice import LOCAL_BYTES_PER_SECOND
from memwal.run.fanout import Fanout
from memwal.run.progress import Progress
from memwal.run.runner import JobRunner
from memwal.run.tables import TABLE_READERS_MAX, OpenTable
from memwal.store.shard_listing import list_shards
from memwal.threads import side_by_side

# One prefix of an S3 bucket takes about 3,500 deletes a second; local disks some more.
_DELETES_PER_SECOND = 2000
# S3 dates by whole seconds, and being told takes time.
_CLOCKS_AGREE_NANOS = 5 * 10**9
# Folders of generations, whichever word their candidate goes by.
_COVERING = (Kind.GENERATION, Kind.ORPHAN)


def run_garbage(options: GarbageOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """List what may go; with `execute`, drop and delete it."""
    check_limits(
        options.limits,
        retention_seconds=options.retention_seconds,
        short_allowed=options.short_allowed,
    )

    def collect(tables: Sequence[OpenTable], fanout: Fanout) -> Iterator[TableReport]:
        runs = [GarbageRun(table=table) for table in tables]
        side_by_side(lambda run: _foresee(run, options), runs, TABLE_READERS_MAX)
        for run in runs:
            _act(run, options, progress, steps)
            _look_for_old_claims(run, options)
        _delete(fanout, _planned(runs), options, steps)
        _delete(fanout, _uncovered(runs, options), options, steps)
        for run in runs:
            run.table.view = run.view
            yield garbage_report(run, options)

    runner = JobRunner(name="garbage", engine=lambda fanout: fanout.used)
    return runner.run_together(options, collect, progress)


def _foresee(run: GarbageRun, options: GarbageOptions) -> None:
    """Plan without the lease: to list, or to tell whether there is anything to do."""
    try:
        _plan(run, options, verified=False)
    except MemWalError as error:
        run.table.error = error


def _act(run: GarbageRun, options: GarbageOptions, progress: Progress, steps: Steps) -> None:
    """Everything but the deletes: when there is something to do, plan again and drop."""
    if not options.acts or run.table.error is not None:
        return
    try:
        if _has_work(run):
            run.table.take_lease("garbage", options)
            _look_at_clocks(run)
            if options.retention_seconds is not None:
                _look_again(run, options, verified=False)
                _expire(run, options, steps)
            _look_again(run, options, verified=True)
            run.acted = True
            _drop(run, options, progress, steps)
        run.source.remember(run.table.prove_store)
        run.table.error = None
    except InvariantBroken as broken:
        run.broken = broken
    except MemWalError as error:
        run.table.error = error


def _look_for_old_claims(run: GarbageRun, options: GarbageOptions) -> None:
    """Where something is collected, or would be: an idle pass asks for nothing."""
    if options.retention_seconds is None or run.view is None or run.evidence is None:
        return
    if run.table.error is None and (run.acted or (not options.acts and _has_work(run))):
        now = run.stores.clock.now_nanos() - run.fast_nanos
        run.old_claim = run.source.oldest_claim(
            {s.shard_id: s.manifest for s in run.view.shards},
            run.evidence,
            now - int(options.retention_seconds * 1e9),
        )


def _look_at_clocks(run: GarbageRun) -> None:
    """Grace and retention are counted by the store's clock where this host's is ahead of it.

    By a fast clock, things would be older than they are. A slow one only keeps them for longer.
    """
    stores = run.stores
    store_now = run.source.store_now_nanos(stores.clock.new_id())
    ahead = stores.clock.now_nanos() - store_now
    run.fast_nanos = ahead if ahead > _CLOCKS_AGREE_NANOS else 0


def _look_again(run: GarbageRun, options: GarbageOptions, *, verified: bool) -> None:
    """Plan from a fresh view: what was planned before the lease may have changed meanwhile."""
    run.table.view = None
    _plan(run, options, verified=verified)


def _plan(run: GarbageRun, options: GarbageOptions, *, verified: bool) -> None:
    """Read and plan. The first time, the view that the table was opened with will do."""
    stores, limits = run.stores, options.limits
    now = stores.clock.now_nanos() - run.fast_nanos
    try:
        if run.table.error is not None:
            raise run.table.error
        view = run.table.view or stores.views.table(probed=verified)
    except NotATable:
        _plan_without_index(run, limits, now, verified)
    else:
        evidence = run.source.read(
            {s.shard_id: s.manifest for s in view.shards},
            limits=limits,
            now_nanos=now,
            verified=verified,
            wal_needed=lambda e: wal_needed(plan_garbage(view, e, limits, now), e),
        )
        run.view, run.version, run.evidence = view, view.version, evidence
        run.plan = plan_garbage(view, evidence, limits, now)
    run.table.error = None
    run.expirable = 0
    if options.retention_seconds is not None and run.evidence is not None:
        _plan_expiry(run, run.evidence, options, now)


def _plan_expiry(run: GarbageRun, evidence: Evidence, options: GarbageOptions, now: int) -> None:
    """What is expired first. A run that only lists goes on as if that were done."""
    run.never_merged = () if run.view is None else never_merged(run.view)
    if run.never_merged or options.retention_seconds is None:
        return
    old = expirable(evidence, run.version, options.retention_seconds, now)
    old = old and old - run.source.referenced_versions()
    run.expirable = len(old)
    if not old or options.acts:
        return
    run.stores.tables.check_expirable()
    left = without_versions(evidence, old)
    if run.view is None:
        run.plan = plan_adoption(run.version, left, options.limits, now)
    else:
        run.plan = plan_garbage(run.view, left, options.limits, now)


def _plan_without_index(run: GarbageRun, limits: GarbageLimits, now: int, verified: bool) -> None:
    """Plan for a table whose MemWAL index is gone. Raises NotATable when it left no shards."""
    stores = run.stores
    version = stores.views.table_version()
    if stores.table_manifests.read(version).mem_wal is not None:
        raise MemWalError(f"{stores.uri}: the MemWAL index came back meanwhile; run again")
    if not list_shards(stores.objects, folders_only=True).shards:
        stores.views.mem_wal(version)  # raises NotATable, and says what to do
    evidence = run.source.read(
        {}, limits=limits, now_nanos=now, verified=verified, whole_shards=True
    )
    run.table.known = True
    run.view, run.version, run.evidence = None, version, evidence
    run.plan = plan_adoption(version, evidence, limits, now)


def _has_work(run: GarbageRun) -> bool:
    return run.plan is not None and bool(run.plan.drops or run.plan.deletes or run.expirable)


def _expire(run: GarbageRun, options: GarbageOptions, steps: Steps) -> None:
    if options.retention_seconds is None or not run.expirable:
        return
    run.table.before_commit()
    steps("before_expire")
    # Lance counts by this host's clock.
    fast_seconds = run.fast_nanos / 1e9
    run.expired = run.stores.tables.expire_versions(options.retention_seconds + fast_seconds)


def _drop(run: GarbageRun, options: GarbageOptions, progress: Progress, steps: Steps) -> None:
    plan = run.plan
    if plan is None or not plan.drops:
        return
    dropper = GenerationDropper(
        manifests=run.stores.shard_manifests,
        clock=run.stores.clock,
        limits=options.limits,
        steps=steps,
        before_commit=run.table.before_commit,
    )
    progress.start("shards to drop from", len(plan.drops))
    run.dropped = dropper.run(plan, progress.done)


def _planned(runs: Sequence[GarbageRun]) -> list[tuple[GarbageRun, GarbagePlan]]:
    """The plans that are to be carried out."""
    return [
        (run, run.plan)
        for run in runs
        if run.acted and run.plan is not None and run.table.error is None and run.broken is None
    ]


def _uncovered(
    runs: Sequence[GarbageRun], options: GarbageOptions
) -> Iterable[tuple[GarbageRun, GarbagePlan]]:
    """Plans for the WAL entries alone that this run's own deletes left without a generation.

    They follow from what is read anew: a generation that is only half deleted holds its entries
    (invariant 7). What can't be read now is left to the next run.
    """
    for run, plan in _planned(runs) if options.limits.wal else ():
        tried = {d.path for d in run.deleted}
        if any(i.path in tried and i.kind in _COVERING for i in plan.items):
            with suppress(MemWalError):
                _look_again(run, options, verified=True)
            found = plan.items if run.plan is None else run.plan.items
            entries = [i for i in found if i.kind is Kind.WAL_ENTRY and i.path not in tried]
            rest = [i for i in plan.items if i.kind is not Kind.WAL_ENTRY or i.path in tried]
            run.plan = replace(plan, items=(*rest, *entries))
            yield run, replace(plan, items=tuple(entries))


def _delete(
    fanout: Fanout,
    plans: Iterable[tuple[GarbageRun, GarbagePlan]],
    options: GarbageOptions,
    steps: Steps,
) -> None:
    """Delete what the plans say, in units that fan out."""
    units: list[GarbageUnit] = []
    owners: list[GarbageRun] = []
    for run, plan in plans:
        try:
            planned = as_deletions(plan)
        except InvariantBroken as broken:
            run.broken = broken
            continue
        for deletions in in_units(planned, options.limits.unit_objects_max):
            owners.append(run)
            units.append(
                GarbageUnit(
                    uri=run.stores.uri,
                    storage_options=run.table.resolved.storage_options,
                    deletions=deletions,
                    limits=options.limits,
                    lease_token=run.table.lease_token,
                )
            )
    objects = sum(len(stage) for u in units for d in u.deletions for stage in d.stages)
    work = run_garbage_unit if steps is no_steps else partial(run_garbage_unit, steps=steps)
    results = fanout.run_for(
        [run.table for run in owners],
        work,
        units,
        what="units to delete",
        in_memory_bytes=objects * LOCAL_BYTES_PER_SECOND // _DELETES_PER_SECOND,
        lost=lost_garbage_unit,
    )
    for run, result in zip(owners, results, strict=True):
        run.deleted += result.deleted
