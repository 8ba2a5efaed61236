"""Units of work, as they travel to a thread or to a Spark executor, and the code that runs them.

A unit is one shard's run of commits, or that of several shards. It is plain data: whoever runs it
opens its own stores. Running one twice, or beside itself, is safe: progress travels with the rows
(invariants 1 and 8).
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from memwal.errors import MemWalError
from memwal.jobs.compaction.plan import CompactionTask
from memwal.jobs.index_catchup.ports import BuiltSegment, RewrittenFragments, SegmentTask
from memwal.jobs.merge.apply import ShardMerger
from memwal.jobs.merge.apply_run import ShardMerge
from memwal.jobs.merge.apply_shared import SharedMerger
from memwal.jobs.merge.plan import JoinCosts, MergeLimits, MergeRequest
from memwal.jobs.merge.refresh_watch import RefreshWatch
from memwal.model import BrokenShard, ShardId, ShardManifest
from memwal.run import cancel as _cancel
from memwal.run import heap
from memwal.run.stores import open_stores
from memwal.store.lineage import Lineage
from memwal.store.turns import HostTurns


@dataclass(frozen=True, kw_only=True, slots=True)
class MergeUnit:
    """Merge one shard of one table, or several that share commits."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    shard_ids: tuple[ShardId, ...]
    request: MergeRequest
    limits: MergeLimits
    lease_token: int | None = None
    lineage: Lineage = field(default_factory=Lineage)

    def one_by_one(self) -> list[MergeUnit]:
        """A unit for each of its shards."""
        return [replace(self, shard_ids=(shard_id,)) for shard_id in self.shard_ids]


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentUnit:
    """Build one segment of an index. Commits nothing, so it needs no lease."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    task: SegmentTask


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentUnitResult:
    """The segment, or why there is none."""

    built: BuiltSegment | MemWalError
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionUnit:
    """Rewrite the fragments of one task. Commits nothing, so it needs no lease."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    task: CompactionTask


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionUnitResult:
    """The rewritten fragments, or why there are none."""

    rewritten: RewrittenFragments | MemWalError
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestsUnit:
    """Read the latest manifests of some shards of one table."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    shard_ids: tuple[ShardId, ...]


def run_manifests_unit(unit: ManifestsUnit) -> tuple[ShardManifest | BrokenShard | None, ...]:
    """Read them, in threads of this process. A store that can't be reached fails the unit."""
    stores = open_stores(unit.uri, unit.storage_options)
    return tuple(stores.views.read_shards(unit.shard_ids))


def run_segment_unit(unit: SegmentUnit) -> SegmentUnitResult:
    """Build one segment in this process. Never raises: other indexes must go on."""
    try:
        stores = open_stores(unit.uri, unit.storage_options)
        built = stores.indexes.build(unit.task)
        return SegmentUnitResult(built=built, requests=stores.objects.counts.as_dict())
    except MemWalError as error:
        return SegmentUnitResult(built=error)
    except Exception as error:
        return SegmentUnitResult(built=_unexpected(error), trace=traceback.format_exc())


def run_compaction_unit(unit: CompactionUnit) -> CompactionUnitResult:
    """Rewrite some fragments in this process. Never raises: other tasks must go on."""
    try:
        stores = open_stores(unit.uri, unit.storage_options)
        rewritten = stores.compaction.rewrite(unit.task)
        return CompactionUnitResult(rewritten=rewritten, requests=stores.objects.counts.as_dict())
    except MemWalError as error:
        return CompactionUnitResult(rewritten=error)
    except Exception as error:
        return CompactionUnitResult(rewritten=_unexpected(error), trace=traceback.format_exc())


def lost_segment_unit(unit: SegmentUnit, error: MemWalError) -> SegmentUnitResult:
    """The result of a unit that killed its process."""
    return SegmentUnitResult(built=error)


def lost_compaction_unit(unit: CompactionUnit, error: MemWalError) -> CompactionUnitResult:
    """The result of a unit that killed its process."""
    return CompactionUnitResult(rewritten=error)


def lost_merge_unit(unit: MergeUnit, error: MemWalError) -> MergeUnitResult:
    """The result of a unit that killed its process. What it had committed before stays."""
    shards = f"shard {unit.shard_ids[0]}"
    if len(unit.shard_ids) > 1:
        shards = f"one of {len(unit.shard_ids)} shards"
    failed = _failed(unit, f"{unit.uri}: {shards}: {error}", error.exit_code)
    return MergeUnitResult(uri=unit.uri, merges=failed, died=True)


def _unexpected(error: Exception) -> MemWalError:
    return MemWalError(f"unexpected {type(error).__name__}: {error}")


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
            table=stores.merge_table,
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
