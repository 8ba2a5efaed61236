"""Runs a job over tables: view and plan here, units on an engine, one report."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from jobs._local import LocalEngine
from jobs._units import MergeUnit, MergeUnitResult, run_merge_unit
from jobs._wiring import Stores, open_stores
from memwal.apply.merge import ShardMerge, check_shard_lineage
from memwal.apply.status import table_status, view_warnings
from memwal.clock import SystemClock
from memwal.config import ResolvedTable, Settings
from memwal.errors import MemWalError, Unsupported, Usage
from memwal.model import ShardId, ShardView, TableView
from memwal.plan.engine import EngineChoice, choose_engine
from memwal.plan.merge import MergeLimits, MergeRequest, check_shard, foresee, wanted
from memwal.ports import Engine
from memwal.report import (
    DONE,
    FAILED,
    NOTHING_TO_DO,
    EngineReport,
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
from memwal.store.table import lance_version

# The range of pylance majors that is tested (design section 6). This is its one place.
TESTED_LANCE_MAJORS = (14,)


class Progress(Protocol):
    """Told how far a long step is."""

    def start(self, what: str, total: int) -> None:
        """A step with `total` units begins."""
        ...

    def done(self, count: int) -> None:
        """So many of them are done."""
        ...

    def say(self, text: str) -> None:
        """A line for people."""
        ...

    def trace(self, text: str) -> None:
        """A traceback, shown with `--debug` only."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What every job takes."""

    tables: Sequence[ResolvedTable]
    engine: str | None = None
    master: str | None = None
    dry_run: bool = False
    untested_lance_allowed: bool = False


@dataclass(frozen=True, kw_only=True)
class MergeOptions(RunOptions):
    """What `merge` takes besides."""

    shards: Sequence[ShardId] = ()
    request: MergeRequest = MergeRequest()
    limits: Settings = Settings()


@dataclass(kw_only=True)
class _Table:
    """One table on its way through a job."""

    resolved: ResolvedTable
    stores: Stores | None = None
    view: TableView | None = None
    error: MemWalError | None = None
    parts: list[Part] = field(default_factory=list)
    work: list[ShardView] = field(default_factory=list)


def check_lance_version(allowed: bool) -> None:
    """Raise Unsupported when the installed pylance was never tested with this build."""
    version = lance_version()
    if int(version.split(".")[0]) not in TESTED_LANCE_MAJORS and not allowed:
        tested = ", ".join(f"{major}.x" for major in TESTED_LANCE_MAJORS)
        raise Unsupported(
            f"pylance {version} is installed; tested are {tested}. Install one of those, or pass "
            "--allow-untested-lance"
        )


def _open(tables: Sequence[ResolvedTable], read: Callable[[Stores], TableView]) -> list[_Table]:
    found = []
    for resolved in tables:
        table = _Table(resolved=resolved)
        try:
            table.stores = open_stores(resolved.uri, resolved.storage_options)
            table.view = read(table.stores)
        except MemWalError as error:
            table.error = error
        found.append(table)
    return found


def _failed(name: str, error: MemWalError) -> TableReport:
    return TableReport(
        table=name, outcome=error.outcome, error=str(error), exit_code=error.exit_code
    )


def _job(
    name: str,
    tables: Iterable[TableReport],
    seconds: float,
    *,
    stores: Iterable[Stores | None] = (),
    more_requests: Iterable[dict[str, int]] = (),
    engine: EngineChoice | None = None,
    dry_run: bool = False,
    otherwise: str = NOTHING_TO_DO,
) -> JobReport:
    reports = tuple(tables)
    outcome, code = sum_up(reports, otherwise)
    requests: dict[str, int] = {}
    counted = [s.objects.counts.as_dict() for s in stores if s is not None]
    for counts in (*counted, *more_requests):
        for key, value in counts.items():
            requests[key] = requests.get(key, 0) + value
    return JobReport(
        job=name,
        outcome=outcome,
        exit_code=code,
        seconds=round(seconds, 3),
        dry_run=dry_run,
        engine=None if engine is None else EngineReport(name=engine.name, reason=engine.reason),
        tables=reports,
        requests=requests,
    )


# ---- status


def run_status(options: RunOptions) -> JobReport:
    """The status of each table."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    tables = _open(options.tables, lambda stores: stores.views.table(ages=True))
    reports = [_status(table) for table in tables]
    return _job(
        "status",
        reports,
        clock.monotonic_seconds() - started,
        stores=[t.stores for t in tables],
        otherwise=DONE,
    )


def _status(table: _Table) -> TableReport:
    if table.error is not None or table.view is None or table.stores is None:
        return _failed(table.resolved.name, _error_of(table))
    stores, view = table.stores, table.view
    try:
        return table_status(
            table.resolved.name,
            view,
            wal_entries=lambda shard: len(stores.wal.listed(shard)),
            unindexed_rows=lambda name: stores.tables.unindexed_rows(view.version, name),
        )
    except MemWalError as error:
        return _failed(table.resolved.name, error)


def _error_of(table: _Table) -> MemWalError:
    return table.error or MemWalError("the table was not read")


# ---- merge


def run_merge(options: MergeOptions, progress: Progress) -> JobReport:
    """Merge pending generations of each table, or with `dry_run` tell what that would do."""
    check_lance_version(options.untested_lance_allowed)
    clock = SystemClock()
    started = clock.monotonic_seconds()
    tables = _open(options.tables, lambda stores: stores.views.table())
    for table in tables:
        _plan_merge(table, options)
    if options.dry_run:
        reports: list[TableReport] = [_foreseen(table, options) for table in tables]
        return _job(
            "merge",
            reports,
            clock.monotonic_seconds() - started,
            stores=[t.stores for t in tables],
            dry_run=True,
        )
    choice, results = _merge_units(tables, options, progress)
    reports = [_merged(table) for table in tables]
    return _job(
        "merge",
        reports,
        clock.monotonic_seconds() - started,
        stores=[t.stores for t in tables],
        more_requests=[dict(r.requests) for r in results],
        engine=choice,
    )


def _plan_merge(table: _Table, options: MergeOptions) -> None:
    """Sort a table's shards into work, nothing to do, refused and broken."""
    view = table.view
    if view is None:
        return
    try:
        if not view.primary_key:
            raise Unsupported(
                f"{view.uri}: the table has no primary key; merging it would need an atomic way "
                "to add rows exactly once, which there is not yet"
            )
        _check_asked_shards(view, options.shards)
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
        if not wanted(shard, options.request):
            table.parts.append(_shard_part(shard.shard_id, shard.merged_generation, NOTHING_TO_DO))
            continue
        try:
            check_shard(shard, options.request)
            table.work.append(shard)
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


