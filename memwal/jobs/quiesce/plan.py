"""Finds what stands in the way of changing a table's write spec. Pure.

Another spec means another MemWAL index, which knows nothing of merge progress. So everything that
the present index knows has to be finished: no rows that are only in a WAL, no generation listed or
missing, and no writer that would go on with the former spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import Field

from memwal.errors import EXIT_REFUSED, MemWalError
from memwal.format.layout import generation_folder
from memwal.indexes import covering_indexes
from memwal.jobs.rescue.plan import (
    NOTHING,
    RescueEvidence,
    ShardRescue,
    plan_rescue,
    suspect_writer,
)
from memwal.jobs.rescue.request import RescueRequest
from memwal.model import ShardId, ShardStatus, ShardView, TableView
from memwal.report import Section
from memwal.rows.progress import find_holes, refuse_hole
from memwal.text import count_of, name_some

_NAMED_MAX = 5


class Obstacle(Section):
    """One thing in the way. `stays`: no further run of quiesce moves it, as far as it can tell.

    `kind` is live_writer, wal_rows, sealed, pending (not merged), listed (merged, not dropped),
    missing (neither), index (not caught up), broken (can't be read) or record (somebody committed
    to the table, or the store failed, when it was to be recorded that all is merged).
    """

    kind: str
    detail: str
    shard_id: str | None = None
    index: str | None = None
    stays: bool = True
    exit_code: int = Field(default=EXIT_REFUSED, exclude=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stillness:
    """What was read of one shard, or the `error` of reading it.

    `claimed_by_us` is the writer epoch that this run itself took, if any.
    """

    evidence: RescueEvidence | None = None
    error: MemWalError | None = None
    claimed_by_us: int | None = None


def find_obstacles(
    view: TableView,
    shards: Mapping[ShardId, Stillness],
    kept: Mapping[str, str],
    request: RescueRequest,
    now_nanos: int,
) -> list[Obstacle]:
    """All obstacles; `kept` has garbage's reasons for what it kept, by generation folder."""
    found = [
        Obstacle(
            kind="broken",
            shard_id=ShardId(broken.shard_id),
            detail=str(broken.error),
            exit_code=getattr(broken.error, "exit_code", 1),
        )
        for broken in view.broken
    ]
    for shard in view.shards:
        found += _judge_wal(shard, shards[shard.shard_id], request, now_nanos)
        found += _judge_generations(view, shard, kept)
    return [*found, *_judge_indexes(view)]


def _judge_wal(
    shard: ShardView, still: Stillness, request: RescueRequest, now_nanos: int
) -> Iterator[Obstacle]:
    shard_id, where = shard.shard_id, f"shard {shard.shard_id}"
    if shard.manifest.status is ShardStatus.SEALED:
        yield Obstacle(
            kind="sealed", shard_id=shard_id, detail=f"{where} is SEALED: no writer may claim it"
        )
    if still.error is not None or still.evidence is None:
        text = f"{where}: {still.error or 'its manifests are gone'}"
        code = 1 if still.error is None else still.error.exit_code
        yield Obstacle(kind="broken", shard_id=shard_id, detail=text, exit_code=code)
        return
    plan = plan_rescue(still.evidence, request, now_nanos)
    if plan.action != NOTHING:
        yield _find_wal_rows(plan)
    elif writer := suspect_writer(still.evidence, still.claimed_by_us, request, now_nanos):
        yield Obstacle(kind="live_writer", shard_id=shard_id, detail=f"{where}: {writer}")


def _find_wal_rows(plan: ShardRescue) -> Obstacle:
    text = f"rows that are in its WAL only: {plan.rows}"
    if plan.error is not None:
        text = f"{text}: {plan.error}" if plan.entries else plan.error
    return Obstacle(
        kind="wal_rows",
        shard_id=plan.shard_id,
        detail=f"shard {plan.shard_id}: {text}",
        stays=plan.error is not None,
        exit_code=EXIT_REFUSED if plan.error is None else plan.exit_code,
    )


def _judge_generations(
    view: TableView, shard: ShardView, kept: Mapping[str, str]
) -> Iterator[Obstacle]:
    shard_id, where = shard.shard_id, f"shard {shard.shard_id}"
    for hole in find_holes(shard):
        yield Obstacle(kind="missing", shard_id=shard_id, detail=str(refuse_hole(shard, hole)))
    pending = [g.generation for g in shard.pending]
    if pending:
        text = f"{where}: not merged from generation {pending[0]} on ({len(pending)} pending)"
        yield Obstacle(kind="pending", shard_id=shard_id, detail=text, stays=False)
    # Generations that only wait for an index are dropped once it has caught up.
    ready = view.mem_wal.caught_up_to(shard_id, covering_indexes(view.manifest, view.mem_wal))
    reasons: dict[str | None, list[int]] = {}
    for g in shard.manifest.flushed_generations:
        if g.generation <= shard.merged_generation:
            path = generation_folder(shard_id, g.path, g.generation)
            reason = kept.get(path) if g.generation <= ready else None
            reasons.setdefault(reason, []).append(g.generation)
    for reason, numbers in reasons.items():
        named = name_some([str(n) for n in numbers], _NAMED_MAX, "generations")
        text = f"{where} still lists {', '.join(named)}: {reason or 'they were not dropped yet'}"
        yield Obstacle(kind="listed", shard_id=shard_id, detail=text, stays=reason is not None)


def _judge_indexes(view: TableView) -> Iterator[Obstacle]:
    """Indexes that are behind on shards that still list generations."""
    listed = [s for s in view.shards if s.manifest.flushed_generations]
    for name in covering_indexes(view.manifest, view.mem_wal):
        behind = [
            s for s in listed if view.mem_wal.caught_up_to(s.shard_id, [name]) < s.merged_generation
        ]
        if behind:
            text = f"index {name!r} has not caught up with {count_of(len(behind), 'shard')}"
            yield Obstacle(kind="index", index=name, detail=text, stays=False)
