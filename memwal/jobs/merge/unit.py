"""Merge units, as sent to an executor: one shard of a table, or several that share commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import MemWalError
from memwal.jobs.merge.apply.shard import RefreshWatch, ShardMerger
from memwal.jobs.merge.apply.shared_commits import SharedMerger
from memwal.jobs.merge.plan import JoinCosts, MergeLimits, choose_generations, group_shards, hold
from memwal.jobs.merge.report import ShardReport
from memwal.jobs.merge.request import MergeRequest
from memwal.jobs.merge.store.base_table import LanceMergeTable
from memwal.jobs.merge.store.commits import HostTurns
from memwal.model import ShardId, ShardView
from memwal.report import FAILED
from memwal.rows.memory import needed_bytes
from memwal.run.process import process_memory
from memwal.run.stores import Stores
from memwal.run.tables import OpenTable
from memwal.run.units import TableUnit, UnitResult, run_unit
from memwal.run.workers import cancel
from memwal.store.tables.generations import Generations, Lineage

MergeResult = UnitResult[tuple[ShardReport, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeUnit(TableUnit):
    """Merge one shard of one table, or several that share commits."""

    shard_ids: tuple[ShardId, ...]
    request: MergeRequest
    limits: MergeLimits
    lease_token: int | None = None
    alone: bool = False
    """Whether this is the only unit of its table in the run."""
    lineage: Lineage = field(default_factory=Lineage)
    held_bytes_min: int = 0
    """Memory that the largest generation takes: every commit holds at least one generation."""

    @property
    def memory_bytes_needed(self) -> int:
        """See `TableUnit`."""
        return needed_bytes(self.held_bytes_min)

    def one_by_one(self) -> list[MergeUnit]:
        """A unit for each of its shards."""
        return [replace(self, shard_ids=(shard_id,)) for shard_id in self.shard_ids]


def make_units(
    table: OpenTable, work: Sequence[ShardView], request: MergeRequest, limits: MergeLimits
) -> list[MergeUnit]:
    """The units for a table's shards with work, each with what was read of the table's lineage."""
    view, stores = table.view, table.stores
    if not work or view is None or stores is None:
        return []
    largest = {
        shard.shard_id: max(hold([g]) for g in choose_generations(shard, request)) for shard in work
    }
    lineage = Lineage() if request.allow_reinitialised else stores.views.lineage(view, work)
    groups = group_shards(view, work, request, limits)
    return [
        MergeUnit(
            uri=view.uri,
            storage_options=stores.storage_options,
            shard_ids=shard_ids,
            request=request,
            limits=limits,
            lease_token=table.lease_token,
            lineage=lineage.part(shard_ids),
            memory_bytes_max=limits.memory_bytes_max,
            held_bytes_min=max(largest[shard_id] for shard_id in shard_ids),
            alone=len(groups) == 1,
        )
        for shard_ids in groups
    ]


def run_merge_unit(unit: MergeUnit) -> MergeResult:
    """Run one unit in this process. Never raises: a bad shard must not stop the others."""
    process_memory.limit_arenas()
    result = run_unit(unit, lambda stores: _merge(unit, stores))
    if isinstance(result.made, MemWalError):
        if len(unit.shard_ids) > 1:
            return join_results(unit, [run_merge_unit(single) for single in unit.one_by_one()])
        return result
    traces = [report.trace for report in result.made if report.trace]
    return replace(result, trace="\n".join(traces) or None)


def open_merge_table(stores: Stores, *, index_join_allowed: bool = True) -> LanceMergeTable:
    """The MergeTable adapter for a table's stores."""
    generations = Generations(
        objects=stores.objects, tables=stores.tables, field_ids=stores.views.field_ids
    )
    return LanceMergeTable(generations, stores.clock, index_join_allowed=index_join_allowed)


def _merge(unit: MergeUnit, stores: Stores) -> tuple[ShardReport, ...]:
    stores.views.learn(unit.lineage)
    watch = RefreshWatch(leases=stores.leases, lease_token=unit.lease_token)

    def before_commit() -> None:
        cancel.check()
        watch.before_commit()

    merger = ShardMerger(
        views=stores.views,
        table=open_merge_table(stores, index_join_allowed=unit.limits.index_join_allowed),
        clock=stores.clock,
        limits=replace(unit.limits, memory_bytes_max=unit.memory_bytes_max),
        costs=JoinCosts(index_allowed=unit.limits.index_join_allowed),
        before_commit=before_commit,
        before_view=watch.before_view,
        turns=HostTurns(unit.uri, stores.clock, waiting=cancel.check, alone=unit.alone),
    )
    if len(unit.shard_ids) == 1:
        return (merger.run(unit.shard_ids[0], unit.request),)
    return SharedMerger(single=merger).run(unit.shard_ids, unit.request)


def join_results(unit: MergeUnit, singles: Sequence[MergeResult]) -> MergeResult:
    """Join the results of a unit's shards that ran one by one into one result."""
    requests: Counter[str] = Counter()
    for single in singles:
        requests.update(single.requests)
    return UnitResult(
        made=tuple(
            report
            for one, single in zip(unit.one_by_one(), singles, strict=True)
            for report in report_shards(one, single)
        ),
        requests=requests,
        trace="\n".join(single.trace for single in singles if single.trace) or None,
    )


def report_shards(unit: MergeUnit, result: MergeResult) -> tuple[ShardReport, ...]:
    """One report for each shard; of a failed unit, each with the unit's error.

    What such a unit had committed before stays in the table.
    """
    error = result.made
    if not isinstance(error, MemWalError):
        return error
    return tuple(
        ShardReport(
            shard_id=shard_id,
            outcome=FAILED,
            error=f"{unit.uri}: shard {shard_id}: {error}",
            exit_code=error.exit_code,
        )
        for shard_id in unit.shard_ids
    )
