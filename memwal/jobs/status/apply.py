"""Builds the status of one table out of a view. Changes nothing and opens no generation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from memwal.indexes import covering_indexes
from memwal.jobs.status.plan import table_reasons
from memwal.model import BrokenShard, LeaseClaim, ShardId, ShardView, TableView
from memwal.report import (
    DONE,
    FAILED,
    IndexStatusReport,
    LeaseReport,
    ReclaimableReport,
    RunRecord,
    ShardStatusReport,
    SnapshotStatusReport,
    StatusTableReport,
    StorageReport,
    sum_up,
)
from memwal.rows.holes import find_holes, hole_text
from memwal.rows.policy import policy_document

_SHARDS_NAMED_MAX = 20
_HOLES_MAX = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class WalSize:
    """A shard's WAL as a listing shows it. `abandoned`: rows, and no sign of life for long."""

    entries: int
    size_bytes: int
    unflushed: int | None = None
    idle_seconds: float | None = None
    abandoned: bool = False


def iso_time(nanos: int | None) -> str | None:
    """UTC, to the second, or None."""
    if nanos is None:
        return None
    return datetime.fromtimestamp(nanos / 10**9, UTC).isoformat(timespec="seconds")


def table_status(
    name: str,
    view: TableView,
    *,
    wal: Callable[[ShardId], WalSize],
    unindexed_rows: Callable[[str], int | None],
    due: Mapping[ShardId, tuple[str, ...]],
    lease: LeaseReport | None = None,
    records: Sequence[RunRecord] = (),
    warnings: Sequence[str] = (),
) -> StatusTableReport:
    """The status report of one table. The two callables look up what a view does not hold.

    `due` is `plan.due.due_shards` of the view; `records` are of runs, newest first; `warnings` are
    added to those of the view.
    """
    stuck = stuck_shards(view, records)
    shards = tuple(
        _shard(s, wal(s.shard_id), due.get(s.shard_id, ()), stuck.get(s.shard_id))
        for s in view.shards
    )
    reclaimable = _reclaimable(view)
    broken = tuple(_broken(b) for b in view.broken)
    outcome, code = sum_up((*shards, *broken), otherwise=DONE)
    return StatusTableReport(
        table=name,
        outcome=outcome,
        exit_code=code,
        error="; ".join(str(b.error) for b in view.broken) or None,
        version_before=view.version,
        version_after=view.version,
        uri=view.uri,
        due=bool(due),
        due_reasons=table_reasons(due),
        storage=StorageReport(
            base_bytes=view.file_bytes,
            pending_bytes=_total([s.pending_bytes for s in shards]),
            reclaimable_bytes=reclaimable.bytes,
            wal_bytes=_total([s.wal_bytes for s in shards]),
        ),
        version=view.version,
        rows=view.rows,
        primary_key=view.primary_key,
        policy=policy_document(view.policy_text),
        shards=(*shards, *broken),
        indexes=_indexes(view, unindexed_rows),
        snapshot=SnapshotStatusReport(
            taken_at=iso_time(view.mem_wal.snapshot_ts_millis * 10**6 or None),
            num_shards=view.mem_wal.num_shards,
        ),
        reclaimable=reclaimable,
        lease=lease,
        warnings=(
            *view_warnings(view),
            *_holes(view),
            *_stuck(shards),
            *_abandoned(shards),
            *warnings,
        ),
    )


def _holes(view: TableView) -> tuple[str, ...]:
    return _bounded([hole_text(s, hole) for s in view.shards for hole in islice(find_holes(s), 1)])


def stuck_shards(view: TableView, records: Sequence[RunRecord]) -> Mapping[ShardId, str]:
    """Shards that stand where a run left them for a reason that running again does not mend."""
    found: dict[ShardId, str] = {}
    for shard in view.shards if records else ():
        told = next((r for r in records if shard.shard_id in r.stuck), None)
        if told is None or not shard.pending:
            continue
        generation, error = told.stuck[shard.shard_id]
        if generation == shard.merged_generation:
            found[shard.shard_id] = f"{error} (merge of {told.finished_at})"
    return found


def _stuck(shards: Sequence[ShardStatusReport]) -> tuple[str, ...]:
    lines = [
        f"shard {s.shard_id} is stuck at generation {s.merged_generation}: {s.stuck}"
        for s in shards
        if s.stuck
    ]
    return _bounded(lines)


def _abandoned(shards: Sequence[ShardStatusReport]) -> tuple[str, ...]:
    return _bounded(
        [
            f"shard {s.shard_id} looks abandoned: {s.unflushed_wal_entries} WAL entries are in no "
            f"generation, the newest is {s.idle_seconds:.0f} s old; no merge will see them until a "
            "writer, or `memwal rescue`, takes the shard"
            for s in shards
            if s.abandoned
        ]
    )


