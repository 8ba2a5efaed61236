"""Writes one shard's staged rows, in a thread or on a Spark executor.

A unit that is run again, or concurrently with itself, writes nothing twice: it claims the shard
anew, which fences the earlier attempt, and finds in the WAL what that one wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from memwal.errors import Corruption
from memwal.ingest.progress.backlog import Backlog
from memwal.ingest.sources.splits import Split, read_staged
from memwal.ingest.target import IngestTable, make_place
from memwal.ingest.track import Track, TrackResult
from memwal.ingest.values.shape import Shape
from memwal.run.process import process_memory
from memwal.run.stores import Stores
from memwal.run.units import TableUnit, UnitResult, run_unit
from memwal.store.records.ingests import Round

IngestResult = UnitResult[TrackResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestUnit(TableUnit):
    """Write the rows that a round staged for one shard."""

    ingest_id: str
    round: int
    run_id: str
    shard: str
    backlog_generations_max: int | None = None
    backlog_wait_seconds_max: float = 600.0


def run_ingest_unit(unit: IngestUnit) -> IngestResult:
    """Run one unit in this process; errors are returned: a bad shard must not stop the others."""
    process_memory.limit_arenas()
    return run_unit(unit, lambda stores: _write(unit, stores))


def _write(unit: IngestUnit, stores: Stores) -> TrackResult:
    records = Round(stores.objects, unit.ingest_id, unit.round, unit.run_id)
    plan = records.read_plan()
    staged = [s for s in (plan.staged if plan else None) or () if s.shard_id == unit.shard]
    if plan is None or not staged:
        raise Corruption(
            "MW-I27", f"{unit.uri}: {records.folder}: the plan stages nothing for {unit.shard}"
        )
    place = make_place(staged[0], plan.spec_id)
    table = IngestTable.read(stores, stores.views.table(), place.shard_id)
    router = table.make_router()
    router.fixed = place
    return Track(
        name=unit.shard,
        table=table,
        records=records,
        plan=plan,
        splits=[
            Split(name=path, read=partial(read_staged, stores.objects, path, plan.chunk_rows))
            for path in staged[0].files
        ],
        shape=Shape(
            schema=table.schema, key=table.view.primary_key, delete_column=plan.delete_column
        ),
        router=router,
        between=Backlog(
            stores=stores,
            generations_max=unit.backlog_generations_max,
            merge=None,
            wait_seconds_max=unit.backlog_wait_seconds_max,
        ),
    ).run()
