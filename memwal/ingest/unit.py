"""One shard's staged rows, written by whoever runs the unit: a thread, or a Spark executor.

A unit that is run again, or beside itself, writes nothing twice: it claims the shard anew, which
ends its forerunner's writing, and finds in the WAL what that one did.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

from memwal.errors import Corruption, MemWalError
from memwal.ingest.line_up import Shape
from memwal.ingest.run import Track, TrackResult
from memwal.ingest.splits import StagedSplit
from memwal.ingest.table import Backlog, IngestTable, place_of
from memwal.report import Part
from memwal.run import heap
from memwal.run.stores import open_stores
from memwal.store.ingest_records import Round


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestUnit:
    """Write what a round staged for one shard."""

    uri: str
    storage_options: Mapping[str, str] = field(repr=False)
    ingest_id: str
    round: int
    run_id: str
    shard: str
    backlog_generations_max: int | None = None
    backlog_wait_seconds_max: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestUnitResult:
    """What came of it. `trace` is the traceback of an error nobody expected."""

    shard: str
    result: TrackResult | None = None
    error: str | None = None
    outcome: str = "failed"
    exit_code: int = 1
    requests: Mapping[str, int] = field(default_factory=dict)
    trace: str | None = None

    def part(self) -> Part:
        """For summing up."""
        return Part(outcome=self.outcome, error=self.error, exit_code=self.exit_code)


def run_ingest_unit(unit: IngestUnit) -> IngestUnitResult:
    """Run one unit in this process. Never raises: a bad shard must not stop the others."""
    heap.limit_arenas()
    try:
        return _written(unit)
    except (KeyboardInterrupt, SystemExit):
        raise
    except MemWalError as error:
        return IngestUnitResult(
            shard=unit.shard, error=str(error), outcome=error.outcome, exit_code=error.exit_code
        )
    except BaseException as error:  # a panic in Lance's Rust code is no Exception
        text = f"unexpected {type(error).__name__}: {error}"
        return IngestUnitResult(shard=unit.shard, error=text, trace=traceback.format_exc())


def lost_ingest_unit(unit: IngestUnit, error: MemWalError) -> IngestUnitResult:
    """The result of a unit that killed its process."""
    return IngestUnitResult(shard=unit.shard, error=str(error))


def _written(unit: IngestUnit) -> IngestUnitResult:
    stores = open_stores(unit.uri, unit.storage_options)
    records = Round(stores.objects, unit.ingest_id, unit.round, unit.run_id)
    plan = records.plan()
    staged = [s for s in (plan.staged if plan else None) or () if s.shard_id == unit.shard]
    if plan is None or not staged:
        raise Corruption(f"{unit.uri}: {records.folder}: the plan stages nothing for {unit.shard}")
    place = place_of(staged[0], plan.spec_id)
    table = IngestTable.of(stores, stores.views.table(), place.shard_id)
    router = table.router()
    router.fixed = place
    backlog = Backlog(
        stores=stores,
        generations_max=unit.backlog_generations_max,
        merge=None,
        wait_seconds_max=unit.backlog_wait_seconds_max,
        say=lambda text: None,
    )
    track = Track(
        name=unit.shard,
        splits=[
            StagedSplit(objects=stores.objects, path=path, chunk_rows=plan.chunk_rows)
            for path in staged[0].files
        ],
        shape=Shape(
            schema=table.schema, key=table.view.primary_key, delete_column=plan.delete_column
        ),
        router=router,
        rows_per_entry_max=plan.rows_per_entry_max,
        writers=table.writers(),
        records=records,
        clock=stores.clock,
        between=backlog,
    )
    result = track.run()
    return IngestUnitResult(
        shard=unit.shard,
        result=result,
        outcome="done",
        exit_code=0,
        requests=stores.objects.counts.as_dict(),
    )