def _limits(table: _Table, options: MergeOptions) -> MergeLimits:
    """Flags over the configuration over the defaults."""
    names = MergeLimits.__slots__
    chosen = {
        name: value
        for settings in (table.resolved.settings, options.limits)
        for name in names
        if (value := getattr(settings, name, None)) is not None
    }
    return MergeLimits(**chosen)


def _foreseen(table: _Table, options: MergeOptions) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return _failed(table.resolved.name, _error_of(table))
    parts: list[Part] = list(table.parts)
    for shard in table.work:
        parts.append(_foreseen_shard(stores, view, shard, options, _limits(table, options)))
    outcome, code = sum_up(parts)
    return PlannedMergeReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        version_before=view.version,
        version_after=view.version,
        shards=tuple(_as_planned(part) for part in parts),
        warnings=view_warnings(view),
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
    tables: Sequence[_Table], options: MergeOptions, progress: Progress
) -> tuple[EngineChoice, Sequence[MergeUnitResult]]:
    owners: list[_Table] = []
    units: list[MergeUnit] = []
    size = 0
    for table in tables:
        for shard in table.work:
            limits = _limits(table, options)
            owners.append(table)
            units.append(
                MergeUnit(
                    uri=table.view.uri if table.view else table.resolved.uri,
                    storage_options=table.resolved.storage_options,
                    shard_id=shard.shard_id,
                    request=options.request,
                    limits=limits,
                )
            )
            size += sum(
                limits.bytes_per_commit_max if g.in_memory_bytes is None else g.in_memory_bytes
                for g in wanted(shard, options.request)
            )
    choice = choose_engine(
        _asked_engine(options),
        units=len(units),
        in_memory_bytes=size,
        spark_installed=importlib.util.find_spec("pyspark") is not None,
    )
    progress.say(f"engine: {choice.name} ({choice.reason})")
    if not units:
        return choice, ()
    engine, stop = start_engine(choice, options)
    try:
        progress.start("shards", len(units))
        results = engine.run(run_merge_unit, units, progress.done)
    finally:
        stop()
    for owner, result in zip(owners, results, strict=True):
        owner.parts.append(_as_report(result.merge))
        if result.trace:
            progress.trace(result.trace)
    return choice, results


def _asked_engine(options: RunOptions) -> str:
    """Under spark-submit always Spark, unless the command line says otherwise."""
    if options.engine:
        return options.engine
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return "spark"
    named = {t.settings.engine for t in options.tables if t.settings.engine}
    return named.pop() if len(named) == 1 else "auto"


def start_engine(
    choice: EngineChoice, options: RunOptions
) -> tuple[Engine[MergeUnit, MergeUnitResult], Callable[[], None]]:
    """The chosen engine, started, and what ends it. Raises Unsupported, Refused."""
    if choice.name == "local":
        return LocalEngine(), lambda: None
    if importlib.util.find_spec("pyspark") is None:
        raise Unsupported("pyspark is not installed: pip install 'memwal[spark]'")
    # Imported when it is needed only: it brings a JVM, and most runs have nothing to do.
    from jobs._spark import SparkEngine

    masters = {t.settings.master for t in options.tables if t.settings.master}
    master = options.master or (masters.pop() if len(masters) == 1 else None)
    engine = SparkEngine(master=master)
    return engine, engine.stop


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
        rows_inserted=merge.rows_inserted,
        rows_updated=merge.rows_updated,
        rows_deleted=merge.rows_deleted,
        bytes_read=merge.bytes_read,
        seconds=round(merge.seconds, 3),
        conflicts=merge.conflicts,
        commits_found_landed=merge.resolved,
        joins=merge.joins,
    )


def _merged(table: _Table) -> TableReport:
    view, stores = table.view, table.stores
    if table.error is not None or view is None or stores is None:
        return _failed(table.resolved.name, _error_of(table))
    outcome, code = sum_up(table.parts)
    errors = [f"{getattr(p, 'shard_id', '')}: {p.error}" for p in table.parts if p.error]
    try:
        after = stores.tables.base().version if table.work else view.version
    except MemWalError:
        after = None
    shards = sorted(
        (p for p in table.parts if isinstance(p, ShardReport)), key=lambda p: p.shard_id
    )
    return MergeTableReport(
        table=table.resolved.name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(errors) or None,
        version_before=view.version,
        version_after=after,
        shards=tuple(shards),
        warnings=view_warnings(view),
    )