def _bounded(lines: Sequence[str]) -> tuple[str, ...]:
    """A line a shard; not all of them, since shards may be many."""
    more = len(lines) - _SHARDS_NAMED_MAX
    return (*lines[:_SHARDS_NAMED_MAX], *([f"and {more} more shards"] if more > 0 else ()))


def lease_report(claim: LeaseClaim | None, now_nanos: int) -> LeaseReport | None:
    """A claim for people; `state` is held, released, expired or broken."""
    if claim is None:
        return None
    if claim.reason is not None:
        state = "broken"
    elif claim.released:
        state = "released"
    else:
        state = "held" if claim.expires_at_nanos > now_nanos else "expired"
    return LeaseReport(
        state=state,
        token=claim.token,
        holder=claim.holder,
        job=claim.job,
        acquired_at=iso_time(claim.acquired_at_nanos),
        expires_at=iso_time(claim.expires_at_nanos),
        reason=claim.reason,
    )


def view_warnings(view: TableView) -> tuple[str, ...]:
    """What an operator should hear about a view, whatever the job."""
    return view.warnings


def _shard(
    shard: ShardView, wal: WalSize, due: tuple[str, ...], stuck: str | None
) -> ShardStatusReport:
    manifest, pending = shard.manifest, shard.pending
    return ShardStatusReport(
        outcome=DONE,
        shard_id=shard.shard_id,
        status=manifest.status.name,
        writer_epoch=manifest.writer_epoch,
        manifest_version=manifest.version,
        current_generation=manifest.current_generation,
        merged_generation=shard.merged_generation,
        pending_generations=tuple(g.generation for g in pending),
        holes=tuple(
            {"from_generation": h.first, "to_generation": h.last, "cause": h.cause.value}
            for h in islice(find_holes(shard), _HOLES_MAX)
        ),
        pending_rows=_total([g.physical_rows for g in pending]),
        pending_bytes=_total([g.in_memory_bytes for g in pending]),
        sizes_estimated=any(g.estimated for g in pending),
        oldest_pending_flushed_at=iso_time(shard.oldest_pending_flushed_at_nanos),
        replay_after_wal_entry_position=manifest.replay_after_wal_entry_position,
        wal_entries=wal.entries,
        wal_bytes=wal.size_bytes,
        unflushed_wal_entries=wal.unflushed,
        idle_seconds=wal.idle_seconds,
        abandoned=wal.abandoned,
        stuck=stuck,
        due_reasons=due,
    )


def _broken(shard: BrokenShard) -> ShardStatusReport:
    return ShardStatusReport(
        outcome=FAILED,
        error=str(shard.error),
        exit_code=getattr(shard.error, "exit_code", 1),
        shard_id=shard.shard_id,
        pending_rows=None,
        pending_bytes=None,
    )


def _total(values: list[int | None]) -> int | None:
    """The sum, or None when any value is unknown: absent is not zero."""
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _indexes(
    view: TableView, unindexed_rows: Callable[[str], int | None]
) -> tuple[IndexStatusReport, ...]:
    names = sorted({entry.name for entry in view.manifest.indexes})
    reports = []
    for name in names:
        rows = unindexed_rows(name)
        recorded = view.mem_wal.index_catchup.get(name)
        reports.append(
            IndexStatusReport(
                name=name,
                caught_up={str(shard): to for shard, to in (recorded or {}).items()},
                lag_generations=_lag(view.mem_wal.merged, recorded),
                unindexed_rows=rows,
            )
        )
    return tuple(reports)


def _lag(merged: Mapping[ShardId, int], recorded: Mapping[ShardId, int] | None) -> int | None:
    """How far the index is behind, in generations, at its worst shard.

    None when merges were recorded and nothing is known of the index: absent is not caught up.
    """
    if not merged:
        return 0
    if recorded is None:
        return None
    return max(generation - recorded.get(shard, 0) for shard, generation in merged.items())


def _reclaimable(view: TableView) -> ReclaimableReport:
    state = view.mem_wal
    names = covering_indexes(view.manifest, state)
    found = []
    for shard in view.shards:
        floor = min(
            (state.index_catchup.get(name, {}).get(shard.shard_id, 0) for name in names),
            default=shard.merged_generation,
        )
        floor = min(floor, shard.merged_generation)
        found += [g for g in shard.manifest.flushed_generations if g.generation <= floor]
    return ReclaimableReport(
        generations=len(found), bytes=_total([g.in_memory_bytes for g in found])
    )
