"""A merge as it travels to an executor: one shard's run of commits, or that of several shards.

Running a unit twice, or beside itself, is safe: progress travels with the rows (invariant 1).
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import MemWalError
from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.apply_run import ShardMerge
from memwal.jobs.merge.apply_shared import SharedMerger
from memwal.jobs.merge.plan import JoinCosts, MergeLimits, MergeRequest
from memwal.jobs.merge.refresh_watch import RefreshWatch
from memwal.jobs.merge.store import LanceMergeTable
from memwal.model import ShardId
from memwal.run import cancel as _cancel
from memwal.run import heap
from memwal.run.stores import Stores, open_stores
from memwal.run.units import TableUnit
from memwal.store.generations import Generations
from memwal.store.lineage import Lineage
from memwal.store.turns import HostTurns


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeUnit(TableUnit):
    """Merge one shard of one table, or several that share commits."""

    shard_ids: tuple[ShardId, ...]
    request: MergeRequest
    limits: MergeLimits
    lease_token: int | None = None
    lineage: Lineage = field(default_factory=Lineage)

    def one_by_one(self) -> list[MergeUnit]:
        """A unit for each of its shards."""
        return [replace(self, shard_ids=(shard_id,)) for shard_id in self.shard_ids]


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeUnitResult:
    """What came of a unit, shard by shard. `trace` is of an error that nobody expected.

    `died`: its process did, while it worked on one of the shards.
    """

    uri: str
    merges: tuple[ShardMerge, ...]
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None
    died: bool = False


def open_merge_table(stores: Stores) -> LanceMergeTable:
    """The merger's side of the base table."""
    generations = Generations(
        objects=stores.objects, tables=stores.tables, renamed=stores.views.renamed
    )
    return LanceMergeTable(generations, stores.clock)


def lost_merge_unit(unit: MergeUnit, error: MemWalError) -> MergeUnitResult:
    """The result of a unit that killed its process. What it had committed before stays."""
    shards = f"shard {unit.shard_ids[0]}"
    if len(unit.shard_ids) > 1:
        shards = f"one of {len(unit.shard_ids)} shards"
    failed = _failed(unit, f"{unit.uri}: {shards}: {error}", error.exit_code)
    return MergeUnitResult(uri=unit.uri, merges=failed, died=True)


def as_one(unit: MergeUnit, results: Sequence[MergeUnitResult]) -> MergeUnitResult:
    """The results of a unit's shards that ran one by one."""
    requests: Counter[str] = Counter()
    for result in results:
        requests.update(result.requests)
    return MergeUnitResult(
        uri=unit.uri,
        merges=tuple(merge for result in results for merge in result.merges),
        requests=requests,
        trace="\n".join(result.trace for result in results if result.trace) or None,
    )


def run_merge_unit(unit: MergeUnit) -> MergeUnitResult:
    """Run one unit in this process. Never raises: a bad shard must not stop the others."""
    heap.limit_arenas()
    try:
        stores = open_stores(unit.uri, unit.storage_options)
        stores.views.learn(unit.lineage)
        token = unit.lease_token

        watch = RefreshWatch(leases=stores.leases)

        def before_view() -> None:
            if token is None:
                watch.before_view()

        def before_commit() -> None:
            _cancel.check()
            if token is None:
                watch.before_commit()
            else:
                stores.leases.check(token)

        merger = ShardMerger(
            views=stores.views,
            table=open_merge_table(stores),
            clock=stores.clock,
            limits=unit.limits,
            costs=JoinCosts(index_allowed=unit.limits.index_join_allowed),
            before_commit=before_commit,
            before_view=before_view,
            turns=HostTurns(unit.uri, stores.clock, waiting=_cancel.check),
        )
        if len(unit.shard_ids) == 1:
            merges: tuple[ShardMerge, ...] = (merger.run(unit.shard_ids[0], unit.request),)
        else:
            merges = SharedMerger(single=merger).run(unit.shard_ids, unit.request)
        return MergeUnitResult(
            uri=unit.uri,
            merges=merges,
            requests=stores.objects.counts.as_dict(),
            trace="\n".join(m.trace for m in merges if m.trace) or None,
        )
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        if len(unit.shard_ids) > 1:
            return as_one(unit, [run_merge_unit(single) for single in unit.one_by_one()])
        failed = _failed(unit, f"unexpected {type(error).__name__}: {error}", 1)
        return MergeUnitResult(uri=unit.uri, merges=failed, trace=traceback.format_exc())


def _failed(unit: MergeUnit, text: str, exit_code: int) -> tuple[ShardMerge, ...]:
    return tuple(
        ShardMerge(
            shard_id=shard_id,
            outcome="failed",
            from_generation=0,
            to_generation=0,
            error=text,
            exit_code=exit_code,
        )
        for shard_id in unit.shard_ids
    )
