"""`memwal garbage` over tables: plan, and with `--execute` expire, drop and delete.

What is done follows from a plan that was made under the lease, from evidence that was read for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from jobs._garbage_units import GarbageUnit, lost_garbage_unit, run_garbage_unit
from jobs._launch import (
    TABLE_READERS_MAX,
    OpenTable,
    Progress,
    RunOptions,
    check_lance_version,
    error_of,
    failed_report,
    job_report,
    open_tables,
    run_units,
    side_by_side,
)
from jobs._records import RunRecorder
from jobs._wiring import Stores
from memwal import layout
from memwal.apply.garbage import (
    Deleted,
    Dropped,
    GenerationDropper,
    as_deletions,
    in_units,
    no_steps,
)
from memwal.apply.status import view_warnings
from memwal.clock import SystemClock
from memwal.errors import MemWalError, NotATable
from memwal.model import TableView
from memwal.plan.engine import LOCAL_BYTES_PER_SECOND, EngineChoice
from memwal.plan.garbage import check_limits, expirable, never_merged, plan_garbage
from memwal.plan.garbage_model import (
    Action,
    Evidence,
    GarbageLimits,
    GarbagePlan,
    Item,
    Kind,
)
from memwal.plan.garbage_orphans import plan_adoption
from memwal.ports import Expired, Steps
from memwal.report import (
    DONE,
    EXIT_PARTIAL,
    FAILED,
    PARTIAL,
    REFUSED,
    FailedDelete,
    GarbageItemReport,
    GarbageTableReport,
    JobReport,
    Part,
    TableReport,
    sum_up,
)

# One prefix of an S3 bucket takes about 3,500 deletes a second; local disks some more.
_DELETES_PER_SECOND = 2000
# S3 dates by whole seconds, and being told takes time.
_CLOCKS_AGREE_NANOS = 5 * 10**9
# Folders of generations, whichever word their candidate goes by.
_COVERING = (Kind.GENERATION, Kind.ORPHAN)


@dataclass(frozen=True, kw_only=True)
class GarbageOptions(RunOptions):
    """What `garbage` takes besides. `retention_seconds` None expires no version."""

    execute: bool = False
    retention_seconds: float | None = None
    short_allowed: bool = False
    limits: GarbageLimits = GarbageLimits()

    @property
    def acts(self) -> bool:
        """Whether anything may be written."""
        return self.execute and not self.dry_run


@dataclass(kw_only=True, slots=True)
class _Run:
    """One table on its way. `view` is None for a table whose MemWAL index is gone."""

    table: OpenTable
    view: TableView | None = None
    version: int = 0
    evidence: Evidence | None = None
    plan: GarbagePlan | None = None
    expirable: int = 0
    never_merged: tuple[str, ...] = ()
    expired: Expired | None = None
    acted: bool = False
    fast_nanos: int = 0
    """How far this host's clock is ahead of the store's, once that was looked at."""
    dropped: tuple[Dropped, ...] = ()
    deleted: list[Deleted] = field(default_factory=list)

    @property
    def stores(self) -> Stores:
        if self.table.stores is None:
            raise error_of(self.table)
        return self.table.stores


def run_garbage(options: GarbageOptions, progress: Progress, steps: Steps = no_steps) -> JobReport:
    """List what may go; with `execute`, drop and delete it."""
    check_lance_version(options.untested_lance_allowed)
    check_limits(
        options.limits,
        retention_seconds=options.retention_seconds,
        short_allowed=options.short_allowed,
    )
    clock = SystemClock()
    started = clock.monotonic_seconds()
    recorder = RunRecorder("garbage", options, progress, acts=options.acts)
    with open_tables(options, lambda stores: stores.views.table(), recorder.failed) as tables:
        runs = [_Run(table=table) for table in tables]
        side_by_side(lambda run: _foresee(run, options), runs, TABLE_READERS_MAX)
        for run in runs:
            _act(run, options, progress, steps)
        choice = _delete(_planned(runs), options, progress, steps)
        choice = _delete(_uncovered(runs, options), options, progress, steps) or choice
        reports = [
            recorder.write(run.table, _report(run, options), view=run.view, engine=choice)
            for run in runs
        ]
        return job_report(
            "garbage",
            reports,
            clock.monotonic_seconds() - started,
            opened=tables,
            engine=choice,
            dry_run=not options.acts,
        )


def _foresee(run: _Run, options: GarbageOptions) -> None:
    """Plan without the lease: to list, or to tell whether there is anything to do."""
    try:
        _plan(run, options, verified=False)
    except MemWalError as error:
        run.table.error = error


def _act(run: _Run, options: GarbageOptions, progress: Progress, steps: Steps) -> None:
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
        run.stores.garbage_evidence.remember()
        run.table.error = None
    except MemWalError as error:
        run.table.error = error


def _look_at_clocks(run: _Run) -> None:
    """Grace and retention are counted by the store's clock where this host's is ahead of it.

    By a fast clock, things would be older than they are. A slow one only keeps them for longer.
    """
    stores = run.stores
    store_now = stores.garbage_evidence.store_now_nanos(stores.clock.new_id())
    ahead = stores.clock.now_nanos() - store_now
    run.fast_nanos = ahead if ahead > _CLOCKS_AGREE_NANOS else 0


def _look_again(run: _Run, options: GarbageOptions, *, verified: bool) -> None:
    """Plan from a fresh view: what was planned before the lease may have changed meanwhile."""
    run.table.view = None
    _plan(run, options, verified=verified)


def _plan(run: _Run, options: GarbageOptions, *, verified: bool) -> None:
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
        evidence = stores.garbage_evidence.read(
            {s.shard_id: s.manifest for s in view.shards},
            limits=limits,
            now_nanos=now,
            verified=verified,
        )
        run.view, run.version, run.evidence = view, view.version, evidence
        run.plan = plan_garbage(view, evidence, limits, now)
    run.table.error = None
    run.expirable = 0
    if options.retention_seconds is not None and run.evidence is not None:
        old = expirable(run.evidence, run.version, options.retention_seconds, now)
        run.never_merged = () if run.view is None else never_merged(run.view)
        if not run.never_merged:
            run.expirable = len(old and old - stores.garbage_evidence.referenced_versions())


def _plan_without_index(run: _Run, limits: GarbageLimits, now: int, verified: bool) -> None:
    """Plan for a table whose MemWAL index is gone. Raises NotATable when it left no shards."""
    stores = run.stores
    version = stores.views.table_version()
    if stores.table_manifests.read(version).mem_wal is not None:
        raise MemWalError(f"{stores.uri}: the MemWAL index came back meanwhile; run again")
    if not stores.shard_manifests.shard_folders()[0]:
        stores.views.mem_wal(version)  # raises NotATable, and says what to do
    evidence = stores.garbage_evidence.read(
        {}, limits=limits, now_nanos=now, verified=verified, whole_shards=True
    )
    run.table.known = True
    run.view, run.version, run.evidence = None, version, evidence
    run.plan = plan_adoption(version, evidence, limits, now)


def _has_work(run: _Run) -> bool:
    return run.plan is not None and bool(run.plan.drops or run.plan.deletes or run.expirable)


def _expire(run: _Run, options: GarbageOptions, steps: Steps) -> None:
    if options.retention_seconds is None or not run.expirable:
        return
    run.table.before_commit()
    steps("before_expire")
    # Lance counts by this host's clock.
    fast_seconds = run.fast_nanos / 1e9
    run.expired = run.stores.tables.expire_versions(options.retention_seconds + fast_seconds)


def _drop(run: _Run, options: GarbageOptions, progress: Progress, steps: Steps) -> None:
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


def _planned(runs: Sequence[_Run]) -> list[tuple[_Run, GarbagePlan]]:
    """The plans that are to be carried out."""
    return [
        (run, run.plan)
        for run in runs
        if run.acted and run.plan is not None and run.table.error is None
    ]


def _uncovered(runs: Sequence[_Run], options: GarbageOptions) -> Iterable[tuple[_Run, GarbagePlan]]:
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
    plans: Iterable[tuple[_Run, GarbagePlan]],
    options: GarbageOptions,
    progress: Progress,
    steps: Steps,
) -> EngineChoice | None:
    """Delete what the plans say, in units that fan out when there are many objects."""
    units: list[GarbageUnit] = []
    owners: list[_Run] = []
    for run, plan in plans:
        for deletions in in_units(as_deletions(plan), options.limits.unit_objects_max):
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
    if not units:
        return None
    objects = sum(len(stage) for u in units for d in u.deletions for stage in d.stages)
    work = run_garbage_unit if steps is no_steps else partial(run_garbage_unit, steps=steps)
    choice, results = run_units(
        options,
        progress,
        work,
        units,
        what="units to delete",
        in_memory_bytes=objects * LOCAL_BYTES_PER_SECOND // _DELETES_PER_SECOND,
        lost=lost_garbage_unit,
    )
    for run, result in zip(owners, results, strict=True):
        run.deleted += result.deleted
        run.table.unit_requests.append(result.requests)
        if result.trace:
            progress.trace(result.trace)
    return choice


# ---- the report


def _report(run: _Run, options: GarbageOptions) -> TableReport:
    plan, table = run.plan, run.table
    if table.error is not None or plan is None or run.evidence is None:
        return failed_report(table.resolved.name, error_of(table))
    dropped = {path for d in run.dropped if d.error is None for path in d.paths}
    deleted = {d.path: d for d in run.deleted}
    parts = [*_wrong(run, plan, run.evidence), *_done(run, plan, options)]
    outcome, code = sum_up(parts)
    errors = list(dict.fromkeys(p.error for p in parts if p.error))
    return GarbageTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=run.version,
        version_after=run.version,
        items=tuple(_item(i, dropped, deleted.get(i.path)) for i in plan.items),
        dropped=len(dropped),
        deleted=sum(d.error is None for d in run.deleted),
        bytes_freed=sum(d.size_bytes for d in run.deleted),
        objects_deleted=sum(d.objects for d in run.deleted),
        failed=tuple(
            FailedDelete(path=d.path, error=d.error) for d in run.deleted if d.error is not None
        ),
        versions_expired=0 if run.expired is None else run.expired.versions,
        version_bytes_freed=0 if run.expired is None else run.expired.size_bytes,
        warnings=_warnings(run, plan, options),
    )


def _item(item: Item, dropped: set[str], deleted: Deleted | None) -> GarbageItemReport:
    done = item.path in dropped if item.action is Action.DROP else False
    if item.action is Action.DELETE and deleted is not None:
        done = deleted.error is None
    return GarbageItemReport(
        kind=item.kind.value,
        shard_id=item.shard_id,
        path=item.path,
        bytes=item.size_bytes,
        action=item.action.value,
        reason=item.reason,
        done=done,
    )


def _wrong(run: _Run, plan: GarbagePlan, evidence: Evidence) -> Iterable[Part]:
    """What kept evidence from being read, or a part of the table from being served."""
    for broken in plan.broken:
        yield _failed(f"shard {broken.shard_id}: {broken.error}", broken.error)
    for problem in plan.problems:
        yield _failed(str(problem), problem)
    for version in evidence.versions:
        if version.problem is not None:
            yield Part(outcome=FAILED, exit_code=8, error=version.problem)
    if plan.refusal is not None:
        yield Part(outcome=REFUSED, exit_code=5, error=f"{run.stores.uri}: {plan.refusal}")


def _failed(text: str, error: Exception) -> Part:
    return Part(outcome=FAILED, exit_code=getattr(error, "exit_code", 1), error=text)


def _done(run: _Run, plan: GarbagePlan, options: GarbageOptions) -> Iterable[Part]:
    if not options.acts:
        if plan.drops or plan.deletes:
            yield Part(outcome=DONE)
        return
    for dropped in run.dropped:
        if dropped.error is None:
            yield Part(outcome=DONE)
        else:
            yield Part(
                outcome=dropped.error.outcome,
                exit_code=dropped.error.exit_code,
                error=str(dropped.error),
            )
    if any(d.objects for d in run.deleted) or (run.expired and run.expired.versions):
        yield Part(outcome=DONE)
    failed = [d for d in run.deleted if d.error is not None]
    if failed:
        yield Part(
            outcome=PARTIAL,
            exit_code=EXIT_PARTIAL,
            error=f"{len(failed)} deletes failed and are left to the next run: {failed[0].error}",
        )


def _warnings(run: _Run, plan: GarbagePlan, options: GarbageOptions) -> tuple[str, ...]:
    found = list(plan.warnings)
    if run.view is not None:
        found += [w for w in view_warnings(run.view) if layout.MEM_WAL in w]
    if run.never_merged and options.retention_seconds is not None and run.expired is None:
        found.append(
            f"no version is expired: shards {', '.join(run.never_merged)} can't be read, or have "
            "generations and were never merged. Only an old version proves that those belong to "
            "this MemWAL index; merge them first, or mend what can't be read"
        )
    if run.expirable and not options.acts:
        found.append(
            f"{run.expirable} versions are older than the retention and would be expired first; "
            "this list takes every version as retained"
        )
    return tuple(found)
