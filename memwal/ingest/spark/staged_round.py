"""Checks that the rows stored by a Spark write come in order, and plans their round. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from memwal.errors import Refused, StandDown
from memwal.ingest.plan import StagedRound, make_plan
from memwal.ingest.request import IngestRequest
from memwal.ingest.target import IngestTable
from memwal.store.records.ingests import PlanRecord, Round, StagedRecord


def check_turn(staged: StagedRound, latest: Round, plan: PlanRecord, *, finished: bool) -> None:
    """Raise Refused unless staged rows are the latest round again, or a later one.

    Spark repeats a stream's last batch, with the same rows, when it does not know that the batch
    was written. Other rows mean that its checkpoint does not match what the table has.
    """
    number = latest.number
    if staged.number < number:
        raise Refused(
            "MW-I24",
            f"{staged.name} comes again, and a later one was written already: the checkpoint is "
            "older than what the table has of this query, so that rows would be written twice",
        )
    rows, planned = _count_rows(staged.records), _count_rows(plan.staged or ())
    if staged.number == number and finished and planned != rows:
        more = ", in other shards" if rows.total() == planned.total() else ""
        raise Refused(
            "MW-I25",
            f"{staged.name} comes again with {rows.total()} rows, and was written with "
            f"{planned.total()}{more}: whether some are new can't be told. New rows need another "
            "id, or another checkpoint",
        )
    known = {record.shard_id: record.digest for record in plan.staged or () if record.digest}
    others = [r.shard_id for r in staged.records if r.digest != known.get(r.shard_id, r.digest)]
    if staged.number == number and finished and others:
        raise Refused(
            "MW-I38",
            f"{staged.name} comes again with other rows than it was written with, as many to each "
            f"shard ({', '.join(sorted({*others}))}): none of them is written. New rows need "
            "another id, or another checkpoint",
        )


def _count_rows(records: Iterable[StagedRecord]) -> Counter[str]:
    """The number of rows by shard."""
    counts: Counter[str] = Counter()
    for record in records:
        counts[record.shard_id] += record.rows
    return counts


def plan_round(staged: StagedRound, request: IngestRequest, table: IngestTable) -> PlanRecord:
    """The plan for staged rows. Raises StandDown when the table's shard spec has changed since."""
    if staged.spec_id != table.spec_id:
        raise StandDown("the table's shard spec was changed while these rows were stored")
    return make_plan(
        request,
        spec_id=table.spec_id,
        rows_per_entry_max=table.rows_per_entry_max,
        chunk_rows=table.rows_per_entry_max,
        staged=staged.records,
    )
